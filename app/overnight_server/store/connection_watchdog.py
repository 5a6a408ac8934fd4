"""Ending connections whose server has fallen silent.

Postgres's own timeouts are kept by Postgres. A server that is stopped, or a link that swallows
packets, keeps none of them, and libpq would wait for ever. So every connection in use has a
deadline, and one thread per process hangs up on those that missed theirs.

A connection that broke gives its number back to the system, which may give it to another at once.
So a watch goes by a ticket: whoever ends it ends nobody else's.
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


class Ticket(NamedTuple):
    """One watch over the connection that has this descriptor now."""

    descriptor: int
    number: int


class _Watch(NamedTuple):
    ticket: Ticket
    deadline: float


class Watchdog:
    """Deadlines by connection; the thread starts with the first of them, in each process anew."""

    def __init__(self) -> None:
        self._watches: dict[int, _Watch] = {}
        self._numbers = count()
        self._changed = threading.Condition()
        self._awake = False
        self._wakes_at = math.inf
        os.register_at_fork(after_in_child=self._forget)

    def watch(self, descriptor: int, seconds: float) -> Ticket:
        """Hang up on this connection unless it is released, or watched anew, within `seconds`."""
        with self._changed:
            if not self._awake:
                self._awake = True
                threading.Thread(target=self._keep, name="db-watchdog", daemon=True).start()
            ticket = Ticket(descriptor, next(self._numbers))
            deadline = time.monotonic() + seconds
            self._watches[descriptor] = _Watch(ticket, deadline)
            # To be woken each time would cost more than to wake up now and then for nothing.
            if deadline < self._wakes_at:
                self._changed.notify()
        return ticket

    def release(self, ticket: Ticket) -> None:
        """Let a connection be: it answered, or is gone."""
        with self._changed:
            watch = self._watches.get(ticket.descriptor)
            if watch is not None and watch.ticket == ticket:
                del self._watches[ticket.descriptor]

    def hang_up(self) -> None:
        """Hang up on every connection in use, as if each had missed its deadline."""
        with self._changed:
            for descriptor in list(self._watches):
                del self._watches[descriptor]
                _hang_up(descriptor)

    def _forget(self) -> None:
        """Begin anew in a forked child.

        It has its parent's table, but neither its thread nor the right to hang up on the parent's
        connections; and a lock that the thread held during the fork would never be released.
        """
        self._watches = {}
        self._changed = threading.Condition()
        self._awake = False
        self._wakes_at = math.inf

    def _keep(self) -> None:
        with self._changed:
            while True:
                deadlines = (watch.deadline for watch in self._watches.values())
                self._wakes_at = min(deadlines, default=math.inf)
                if self._wakes_at == math.inf:
                    self._changed.wait()
                else:
                    self._changed.wait(max(0.0, self._wakes_at - time.monotonic()))
                now = time.monotonic()
                overdue = [one for one, watch in self._watches.items() if watch.deadline <= now]
                for descriptor in overdue:
                    del self._watches[descriptor]
                    _hang_up(descriptor)


# The one of this process.
WATCHDOG: Final = Watchdog()
DROP_ACTIONS.append(WATCHDOG.hang_up)


def _hang_up(descriptor: int) -> None:
    """Shut the line without closing the descriptor, which libpq still owns."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as line:
        line.shutdown(socket.SHUT_RDWR)
