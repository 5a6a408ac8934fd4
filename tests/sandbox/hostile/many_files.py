"""Makes empty files, which cost the disk too; 10,000 at most."""

import os
import time

for number in range(100):
    os.mkdir(f"/workspace/{number}")
    for inner in range(100):
        with open(f"/workspace/{number}/{inner}", "wb"):
            pass
time.sleep(60)
print("ESCAPED: 10,000 files")
