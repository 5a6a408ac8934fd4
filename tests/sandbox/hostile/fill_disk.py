"""Fills the workspace with files; 640 MB at most."""

import time

for number in range(80):
    with open(f"/workspace/{number}", "wb") as file:
        file.write(b"x" * (8 << 20))
    time.sleep(0.05)
time.sleep(60)
print("ESCAPED: 640 MB in the workspace")
