"""Where one service of the deployment stands: its process, its output, its record of falls."""

import os
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from overnight_server.local.guarded_program import Guarded, Program

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
#: A service that lasted this long has recovered; its next fall counts as the first.
STEADY_AFTER = 60.0
LAST_WORDS = 12
SIGNAL_EXIT = 128


@dataclass(frozen=True)
class Service:
    """One process of the deployment, as data.

    It starts when everything it depends on is ready; without a `ready` question it is ready as
    soon as it runs. The question is asked often and must answer within a second or two.
    """

    name: str
    program: Program
    ready: Callable[[], bool] | None = None
    depends_on: tuple[str, ...] = ()


class Post:
    """One service's place in the deployment, through all its starts and falls."""

    def __init__(self, service: Service, *, lasting: bool = True) -> None:
        self.service = service
        self.lasting = lasting
        self.process: Guarded | None = None
        self.is_ready = False
        self.exit_code: int | None = None
        self.falls = 0
        self.start_at: float | None = time.monotonic()
        self.last_words: deque[str] = deque(maxlen=LAST_WORDS)
        self._started_at = 0.0
        self._unfinished = b""

    @property
    def is_due(self) -> bool:
        """Whether the time for the next start has come."""
        return self.start_at is not None and time.monotonic() >= self.start_at

    def start(self, held: Sequence[int]) -> None:
        """Start the service; its output waits until `new_lines` takes it."""
        self.process = Guarded(self.service.program, output=subprocess.PIPE, held=held)
        self.start_at = None
        self._started_at = time.monotonic()
        if self.process.output:
            os.set_blocking(self.process.output.fileno(), False)

    def ask_if_ready(self) -> bool:
        """Ask a running service that was not ready; True when it has become so just now."""
        if self.process is None or self.is_ready:
            return False
        self.is_ready = self.service.ready is None or self.service.ready()
        return self.is_ready

    def new_lines(self, *, to_the_end: bool) -> list[str]:
        """Take the lines printed since the last call; an unfinished one only at the end."""
        output = self.process and self.process.output
        while output and (chunk := read_now(output.fileno())):
            self._unfinished += chunk
        if to_the_end and self._unfinished:
            self._unfinished += b"\n"
        *lines, self._unfinished = self._unfinished.split(b"\n")
        texts = [line.decode(errors="replace").rstrip("\r") for line in lines]
        self.last_words.extend(texts)
        return texts

    def has_ended(self) -> bool:
        """Whether there was a process and nothing of it is left."""
        return self.process is not None and self.process.exit_code() is not None

    def take_down(self) -> str:
        """Note the end of the process and when to start it again; say how it ended."""
        if self.process is None:
            raise ValueError(f"{self.service.name} does not run")
        self.exit_code = self.process.wait()
        self.process.close()
        self.process = None
        self.is_ready = False
        lasted = time.monotonic() - self._started_at
        self.falls = 1 if lasted > STEADY_AFTER else self.falls + 1
        if self.lasting:
            self.start_at = time.monotonic() + pause_before_restart(self.falls)
        return how_it_ended(self.exit_code)


def pause_before_restart(falls: int) -> float:
    """Seconds to wait after so many falls in a row.

    >>> [pause_before_restart(falls) for falls in (1, 2, 3, 9)]
    [1.0, 2.0, 4.0, 30.0]
    """
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(falls - 1, 10))


def how_it_ended(exit_code: int | None) -> str:
    """Put an exit code in words.

    >>> how_it_ended(137), how_it_ended(2)
    ('was killed by signal 9', 'ended with exit code 2')
    """
    if exit_code is None or exit_code < 0:
        return "lost its guard"
    if exit_code > SIGNAL_EXIT:
        return f"was killed by signal {exit_code - SIGNAL_EXIT}"
    return f"ended with exit code {exit_code}"


def read_now(fd: int) -> bytes:
    """Read what a non-blocking file has at the moment, perhaps nothing."""
    try:
        return os.read(fd, 65_536)
    except BlockingIOError:
        return b""
