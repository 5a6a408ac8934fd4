"""The base of the embedded servers: start, wait until ready, stop; usable as a context manager."""

import os
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self

from overnight_server.local.errors import DidNotStart
from overnight_server.local.guarded_program import GuardedProgram, Program

START_TIMEOUT = 60.0
LOG_TAIL = 2_000


class EmbeddedServer(ABC):
    """A server with its own directory that can be stopped and started again on the same port."""

    def __init__(self, directory: Path, log: Path) -> None:
        self.directory = directory
        self.log = log
        self._process: GuardedProgram | None = None

    @abstractmethod
    def program(self) -> Program:
        """Return the program to run."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Return whether the server accepts requests now."""

    @property
    def pid(self) -> int:
        """The pid of the server's main process."""
        if self._process is None:
            raise DidNotStart(f"the server in {self.directory} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the server's process runs."""
        return self._process is not None and self._process.exit_code() is None

    def start(self) -> Self:
        """Start the server and wait until it is ready; raise DidNotStart if it is not in time."""
        if self.running:
            return self
        with self.log.open("ab") as output:
            self._process = GuardedProgram(self.program(), output=output)
        self._wait_until_ready(self._process)
        return self

    def stop(self, *, immediate: bool = False) -> None:
        """Stop the server; `immediate` ends it as a crash would."""
        process, self._process = self._process, None
        if process is None:
            return
        if immediate:
            self._crash(process)
        process.stop()

    @abstractmethod
    def _crash(self, process: GuardedProgram) -> None:
        """End the process without an orderly shutdown."""

    def _wait_until_ready(self, process: GuardedProgram) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while not self.is_ready():
            if process.exit_code() is not None or time.monotonic() > deadline:
                code = process.stop()
                self._process = None
                raise DidNotStart(f"{self.program().argv[0]} (exit code {code}):\n{self._tail()}")
            time.sleep(0.02)

    def _tail(self) -> str:
        with self.log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_TAIL))
            return file.read().decode(errors="replace")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
