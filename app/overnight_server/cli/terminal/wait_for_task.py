"""Waiting for a task where a person can see it: each new state, and a sign of life between."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from overnight_server.cli.terminal import output, short_ids, task_output

if TYPE_CHECKING:
    from overnight import Client, Task

    Shown = Callable[[Task], None]

T = TypeVar("T")
LONGEST_PAUSE = 1.0
# A server that restarts must not end a wait that lasts all night.
PATIENCE = 60.0
PASSING_STATUSES = frozenset({429, 502, 503, 504})
# More of them than fit on a screen help nobody.
MOST_NAMED = 10


def wait_and_show(client: "Client", task_id: str, timeout: float, *, as_json: bool) -> None:
    """Wait for a task and print how it ended; TaskFailed or WaitTimedOut if not as hoped."""
    from overnight.errors import TaskFailed, WaitTimedOut

    try:
        task = wait(client, task_id, timeout)
    except WaitTimedOut as error:
        if as_json:
            task_output.show_task(error.task, as_json=True)
        raise
    task_output.show_task(task, as_json=as_json)
    if task.state != "completed":
        raise TaskFailed(task)


def wait(client: "Client", task_id: str, timeout: float) -> "Task":
    """Return the task once it has ended; WaitTimedOut carries how it stood at the end."""
    with breaking_off([task_id]), _shown() as show:
        return _until_ended(client, task_id, timeout, show)


@contextmanager
def breaking_off(waited_for: Sequence[str]) -> Iterator[None]:
    """Name what goes on when a wait for it breaks off, or its ids would be lost.

    The list may shrink meanwhile. Whoever interrupts is told at once; an error carries the
    advice along, except for the one that it names itself.
    """
    from overnight.errors import DagWaitTimedOut, OvernightError, WaitTimedOut

    try:
        yield
    except KeyboardInterrupt:
        for advice in _taking_up(waited_for):
            output.note(advice)
        raise
    except (WaitTimedOut, DagWaitTimedOut) as late:
        named = late.task.id if isinstance(late, WaitTimedOut) else late.dag.id
        _advise(late, [one for one in waited_for if one != named])
        raise
    except OvernightError as error:
        _advise(error, waited_for)
        raise


def _advise(error: Exception, ids: Sequence[str]) -> None:
    for advice in _taking_up(ids):
        error.add_note(advice)


def _taking_up(ids: Sequence[str]) -> Iterator[str]:
    """Say for each task and graph how to wait for it again."""
    for one in ids[:MOST_NAMED]:
        is_dag = one.startswith(short_ids.DAG_PREFIX)
        command = f"overnight dag show {one} --watch" if is_dag else f"overnight wait {one}"
        yield f"{one} goes on; `{command}` takes up the wait again."
    if len(ids) > MOST_NAMED:
        yield f"So do {len(ids) - MOST_NAMED} more; `overnight list` shows them."


def _until_ended(client: "Client", task_id: str, timeout: float, show: "Shown | None") -> "Task":
    from overnight.errors import WaitTimedOut

    deadline = time.monotonic() + timeout
    # At the first look a silent server is most likely not there at all.
    task = client.tasks.get(task_id)
    while not task.is_final:
        if show is not None:
            show(task)
        left = deadline - time.monotonic()
        if left <= 0:
            raise WaitTimedOut(task, timeout)
        # The end is told at once; whoever looks also wants to see what happens before it.
        task = _look_again(client, task_id, left if show is None else min(left, LONGEST_PAUSE))
    if show is not None:
        show(task)
    return task


def _look_again(client: "Client", task_id: str, seconds: float) -> "Task":
    """Return the task once it has ended, or as it stands after so many seconds."""
    from overnight.errors import WaitTimedOut

    def look() -> "Task":
        try:
            return client.tasks.wait(task_id, timeout=seconds, poll=LONGEST_PAUSE, check=False)
        except WaitTimedOut as late:
            return late.task

    return patiently(look)


def patiently(look: Callable[[], T]) -> T:
    """Look again and again while a server that was there is away for a moment."""
    from overnight.errors import Refused, Unreachable

    patient_until = time.monotonic() + PATIENCE
    while True:
        try:
            return look()
        except (Unreachable, Refused) as error:
            passing = isinstance(error, Unreachable) or error.status in PASSING_STATUSES
            if not passing or time.monotonic() >= patient_until:
                raise
            time.sleep(LONGEST_PAUSE)


@contextmanager
def _shown() -> "Iterator[Shown | None]":
    """Give a function that shows how the task stands; None unless a person looks."""
    if not output.is_terminal(sys.stderr):
        yield None
        return
    from rich.console import Console

    console = Console(stderr=True)
    seen: list[str] = []
    with console.status("waiting") as status:

        def show(task: "Task") -> None:
            if seen[-1:] != [task.state]:
                seen.append(task.state)
                console.print(f"{task.id} {task.state}", highlight=False, markup=False)
            status.update(_standing(task))

        yield show


def _standing(task: "Task") -> str:
    if task.queue_position is not None:
        return f"{task.state}, position {task.queue_position}"
    return f"{task.state}, attempt {task.attempts + 1} of {task.max_attempts}"
