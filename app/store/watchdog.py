"""Ending connections whose server has fallen silent.

Postgres's own timeouts are kept by Postgres. A server that is stopped, or a link that swallows
packets, keeps none of them, and libpq would wait for ever. So every connection in use has a
deadline, and one thread per process hangs up on those that missed theirs.

A connection that broke gives its number back to the system, which may give it to another at once.
So a watch goes by a ticket: whoever ends it ends nobody else's.
"""

import contextlib
import os
import socket
import threading
import time
from itertools import count
from typing import Final, NamedTuple


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
        os.register_at_fork(after_in_child=self._forget)

    def watch(self, descriptor: int, seconds: float) -> Ticket:
        """Hang up on this connection unless it is released, or watched anew, within `seconds`."""
        with self._changed:
            if not self._awake:
                self._awake = True
                threading.Thread(target=self._keep, name="db-watchdog", daemon=True).start()
            ticket = Ticket(descriptor, next(self._numbers))
            self._watches[descriptor] = _Watch(ticket, time.monotonic() + seconds)
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

    def _keep(self) -> None:
        with self._changed:
            while True:
                self._changed.wait(self._until_next())
                now = time.monotonic()
                overdue = [one for one, watch in self._watches.items() if watch.deadline <= now]
                for descriptor in overdue:
                    del self._watches[descriptor]
                    _hang_up(descriptor)

    def _until_next(self) -> float | None:
        if not self._watches:
            return None
        first = min(watch.deadline for watch in self._watches.values())
        return max(0.0, first - time.monotonic())


# The one of this process.
WATCHDOG: Final = Watchdog()


def _hang_up(descriptor: int) -> None:
    """Shut the line without closing the descriptor, which libpq still owns."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as line:
        line.shutdown(socket.SHUT_RDWR)
