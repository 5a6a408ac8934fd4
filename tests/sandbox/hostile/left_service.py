"""Leaves a server that listens, in a session of its own."""

import os
import socket
import time

server = socket.create_server(("127.0.0.1", 8000))
if os.fork() == 0:
    os.setsid()
    while True:
        server.accept()
time.sleep(0.1)
