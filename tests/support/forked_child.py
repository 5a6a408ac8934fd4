"""Run a function in a forked child process, like one of a worker's pool."""

import os
from collections.abc import Callable

from billiard.process import current_process


def run_in_forked_child(work: Callable[[], object], *, place: int = 0) -> None:
    """Run `work` in a forked child with this index in the pool, and wait for its end."""
    pid = os.fork()
    if pid == 0:
        try:
            # billiard numbers the processes of a pool with an attribute that has no type.
            setattr(current_process(), "index", place)  # noqa: B010
            work()
        finally:
            os._exit(1)
    os.waitpid(pid, 0)
