"""Hides memory in files without a name; 640 MB at most."""

import os
import time

descriptors = []
try:
    for _ in range(40):
        descriptor = os.memfd_create("hidden")
        os.pwrite(descriptor, b"x" * (16 << 20), 0)
        descriptors.append(descriptor)
        time.sleep(0.02)
    print("ESCAPED: 640 MB in files without a name")
except OSError as error:
    print("refused", error.strerror)
