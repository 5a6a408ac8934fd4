"""The guard: a small process between a supervisor (the owner) and one service.

The guard starts the service, waits, and stops it when the owner asks or when the owner ends for
any reason: the kernel closes the owner's end of the channel even after `kill -9`. So a service
never outlives its owner. Over the channel the guard receives one line of JSON (`LaunchRequest`) and
then single bytes: 0 requests an orderly stop, any other value is the number of a signal to forward.
The guard sends one line with the service's pid.
It imports the standard library only, so that it starts fast and stays small.
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
from typing import NoReturn

from overnight_server.local.privileges import Identity, switch_to
from overnight_server.process_tree import (
    become_subreaper,
    descendants,
    kill_living,
    reap_children,
    signal_on_parent_death,
)

ORDERLY_STOP = 0
#: When the owner is gone, the other services are stopping too; a long grace would help none.
ORPHANED_GRACE = 5.0
#: How long to keep killing processes that do not die before leaving them to the kernel.
CLEANUP_TIME = 10.0
EXEC_FAILED = 127
_HANDLED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD)


@dataclass(frozen=True)
class LaunchRequest:
    """The command to run, and how to stop it."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    stop_signal: int
    grace: float
    identity: str


def main(arguments: list[str]) -> int:
    """Guard one service and return its exit code.

    The arguments are the owner's pid, the channel's descriptor, and descriptors to keep open.
    """
    owner, channel_fd, *held = (int(argument) for argument in arguments)
    for fd in (channel_fd, *held):
        os.set_inheritable(fd, False)  # noqa: FBT003 - the standard library takes no keyword
    signal_pipe = _open_signal_pipe()
    become_subreaper()
    signal_on_parent_death(signal.SIGHUP)
    channel = socket.socket(fileno=channel_fd)
    request = _read_request(channel)
    if request is None or os.getppid() != owner:
        return 0
    service = _start(request)
    with contextlib.suppress(OSError):
        channel.sendall(json.dumps({"pid": service}).encode() + b"\n")
    return _Guard(owner, channel, signal_pipe, request, service).watch()


def _open_signal_pipe() -> int:
    """Make every handled signal write a byte to a pipe, and return the pipe's read end.

    Handlers are used because an exec resets them; an ignored signal would stay ignored.
    """
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in _HANDLED_SIGNALS:
        signal.signal(number, lambda _number, _frame: None)
    return reader


def _read_request(channel: socket.socket) -> LaunchRequest | None:
    text = b""
    while not text.endswith(b"\n"):
        # Byte by byte up to the newline: a stop may follow at once and must stay in the channel.
        byte = channel.recv(1)
        if not byte:
            return None
        text += byte
    return LaunchRequest(**json.loads(text))


def _start(request: LaunchRequest) -> int:
    guard = os.getpid()
    # A signal between fork and exec must be delivered to the service, not to the guard's handler.
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED_SIGNALS)
    child = os.fork()
    if child == 0:
        _exec_service(request, guard)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED_SIGNALS)
    return child


def _exec_service(request: LaunchRequest, guard: int) -> NoReturn:
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        # Python ignores SIGPIPE, and an ignored signal stays ignored after exec.
        for number in (signal.SIGPIPE, *_HANDLED_SIGNALS):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED_SIGNALS)
        os.chdir(request.cwd)
        switch_to(Identity(request.identity))
        signal_on_parent_death(request.stop_signal)  # last, because a change of user clears it
        if os.getppid() == guard:
            os.execvpe(request.argv[0], request.argv, request.env)  # noqa: S606
    except BaseException as error:  # noqa: BLE001 - a forked child must never return
        sys.stderr.write(f"cannot run {request.argv[0]}: {error}\n")
        sys.stderr.flush()
    os._exit(EXEC_FAILED)


class _Guard:
    def __init__(
        self,
        owner: int,
        channel: socket.socket,
        signal_pipe: int,
        request: LaunchRequest,
        service: int,
    ) -> None:
        self.owner = owner
        self.channel: socket.socket | None = channel
        self.signal_pipe = signal_pipe
        self.request = request
        self.service = service
        self.exit_code: int | None = None
        self.kill_at: float | None = None

    def watch(self) -> int:
        """Wait until the service ends, carrying out the owner's requests; return its exit code."""
        while self.exit_code is None:
            self._wait_for_input()
            self._reap()
            if self.channel and os.getppid() != self.owner:
                self._stop_after_owner_ended()
            if self.kill_at is not None and time.monotonic() >= self.kill_at:
                self._kill_everything()
        self._clean_up()
        return self.exit_code

    def _wait_for_input(self) -> None:
        timeout = None if self.kill_at is None else max(0.0, self.kill_at - time.monotonic())
        sources: list[int | socket.socket] = [self.signal_pipe]
        if self.channel:
            sources.append(self.channel)
        ready, _, _ = select.select(sources, [], [], timeout)
        if self.signal_pipe in ready:
            os.read(self.signal_pipe, 4096)
        if self.channel in ready:
            self._handle_requests()

    def _handle_requests(self) -> None:
        try:
            numbers = self.channel.recv(64) if self.channel else b""
        except OSError:
            numbers = b""
        if not numbers:
            self._stop_after_owner_ended()
        for number in numbers:
            if number == ORDERLY_STOP:
                self._stop(self.request.grace)
            elif number == signal.SIGKILL:
                self._kill_everything()
            else:
                self._send_signal(number)

    def _stop_after_owner_ended(self) -> None:
        self.channel = None
        self._stop(min(self.request.grace, ORPHANED_GRACE))

    def _stop(self, grace: float) -> None:
        deadline = time.monotonic() + grace
        self.kill_at = deadline if self.kill_at is None else min(self.kill_at, deadline)
        self._send_signal(self.request.stop_signal)

    def _send_signal(self, number: int) -> None:
        # Only to the main process: a signal to Celery's pool processes would kill running tasks.
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.service, number)

    def _kill_everything(self) -> None:
        self.kill_at = None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.service, signal.SIGKILL)
        kill_living(descendants(os.getpid()))

    def _reap(self) -> bool:
        """Collect ended children, adopted ones included; return False when no child is left."""
        statuses, any_left = reap_children()
        if self.service in statuses:
            code = os.waitstatus_to_exitcode(statuses[self.service])
            self.exit_code = code if code >= 0 else 128 - code
        return any_left

    def _clean_up(self) -> None:
        """Kill processes the service left behind, also those that moved to another session."""
        deadline = time.monotonic() + CLEANUP_TIME
        while True:
            self._kill_everything()
            if not self._reap() or time.monotonic() > deadline:
                return
            time.sleep(0.01)
