"""Lists its descriptors and tries to use any that it was not given."""

import os

inherited = [number for number in range(1024) if os.path.lexists(f"/proc/self/fd/{number}")]
print(inherited)
for number in inherited[4:]:
    print("ESCAPED: descriptor", number, os.readlink(f"/proc/self/fd/{number}"))
