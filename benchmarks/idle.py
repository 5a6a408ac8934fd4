"""What the whole stack uses while it is idle: processor and memory."""

import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress

import psutil

from benchmarks.deployment import fresh_deployment
from benchmarks.options import Options
from benchmarks.results import BenchmarkResult
from benchmarks.servers import BenchmarkServers
from overnight_server.local.ports import free_port

STACK = ("api", "dispatcher", "worker", "maintenance", "beat", "agent-driver", "notifier", "flower")
MEGABYTE = 1024 * 1024


def measure(options: Options, servers: BenchmarkServers) -> BenchmarkResult:
    """Start every process of the Procfile, wait until it is idle, and measure it."""
    calm, seconds = options.choose((1.0, 3.0), (20.0, 20.0))
    processor: dict[str, list[float]] = defaultdict(list)
    memory: dict[str, list[float]] = defaultdict(list)
    result = BenchmarkResult()
    with fresh_deployment(servers, _settings(options)) as deployment:
        deployment.users(1)
        with deployment.processes(*STACK) as pids:
            time.sleep(calm)
            heads = {**pids, "postgres": servers.postgres.pid, "redis": servers.redis.pid}
            for _ in options.rounds_to_run:
                with servers.watch("overnight"):
                    before = {name: _seconds(_group(pid)) for name, pid in heads.items()}
                    time.sleep(seconds)
                    for name, pid in heads.items():
                        used = _seconds(_group(pid)) - before[name]
                        processor[name].append(used / seconds * 100)
                        memory[name].append(_megabytes(_group(pid)))
    ours = [name for name in processor if name in STACK]
    total = [sum(values) for values in zip(*(processor[name] for name in ours), strict=True)]
    result.figure("overnight", "all our processes", "% of one core", total, "less")
    for name, values in processor.items():
        result.figure(name, "at rest", "% of one core", values, "less")
    for name, values in memory.items():
        result.figure(name, "memory", "MB", values, "less")
    result.ratios["CPU, % of one core"] = result.figures[0].median
    result.ratios["memory of our processes, MB"] = sum(max(memory[name]) for name in ours)
    return result


def _settings(options: Options) -> dict[str, str]:
    ports = {"api_port": str(free_port()), "flower_port": str(free_port())}
    return {**options.settings, **ports, "flower_password": "rest-in-peace"}


def _group(pid: int | None) -> list[psutil.Process]:
    """Return a process and everything below it."""
    head = psutil.Process(pid)
    return [head, *head.children(recursive=True)]


def _seconds(group: Iterable[psutil.Process]) -> float:
    """Add up processor time; children that have ended count with their parent."""
    total = 0.0
    for process in group:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def _megabytes(group: Iterable[psutil.Process]) -> float:
    """Add up what each process has for itself and its part of what it shares."""
    total = 0
    for process in group:
        with suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total / MEGABYTE
