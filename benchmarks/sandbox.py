"""How long a command takes to start and to end in each kind of sandbox, against a bare process."""

import os
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.options import Options
from benchmarks.results import BenchmarkResult
from benchmarks.servers import BenchmarkServers
from overnight_worker.sandbox import (
    SandboxKind,
    SandboxSpec,
    create_workspace,
    probe_all_kinds,
    remove_workspace,
    start_sandbox,
)

BARE: Final = "bare process"
# Its first byte shows that it has started.
COMMAND: Final = ("echo",)
START: Final = "start, until `echo` writes"
END: Final = "end, from there until no process is left"


class CommandTimes(NamedTuple):
    """How long the start and the end of one command, or the median of several, took."""

    start_ms: float
    end_ms: float


def measure(options: Options, servers: BenchmarkServers) -> BenchmarkResult:
    """Start and end the same command bare and in each sandbox, in turns."""
    commands = options.choose(10, 50)
    times: defaultdict[str, list[CommandTimes]] = defaultdict(list)
    result = BenchmarkResult()
    with tempfile.TemporaryDirectory(prefix="overnight-bench-", dir="/var/tmp") as parent:
        # A root worker's sandbox has another user, who must enter the directory.
        Path(parent).chmod(0o711)
        workspace = create_workspace(Path(parent))
        contestants: dict[str, Callable[[], CommandTimes]] = {BARE: _run_bare}
        for probe in probe_all_kinds():
            if probe.usable:
                name = f"{probe.kind} sandbox"
                contestants[name] = _sandbox_runner(probe.kind, workspace)
            else:
                result.notes.append(f"no {probe.kind} sandbox here: {probe.reason}")
        for _ in options.rounds_to_run:
            for name, run in contestants.items():
                with servers.watch(name):
                    times[name].append(_medians([run() for _ in range(commands)]))
        remove_workspace(workspace)
    bare_starts = [each.start_ms for each in times[BARE]]
    for name, rounds in times.items():
        starts = [each.start_ms for each in rounds]
        result.figure(name, START, "ms", starts, better="less")
        result.figure(name, END, "ms", [each.end_ms for each in rounds], better="less")
        if name != BARE:
            result.ratio(f"{name} / {BARE}", starts, bare_starts)
    return result


def _medians(times: Sequence[CommandTimes]) -> CommandTimes:
    return CommandTimes(*(statistics.median(values) for values in zip(*times, strict=True)))


def _run_bare() -> CommandTimes:
    began = time.perf_counter()
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        started = time.perf_counter()
    return _times(began, started)


def _sandbox_runner(sandbox_kind: SandboxKind, workspace: Path) -> Callable[[], CommandTimes]:
    spec = SandboxSpec(argv=COMMAND, workspace=workspace)

    def run() -> CommandTimes:
        began = time.perf_counter()
        with start_sandbox(spec, sandbox_kind) as sandbox:
            os.read(sandbox.stdout, 1)
            started = time.perf_counter()
            sandbox.wait()
        return _times(began, started)

    return run


def _times(began: float, started: float) -> CommandTimes:
    """Return the times of a command that has just ended."""
    return CommandTimes((started - began) * 1000, (time.perf_counter() - started) * 1000)
