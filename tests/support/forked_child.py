"""Processes that do something and are gone, like those of a pool."""

import os
from collections.abc import Callable

from billiard.process import current_process


def run_in_forked_child(work: Callable[[], object], *, place: int = 0) -> None:
    """Do something in a child that has a place in a pool, and see it gone."""
    pid = os.fork()
    if pid == 0:
        try:
            current_process().index = place
            work()
        finally:
            os._exit(1)
    os.waitpid(pid, 0)
