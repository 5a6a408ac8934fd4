"""How long a command takes to start and end in each kind of sandbox, against a bare process."""

import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

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

BARE = "bare process"
COMMAND = ("true",)


def measure(options: Options, servers: BenchmarkServers) -> BenchmarkResult:
    """Start and end the same command bare and in each sandbox, in turns."""
    starts = options.choose(10, 50)
    times: defaultdict[str, list[float]] = defaultdict(list)
    result = BenchmarkResult()
    with tempfile.TemporaryDirectory(prefix="overnight-bench-", dir="/var/tmp") as parent:
        # A root worker's sandbox has another user, who must enter the directory.
        Path(parent).chmod(0o711)
        workspace = create_workspace(Path(parent))
        contestants: dict[str, Callable[[], None]] = {BARE: _run_bare}
        for probe in probe_all_kinds():
            if probe.usable:
                name = f"{probe.kind} sandbox"
                contestants[name] = _sandbox_runner(probe.kind, workspace)
            else:
                result.notes.append(f"no {probe.kind} sandbox here: {probe.reason}")
        for _ in options.rounds_to_run:
            for name, run in contestants.items():
                with servers.watch(name):
                    times[name].append(_mean_ms(run, starts))
        remove_workspace(workspace)
    for name, values in times.items():
        result.figure(name, "start and end of `true`", "ms", values, better="less")
        if name != BARE:
            result.ratio(f"{name} / {BARE}", values, times[BARE])
    return result


def _mean_ms(run: Callable[[], None], count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - began) / count * 1000


def _run_bare() -> None:
    subprocess.run(COMMAND, check=True)


def _sandbox_runner(sandbox_kind: SandboxKind, workspace: Path) -> Callable[[], None]:
    spec = SandboxSpec(argv=COMMAND, workspace=workspace)

    def run() -> None:
        with start_sandbox(spec, sandbox_kind) as sandbox:
            sandbox.wait()

    return run
