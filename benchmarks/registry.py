"""Which benchmarks there are: every module beside this one that has a `measure()`."""

import importlib
import pkgutil
from collections.abc import Callable
from typing import NamedTuple

import benchmarks
from benchmarks.arena import Arena
from benchmarks.asked import Asked
from benchmarks.outcome import Outcome


class Benchmark(NamedTuple):
    """One measurement: its name, the question it answers, and what to call."""

    name: str
    question: str
    measure: Callable[[Asked, Arena], Outcome]


def found() -> dict[str, Benchmark]:
    """Find them all, in order of name."""
    modules = [
        importlib.import_module(f"benchmarks.{entry.name}")
        for entry in pkgutil.iter_modules(benchmarks.__path__)
        if not entry.ispkg and entry.name != "__main__"
    ]
    known = {
        (name := module.__name__.rpartition(".")[2].replace("_", "-")): Benchmark(
            name, (module.__doc__ or "").partition("\n")[0], module.measure
        )
        for module in modules
        if callable(getattr(module, "measure", None))
    }
    return dict(sorted(known.items()))
