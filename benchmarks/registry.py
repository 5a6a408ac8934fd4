"""Which benchmarks there are: every module beside this one that has a `measure()`."""

import importlib
import pkgutil
from collections.abc import Callable
from typing import NamedTuple

import benchmarks
from benchmarks.options import Options
from benchmarks.results import BenchmarkResult
from benchmarks.servers import BenchmarkServers


class Benchmark(NamedTuple):
    """One measurement: its name, the question it answers, and what to call."""

    name: str
    question: str
    measure: Callable[[Options, BenchmarkServers], BenchmarkResult]


def all_benchmarks() -> dict[str, Benchmark]:
    """Return every benchmark by name: each module here that has a `measure()`."""
    modules = [
        importlib.import_module(f"benchmarks.{entry.name}")
        for entry in pkgutil.iter_modules(benchmarks.__path__)
        if not entry.ispkg and entry.name != "__main__"
    ]
    by_name = {
        (name := module.__name__.rpartition(".")[2].replace("_", "-")): Benchmark(
            name, (module.__doc__ or "").partition("\n")[0], module.measure
        )
        for module in modules
        if callable(getattr(module, "measure", None))
    }
    return dict(sorted(by_name.items()))
