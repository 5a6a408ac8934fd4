"""Runs a program of ours, or of a task, in a sandbox to its end, and reads what it writes."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Thread
from typing import Final

from overnight_server.domain.execution import EffectiveLimits
from overnight_worker.connection_report import connection_report
from overnight_worker.pool_guard import POOL_GUARD
from overnight_worker.run_context import RunContext
from overnight_worker.sandbox import (
    SandboxEnd,
    SandboxKind,
    SandboxLimits,
    SandboxSpec,
    start_sandbox,
)

READ_BYTES: Final = 1 << 16
MAX_OUTPUT_BYTES: Final = 1 << 20
# How much processor time one process may use, as a multiple of the time of its run.
CPU_SHARE: Final = 2
TAIL_BYTES: Final = 1 << 16


@dataclass(frozen=True)
class ProgramEnd:
    """How a program ended, and what it wrote; no `end`: it took too long.

    `stdout` is the beginning of its output, at most MAX_OUTPUT_BYTES. `stdout_tail` and
    `stderr_tail` are the last TAIL_BYTES of both streams.
    """

    end: SandboxEnd | None
    stdout: bytes
    stdout_tail: bytes
    stderr_tail: bytes

    @property
    def has_succeeded(self) -> bool:
        """Whether it ended with exit code 0."""
        return self.end is not None and self.end.cause == "exit" and self.end.exit_code == 0

    @property
    def last_error(self) -> str:
        """The last line that it wrote to stderr; empty if there is none."""
        lines = self.stderr_tail.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""


@dataclass(frozen=True)
class _KeptOutput:
    """What is kept of one stream of a program."""

    name: str
    beginning: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)

    def read(self, descriptor: int, log: Callable[[str, bytes], None] | None) -> None:
        """Read the stream to its end; a program that writes faster than this waits."""
        while data := os.read(descriptor, READ_BYTES):
            self.beginning.extend(data[: MAX_OUTPUT_BYTES - len(self.beginning)])
            self.tail.extend(data)
            del self.tail[:-TAIL_BYTES]
            if log is not None:
                log(self.name, data)


def sandbox_limits(limits: EffectiveLimits, granted_seconds: float) -> SandboxLimits:
    """Return what the processes of a task's sandbox may use in a run of this length.

    A file may fill the workspace.
    """
    return SandboxLimits(
        memory_mb=limits.memory_mb,
        processes=limits.processes,
        workspace_mb=limits.workspace_mb,
        file_mb=limits.workspace_mb,
        cpu_seconds=max(1, round(CPU_SHARE * granted_seconds)),
    )


def _discard(descriptor: int) -> None:
    """Read a stream to its end: a program whose pipe is full would wait for ever."""
    while os.read(descriptor, READ_BYTES):
        pass


def run_program(
    spec: SandboxSpec,
    sandbox_kind: SandboxKind,
    context: RunContext,
    *,
    seconds: float,
    ignored_stops: frozenset[str] = frozenset(),
    log: Callable[[str, bytes], None] | None = None,
) -> ProgramEnd:
    """Run a program to its end, for at most `seconds`; the events that it writes are discarded.

    A request to stop the run ends the program, and then this raises Stopped; `ignored_stops` are
    the reasons for which it goes on. `log` gets what the program writes, with the stream's name.
    """
    stdout, stderr = _KeptOutput("stdout"), _KeptOutput("stderr")
    report = connection_report(context)
    with start_sandbox(spec, sandbox_kind, report=report) as sandbox:
        POOL_GUARD.leave_out(sandbox.pid)
        context.on_stop(lambda reason: None if reason in ignored_stops else sandbox.kill())
        readers: list[Thread] = []
        try:
            for read, arguments in (
                (stdout.read, (sandbox.stdout, log)),
                (stderr.read, (sandbox.stderr, log)),
                (_discard, (sandbox.events,)),
            ):
                reader = Thread(target=read, args=arguments, daemon=True)
                reader.start()
                readers.append(reader)
            must_stop = context.stop_reason not in {None, *ignored_stops}
            end = None if must_stop else sandbox.wait(seconds)
        finally:
            sandbox.kill()
            sandbox.wait()
            for reader in readers:
                reader.join()
            context.on_stop(None)
    if context.stop_reason not in ignored_stops:
        context.check()
    return ProgramEnd(end, bytes(stdout.beginning), bytes(stdout.tail), bytes(stderr.tail))
