"""Makes a file of 1 TB that has no content."""

import os

descriptor = os.open("/workspace/sparse", os.O_RDWR | os.O_CREAT)
try:
    os.ftruncate(descriptor, 1 << 40)
    print("ESCAPED: a file of 1 TB")
except OSError as error:
    print("refused", error.strerror)
