"""Leaves links out of the workspace, pipes, sockets and devices among its results."""

import os
import socket

os.makedirs("out/folder")
for name, target in (
    ("passwd", "/etc/passwd"),
    ("shadow", "/etc/shadow"),
    ("root", "/"),
    ("up", "../../../../etc/passwd"),
    ("self", "/proc/self/environ"),
    ("null", "/dev/null"),
    ("loop", "loop"),
):
    os.symlink(target, "out/" + name)
os.symlink("/etc", "out/folder/etc")
os.mkfifo("out/pipe")
socket.socket(socket.AF_UNIX).bind("out/socket")
with open("out/good.txt", "w") as file:
    file.write("result")
os.link("out/good.txt", "out/same.txt")
with open(b"out/bad-\xff-name", "w") as file:
    file.write("bytes")
with open("out/-rf\n..", "w") as file:
    file.write("odd")
