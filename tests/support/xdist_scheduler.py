"""How two processes share the tests (`pytest -n 2`): whole stacks in one, the rest in the other.

Tests of whole stacks start many processes, hold them to times and mostly wait; the others keep one
processor busy. Side by side the two kinds fill a machine of two processors, and no stack ever runs
beside another. Of the rest each file goes to one process, which then makes its servers once.
"""

import os

import pytest
from xdist.scheduler import LoadScopeScheduling

from overnight_server.local import ports

STACKS = "tests/acceptance/"
#: These too start a whole deployment, or judge how busy the machine is.
LIKE_STACKS = frozenset({"tests/integration/test_local_up.py"})


class StackScheduler(LoadScopeScheduling):
    """Gives all tests of whole stacks to one process, and the others file by file."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return STACKS if file.startswith(STACKS) or file in LIKE_STACKS else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> StackScheduler:
    # In the order of collection: the stacks come first and take longest.
    config.option.loadscopereorder = False
    return StackScheduler(config, log)


def _keep_to_our_ports() -> None:
    """Let no two processes look for free ports in the same range."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker:
        count = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        width = (ports.HIGHEST - ports.LOWEST) // count
        ports.LOWEST += width * int(worker.removeprefix("gw"))
        ports.HIGHEST = ports.LOWEST + width


_keep_to_our_ports()
