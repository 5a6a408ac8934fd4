"""Tries to reach the worker and the network by every kind of socket."""

import errno
import os
import socket

UNIX = ("\0" + os.environ["ABSTRACT"], os.environ["PATHNAME"], "/run/docker.sock")
for address in (*UNIX, "/var/run/postgresql/.s.PGSQL.5432", "/run/dbus/system_bus_socket"):
    try:
        socket.socket(socket.AF_UNIX).connect(address)
        print("ESCAPED: connected to", repr(address))
    except OSError as error:
        print(repr(address), error.strerror)
TCP = [("127.0.0.1", int(os.environ["PORT"])), ("127.0.0.1", 5432), ("127.0.0.1", 6379)]
TCP += [("169.254.169.254", 80), ("10.0.0.1", 80), ("1.1.1.1", 443), ("127.0.0.1", 3128)]
for address in TCP:
    try:
        socket.create_connection(address, 1)
        print("ESCAPED: connected to", address)
    except OSError as error:
        print(address, error.strerror)
try:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("8.8.8.8", 53))
    print("ESCAPED: sent a datagram")
except OSError as error:
    print("datagram", error.strerror)
for family in (40, 17, 38, 9, 29, 31):
    try:
        socket.socket(family, socket.SOCK_STREAM)
        print("ESCAPED: a socket of family", family)
    except OSError as error:
        if error.errno != errno.EAFNOSUPPORT:
            print("ESCAPED: family", family, error.strerror)
try:
    socket.getaddrinfo("example.com", 80)
    print("ESCAPED: resolved a name")
except OSError as error:
    print("resolver", error)
server = socket.create_server(("127.0.0.1", 8000))
socket.create_connection(("127.0.0.1", 8000), 5)
print("its own loopback works")
