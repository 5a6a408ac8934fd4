"""Divides the tests between two processes (`pytest -n 2`): whole stacks in one, the rest elsewhere.

Tests of whole stacks start many processes, have time limits and mostly wait; the other tests keep
one processor busy. Together they use a machine with two processors fully, and no two stacks run at
the same time. Each file of the other tests goes to one process, which starts its servers once.
"""

import os

import pytest
from xdist.scheduler import LoadScopeScheduling

from overnight_server.local import ports

STACKS = "tests/acceptance/"
#: These also start a whole deployment, or measure the load of the machine.
LIKE_STACKS = frozenset({"tests/integration/test_local_up.py"})


class StackScheduler(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types
    """Gives all tests of whole stacks to one process, and the others by file."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return STACKS if file.startswith(STACKS) or file in LIKE_STACKS else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> StackScheduler:
    # Keep the order of collection: the stacks come first and take longest.
    config.option.loadscopereorder = False
    return StackScheduler(config, log)


def _divide_ports() -> None:
    """Give each process its own range in which it looks for free ports."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker:
        count = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        width = (ports.HIGHEST - ports.LOWEST) // count
        ports.LOWEST += width * int(worker.removeprefix("gw"))
        ports.HIGHEST = ports.LOWEST + width


_divide_ports()
