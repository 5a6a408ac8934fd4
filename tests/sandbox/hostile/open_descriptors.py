"""Opens as many files as it can; 5,000 at most."""

import os

count = 0
try:
    while count < 5000:
        os.open("/dev/null", os.O_RDONLY)
        count += 1
    print("ESCAPED: 5,000 open files")
except OSError as error:
    print(count, error.strerror)
