"""Tries to make and to open devices."""

import os
import stat

for kind, major, minor in ((stat.S_IFBLK, 254, 0), (stat.S_IFCHR, 1, 1), (stat.S_IFCHR, 1, 11)):
    for folder in ("/workspace", "/tmp", "/dev/shm"):
        try:
            os.mknod(f"{folder}/device-{major}-{minor}", kind | 0o600, os.makedev(major, minor))
            os.open(f"{folder}/device-{major}-{minor}", os.O_RDONLY)
            print("ESCAPED: made a device in", folder)
        except OSError as error:
            print(folder, error.strerror)
for name in ("vda", "sda", "nvme0n1", "kmsg", "kvm", "net/tun", "mem", "port", "fuse", "vsock"):
    try:
        os.open("/dev/" + name, os.O_RDONLY)
        print("ESCAPED: opened", name)
    except OSError as error:
        print(name, error.strerror)
