"""Run the benchmarks by name, or all of them: `python -m benchmarks [--list] [NAME …]`."""

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import benchmarks


class Benchmark(NamedTuple):
    """One measurement: its name, the question it answers, and what to call."""

    name: str
    question: str
    run: Callable[[], None]


def found() -> list[Benchmark]:
    """Find every module beside this one that has a `main()`, in order of name."""
    modules = (
        importlib.import_module(f"benchmarks.{entry.name}")
        for entry in pkgutil.iter_modules(benchmarks.__path__)
        if entry.name != "__main__"
    )
    return [
        Benchmark(
            name=module.__name__.rpartition(".")[2],
            question=(module.__doc__ or "").partition("\n")[0],
            run=module.main,
        )
        for module in modules
        if callable(getattr(module, "main", None))
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """List or run the benchmarks asked for; answer with the exit code."""
    known = {benchmark.name: benchmark for benchmark in found()}
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which to run; all if none")
    parser.add_argument("--list", action="store_true", help="say what there is, run nothing")
    asked = parser.parse_args(arguments)
    unknown = [name for name in asked.names if name not in known]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there is: {', '.join(known) or 'none'}")
    if not known:
        print("There are no benchmarks yet.")
    for name in asked.names or known:
        print(f"{name}: {known[name].question}", flush=True)
        if not asked.list:
            known[name].run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
