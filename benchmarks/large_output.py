"""What a command that prints a gigabyte costs: memory of its worker, room in Postgres, and time."""

import time
from contextlib import suppress

import psutil

from benchmarks.deployment import DRAINERS, BenchmarkDeployment, fresh_deployment
from benchmarks.options import Options
from benchmarks.results import BenchmarkResult
from benchmarks.servers import BenchmarkServers
from overnight.models.enums import PlanTier
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import NewTask
from overnight_server.intake.submit import submit_graph
from overnight_worker.sandbox import probe_all_kinds

LINE = "read page 17 of the catalogue, found 12 links, 3 of them new, none broken"
MEGABYTE = 1 << 20
LOOK_SECONDS = 0.05
LONGEST_SECONDS = 600.0


def measure(options: Options, servers: BenchmarkServers) -> BenchmarkResult:
    """Let a command print, watch the memory of its worker, and measure what was kept."""
    size_mb = options.choose(32, 1024)
    growth: list[float] = []
    kept: list[float] = []
    seconds: list[float] = []
    result = BenchmarkResult()
    if not any(probe.usable for probe in probe_all_kinds()):
        result.notes.append("not measured: this machine can make no sandbox")
        return result
    for _ in options.rounds_to_run:
        with (
            fresh_deployment(servers, dict(options.settings)) as deployment,
            deployment.processes(*DRAINERS) as pids,
            servers.watch("overnight"),
        ):
            grown, took = _print_much(deployment, pids["worker"], size_mb)
            growth.append(grown)
            seconds.append(took)
            sql = "SELECT coalesce(sum(octet_length(text)), 0) AS n FROM log_chunks"
            kept.append(int(deployment.one(sql)["n"]) / MEGABYTE)
    what = f"{size_mb} MB of stdout"
    result.figure("overnight", f"{what}, more memory of the worker", "MB", growth, "less")
    result.figure("overnight", f"{what}, kept in Postgres", "MB", kept, "less")
    result.figure("overnight", f"{what}, from submit to end", "s", seconds, "less")
    result.ratios["a gigabyte of stdout, MB more memory of the worker"] = max(growth)
    result.ratios["a gigabyte of stdout, MB kept in Postgres"] = max(kept)
    return result


def _print_much(deployment: BenchmarkDeployment, worker: int, size_mb: int) -> tuple[float, float]:
    """Run the command; return by how many MB its worker grew, and the seconds until its end."""
    [user] = deployment.users(1, PlanTier.ENTERPRISE)
    processes = [psutil.Process(worker), *psutil.Process(worker).children(recursive=True)]
    before = most = _resident_mb(processes)
    began_at = time.monotonic()
    submit_graph(deployment.app, user, [_task(size_mb)], Caps())
    while deployment.open_tasks():
        if time.monotonic() - began_at > LONGEST_SECONDS:
            raise TimeoutError(f"the command did not end within {LONGEST_SECONDS:g} s")
        most = max(most, _resident_mb(processes))
        time.sleep(LOOK_SECONDS)
    took = time.monotonic() - began_at
    ended = deployment.one("SELECT state, error FROM tasks")
    if ended["state"] != "completed":
        raise RuntimeError(f"the command ended as {ended['state']}: {ended['error']}")
    return most - before, took


def _task(size_mb: int) -> NewTask:
    script = f"yes '{LINE}' | head -c {size_mb * MEGABYTE}"
    execution: dict[str, object] = {"agent": None, "argv": ["sh", "-c", script], "env": {}}
    return NewTask(
        "print much",
        "command",
        execution={**execution, "network": None, "limits": None},
        required_capabilities=("runner:command",),
        max_attempts=1,
    )


def _resident_mb(processes: list[psutil.Process]) -> float:
    """Add up the memory of the worker's own processes, without those of the sandbox."""
    total = 0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total / MEGABYTE
