"""Runs a program of ours, or of a task, in a sandbox to its end, and reads what it writes."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from threading import Thread
from typing import Final

from overnight_worker.run_context import RunContext
from overnight_worker.sandbox import SandboxEnd, SandboxKind, SandboxSpec, start_sandbox

READ_BYTES: Final = 1 << 16
MAX_OUTPUT_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class ProgramEnd:
    """How a program ended, and the beginning of what it wrote; no `end`: it took too long."""

    end: SandboxEnd | None
    stdout: bytes
    stderr: bytes

    @property
    def has_succeeded(self) -> bool:
        """Whether it ended with exit code 0."""
        return self.end is not None and self.end.cause == "exit" and self.end.exit_code == 0

    @property
    def last_error(self) -> str:
        """The last line that it wrote to stderr; empty if there is none."""
        lines = self.stderr.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""


def run_program(
    spec: SandboxSpec,
    sandbox_kind: SandboxKind,
    context: RunContext,
    *,
    seconds: float,
    ignored_stops: frozenset[str] = frozenset(),
    log: Callable[[str, bytes], None] | None = None,
) -> ProgramEnd:
    """Run a program to its end, for at most `seconds`.

    A request to stop the run ends the program, and then this raises Stopped; `ignored_stops` are
    the reasons for which it goes on. `log` gets what the program writes, with the stream's name.
    """
    output, errors = bytearray(), bytearray()
    with start_sandbox(spec, sandbox_kind) as sandbox:
        context.on_stop(lambda reason: None if reason in ignored_stops else sandbox.kill())
        readers = [
            Thread(target=_drain, args=(descriptor, into, name, log), daemon=True)
            for descriptor, into, name in (
                (sandbox.stdout, output, "stdout"),
                (sandbox.stderr, errors, "stderr"),
            )
        ]
        for reader in readers:
            reader.start()
        must_stop = context.stop_reason not in {None, *ignored_stops}
        end = None if must_stop else sandbox.wait(seconds)
        sandbox.kill()
        sandbox.wait()
        for reader in readers:
            reader.join()
        context.on_stop(None)
    if context.stop_reason not in ignored_stops:
        context.check()
    return ProgramEnd(end, bytes(output), bytes(errors))


def _drain(
    descriptor: int, into: bytearray, name: str, log: Callable[[str, bytes], None] | None
) -> None:
    """Read a stream to its end, and keep its beginning."""
    while data := os.read(descriptor, READ_BYTES):
        into += data[: MAX_OUTPUT_BYTES - len(into)]
        if log is not None:
            log(name, data)
