"""The state of one supervised service: its process, its output, its failures."""

import os
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from overnight_server.local.guarded_program import GuardedProgram, Program

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
#: A service that ran this long has recovered; its next failure counts as the first.
STEADY_AFTER = 60.0
LAST_LINES = 12
SIGNAL_EXIT = 128


@dataclass(frozen=True)
class Service:
    """A program that the supervisor keeps running.

    It starts when all services in `depends_on` are ready. It is ready when `ready` returns True,
    or as soon as it runs if there is no such function. `ready` is called often and must return
    within a second or two. The terminal shows its output only if `shown`.
    """

    name: str
    program: Program
    ready: Callable[[], bool] | None = None
    depends_on: tuple[str, ...] = ()
    shown: bool = True


class SupervisedService:
    """A service with its current process and the record of its failures.

    With `restarts=False` it runs once and is not started again.
    """

    def __init__(self, service: Service, *, restarts: bool = True) -> None:
        self.service = service
        self.restarts = restarts
        self.process: GuardedProgram | None = None
        self.is_ready = False
        self.is_restarting = False
        self.exit_code: int | None = None
        self.failures = 0
        self.start_at: float | None = time.monotonic()
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._started_at = 0.0
        self._partial_line = b""

    @property
    def is_due(self) -> bool:
        """Whether the time of the next start has come."""
        return self.start_at is not None and time.monotonic() >= self.start_at

    def start(self, held: Sequence[int]) -> None:
        """Start the service; `read_lines` returns its output."""
        self.process = GuardedProgram(self.service.program, output=subprocess.PIPE, held=held)
        self.start_at = None
        self._started_at = time.monotonic()
        if self.process.output:
            os.set_blocking(self.process.output.fileno(), False)

    def start_again_now(self) -> None:
        """Let the service start again at once, because its end was requested."""
        self.is_restarting = False
        self.failures = 0
        self.start_at = time.monotonic()

    def becomes_ready(self) -> bool:
        """Check a running service that was not ready; return True if it is ready now."""
        if self.process is None or self.is_ready:
            return False
        self.is_ready = self.service.ready is None or self.service.ready()
        return self.is_ready

    def read_lines(self, *, has_ended: bool) -> list[str]:
        """Return the lines printed since the last call; a partial line only if it has ended."""
        output = self.process and self.process.output
        while output and (chunk := read_available(output.fileno())):
            self._partial_line += chunk
        if has_ended and self._partial_line:
            self._partial_line += b"\n"
        *lines, self._partial_line = self._partial_line.split(b"\n")
        texts = [line.decode(errors="replace").rstrip("\r") for line in lines]
        self.last_lines.extend(texts)
        return texts

    def has_ended(self) -> bool:
        """Return whether the process was started and has ended with all its children."""
        return self.process is not None and self.process.exit_code() is not None

    def record_exit(self) -> str:
        """Record the end of the process, schedule the next start, and describe the exit."""
        if self.process is None:
            raise ValueError(f"{self.service.name} does not run")
        self.exit_code = self.process.wait()
        self.process.close()
        self.process = None
        self.is_ready = False
        seconds = time.monotonic() - self._started_at
        self.failures = 1 if seconds > STEADY_AFTER else self.failures + 1
        if self.restarts:
            self.start_at = time.monotonic() + pause_before_restart(self.failures)
        return describe_exit(self.exit_code)


def pause_before_restart(failures: int) -> float:
    """Return the seconds to wait after this many failures in a row.

    >>> [pause_before_restart(failures) for failures in (1, 2, 3, 9)]
    [1.0, 2.0, 4.0, 30.0]
    """
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 10))


def describe_exit(exit_code: int | None) -> str:
    """Describe an exit code for a person.

    >>> describe_exit(137), describe_exit(2)
    ('was killed by signal 9', 'ended with exit code 2')
    """
    if exit_code is None or exit_code < 0:
        return "lost its guard process"
    if exit_code > SIGNAL_EXIT:
        return f"was killed by signal {exit_code - SIGNAL_EXIT}"
    return f"ended with exit code {exit_code}"


def read_available(fd: int) -> bytes:
    """Read the bytes that a non-blocking descriptor has now, perhaps none."""
    try:
        return os.read(fd, 65_536)
    except BlockingIOError:
        return b""
