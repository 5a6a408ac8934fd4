"""Closes connections whose server no longer responds.

Postgres enforces its own timeouts. If the server is stopped or packets are lost, nobody enforces
them, and libpq would wait forever. Therefore every connection in use has a deadline, and one thread
per process shuts down the sockets of connections that missed theirs.

The operating system may give the file descriptor of a broken connection to a new one immediately.
Each watch therefore has a number, and releasing a watch never releases a later one.
"""

import contextlib
import math
import os
import socket
import threading
import time
from itertools import count
from typing import Final, NamedTuple

from overnight_server.fault_points import DROP_ACTIONS


class Watch(NamedTuple):
    """One watch over the connection that has this file descriptor now."""

    descriptor: int
    number: int


class _Entry(NamedTuple):
    watch: Watch
    deadline: float


class Watchdog:
    """Closes connections that miss their deadline.

    The thread that does so starts when a process first calls `watch`.
    """

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._numbers = count()
        self._changed = threading.Condition()
        self._has_thread = False
        self._wakes_at = math.inf
        os.register_at_fork(after_in_child=self._reset)

    def watch(self, descriptor: int, seconds: float) -> Watch:
        """Close this connection unless it is released, or watched again, within `seconds`."""
        with self._changed:
            if not self._has_thread:
                self._has_thread = True
                threading.Thread(target=self._run, name="db-watchdog", daemon=True).start()
            watch = Watch(descriptor, next(self._numbers))
            deadline = time.monotonic() + seconds
            self._entries[descriptor] = _Entry(watch, deadline)
            # Waking the thread for every watch would cost more than some needless wake-ups.
            if deadline < self._wakes_at:
                self._changed.notify()
        return watch

    def release(self, watch: Watch) -> None:
        """End a watch: the server answered, or the connection is closed."""
        with self._changed:
            entry = self._entries.get(watch.descriptor)
            if entry is not None and entry.watch == watch:
                del self._entries[watch.descriptor]

    def close_all(self) -> None:
        """Close every connection in use, as if each had missed its deadline."""
        with self._changed:
            for descriptor in list(self._entries):
                del self._entries[descriptor]
                _shut_down(descriptor)

    def _reset(self) -> None:
        """Start empty in a forked child.

        The child inherits the table but not the thread, and must not close its parent's
        connections. A lock that the thread held during the fork would never be released.
        """
        self._entries = {}
        self._changed = threading.Condition()
        self._has_thread = False
        self._wakes_at = math.inf

    def _run(self) -> None:
        with self._changed:
            while True:
                deadlines = (entry.deadline for entry in self._entries.values())
                self._wakes_at = min(deadlines, default=math.inf)
                if self._wakes_at == math.inf:
                    self._changed.wait()
                else:
                    self._changed.wait(max(0.0, self._wakes_at - time.monotonic()))
                now = time.monotonic()
                overdue = [fd for fd, entry in self._entries.items() if entry.deadline <= now]
                for descriptor in overdue:
                    del self._entries[descriptor]
                    _shut_down(descriptor)


#: The watchdog of this process.
WATCHDOG: Final = Watchdog()
DROP_ACTIONS.append(WATCHDOG.close_all)


def _shut_down(descriptor: int) -> None:
    """Shut down a socket without closing the descriptor, which libpq still owns."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        connection.shutdown(socket.SHUT_RDWR)
