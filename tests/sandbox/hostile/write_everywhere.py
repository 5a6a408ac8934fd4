"""Tries to make a file in every folder that is not its own."""

import os

OWN = ("/workspace", "/tmp", "/dev/shm")
folders = ["/", "/usr", "/usr/bin", "/usr/local", "/usr/lib", "/etc", "/etc/ssl", "/dev", "/proc"]
folders += ["/bin", "/lib", "/dev/pts", "/proc/self", "/proc/1", "/run", "/var", "/home", "/root"]
for folder in folders:
    try:
        with open(folder + "/overnight-was-here", "w"):
            print("ESCAPED: wrote to", folder)
    except OSError as error:
        print(folder, error.strerror)
for path in ("/usr/bin/python3", "/etc/passwd", "/etc/ld.so.cache", "/usr/bin/env"):
    if os.path.exists(path):
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_APPEND))
            print("ESCAPED: could write", path)
        except OSError as error:
            print(path, error.strerror)
for name in ("/root", "/home", "/var", "/run", "/srv", "/opt", "/mnt", "/sys", "/boot", "/.host"):
    if os.path.exists(name):
        print("ESCAPED: sees", name)
