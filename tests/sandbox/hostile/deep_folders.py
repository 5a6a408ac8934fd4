"""Makes 5,000 folders inside each other, with a path longer than the kernel accepts."""

import os

for _ in range(5000):
    os.mkdir("d")
    os.chdir("d")
with open("leaf", "w") as leaf:
    leaf.write("deep")
print("deep")
