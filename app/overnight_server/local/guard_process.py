"""The small process that stands between its owner and one service, and outlives neither.

It starts the service, waits, and ends it when asked or when the owner is gone in whatever way: the
kernel closes the owner's end of the channel even after `kill -9`. The channel carries, to the
guard, one line of JSON (what to run) and then single bytes: 0 asks for the agreed stop, any other
number is a signal to pass on. To the owner it carries one line with the service's pid.
The guard imports nothing outside the standard library, so that it starts fast and stays small.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from overnight_server.local.privileges import Identity, adopt_orphans, assume, die_with_parent

ORDERLY_STOP = 0
#: With the owner gone the neighbours are ending too, so nobody is helped by a long good-bye.
ORPHANED_GRACE = 5.0
#: How long to keep killing what does not die before leaving it to the kernel.
CLEANING_TIME = 10.0
EXEC_FAILED = 127
_NUDGES = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD)


@dataclass(frozen=True)
class Order:
    """What the owner wants to have run, and how it is to be ended."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    stop_signal: int
    grace: float
    identity: str


def main(arguments: list[str]) -> int:
    """Guard one service; the arguments are the owner's pid, the channel, and files to hold open."""
    owner, channel_fd, *held = (int(argument) for argument in arguments)
    for fd in (channel_fd, *held):
        os.set_inheritable(fd, False)  # noqa: FBT003 - the standard library takes no keyword
    nudged = _listen_to_signals()
    adopt_orphans()
    die_with_parent(signal.SIGHUP)
    channel = socket.socket(fileno=channel_fd)
    order = _read_order(channel)
    if order is None or os.getppid() != owner:
        return 0
    service = _start(order)
    with contextlib.suppress(OSError):
        channel.sendall(json.dumps({"pid": service}).encode() + b"\n")
    guard = _Guard(owner, channel, nudged, order, service)
    return guard.watch()


def _listen_to_signals() -> int:
    """Turn every signal into a byte on a pipe; a handler, unlike an ignore, ends with exec."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in _NUDGES:
        signal.signal(number, lambda _number, _frame: None)
    return reader


def _read_order(channel: socket.socket) -> Order | None:
    text = b""
    while not text.endswith(b"\n"):
        # Byte by byte up to the newline: a stop may follow at once and must stay in the channel.
        byte = channel.recv(1)
        if not byte:
            return None
        text += byte
    return Order(**json.loads(text))


def _start(order: Order) -> int:
    guard = os.getpid()
    # A signal that comes between fork and exec must wait for the service, not meet our handler.
    signal.pthread_sigmask(signal.SIG_BLOCK, _NUDGES)
    child = os.fork()
    if child == 0:
        _become_the_service(order, guard)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _NUDGES)
    return child


def _become_the_service(order: Order, guard: int) -> NoReturn:
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        # Python ignores SIGPIPE, and an ignored signal stays ignored after exec.
        for number in (signal.SIGPIPE, *_NUDGES):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _NUDGES)
        os.chdir(order.cwd)
        assume(Identity(order.identity))
        die_with_parent(order.stop_signal)  # last, because a change of user takes it back
        if os.getppid() == guard:
            os.execvpe(order.argv[0], order.argv, order.env)  # noqa: S606
    except BaseException as failure:  # noqa: BLE001 - a forked child must never return
        sys.stderr.write(f"cannot run {order.argv[0]}: {failure}\n")
        sys.stderr.flush()
    os._exit(EXEC_FAILED)


class _Guard:
    def __init__(
        self, owner: int, channel: socket.socket, nudged: int, order: Order, service: int
    ) -> None:
        self.owner = owner
        self.channel: socket.socket | None = channel
        self.nudged = nudged
        self.order = order
        self.service = service
        self.exit_code: int | None = None
        self.kill_at: float | None = None

    def watch(self) -> int:
        """Wait for the service to end, passing on what the owner asks; return its exit code."""
        while self.exit_code is None:
            self._wait_for_news()
            self._reap()
            if self.channel and os.getppid() != self.owner:
                self._owner_is_gone()
            if self.kill_at is not None and time.monotonic() >= self.kill_at:
                self._kill_everything()
        self._clean_up()
        return self.exit_code

    def _wait_for_news(self) -> None:
        patience = None if self.kill_at is None else max(0.0, self.kill_at - time.monotonic())
        sources: list[int | socket.socket] = [self.nudged]
        if self.channel:
            sources.append(self.channel)
        ready, _, _ = select.select(sources, [], [], patience)
        if self.nudged in ready:
            os.read(self.nudged, 4096)
        if self.channel in ready:
            self._obey()

    def _obey(self) -> None:
        try:
            wishes = self.channel.recv(64) if self.channel else b""
        except OSError:
            wishes = b""
        if not wishes:
            self._owner_is_gone()
        for wish in wishes:
            if wish == ORDERLY_STOP:
                self._stop(self.order.grace)
            elif wish == signal.SIGKILL:
                self._kill_everything()
            else:
                self._send(wish)

    def _owner_is_gone(self) -> None:
        self.channel = None
        self._stop(min(self.order.grace, ORPHANED_GRACE))

    def _stop(self, grace: float) -> None:
        deadline = time.monotonic() + grace
        self.kill_at = deadline if self.kill_at is None else min(self.kill_at, deadline)
        self._send(self.order.stop_signal)

    def _send(self, number: int) -> None:
        # Only to the main process: Celery's pool children must not hear of a shutdown from us.
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.service, number)

    def _kill_everything(self) -> None:
        self.kill_at = None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.service, signal.SIGKILL)
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _reap(self) -> bool:
        """Collect whoever has ended, our own and adopted; False when nobody is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.service:
                code = os.waitstatus_to_exitcode(status)
                self.exit_code = code if code >= 0 else 128 - code

    def _clean_up(self) -> None:
        """End what the service left behind, also what had moved into a session of its own."""
        deadline = time.monotonic() + CLEANING_TIME
        while True:
            self._kill_everything()
            if not self._reap() or time.monotonic() > deadline:
                return
            time.sleep(0.01)


def descendants(ancestor: int) -> list[int]:
    """List every living process below this one, as far as the system shows its process table."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name in parentheses may contain anything, so count from its end.
            fields = entry.read_text(errors="replace").rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    found, waiting = [], [ancestor]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found
