"""Wait for a task, showing each new state on a terminal."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from overnight_server.cli.terminal import output, short_ids, task_output

if TYPE_CHECKING:
    from overnight import Client, Task

    ShowTask = Callable[[Task], None]

T = TypeVar("T")
POLL_SECONDS = 1.0
# A restart of the server must not end a wait that lasts all night.
RETRY_SECONDS = 60.0
TRANSIENT_STATUSES = frozenset({429, 502, 503, 504})
MOST_LISTED = 10


def wait_and_show(client: "Client", task_id: str, timeout: float, *, as_json: bool) -> None:
    """Wait for a task and print it; raise TaskFailed or WaitTimedOut if it did not complete."""
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
    """Return the task once it has ended; raise WaitTimedOut, which carries the task, if late."""
    with resume_advice([task_id]), _state_display() as show:
        return _wait_until_final(client, task_id, timeout, show)


@contextmanager
def resume_advice(waited_for: Sequence[str]) -> Iterator[None]:
    """Print how to wait again for what has not ended, when the wait is interrupted or fails.

    The caller may remove ids from the list during the wait. After Ctrl-C the advice is printed at
    once; an error carries it as notes, without the id that the error itself reports.
    """
    from overnight.errors import DagWaitTimedOut, OvernightError, WaitTimedOut

    try:
        yield
    except KeyboardInterrupt:
        for advice in _advice(waited_for):
            output.note(advice)
        raise
    except (WaitTimedOut, DagWaitTimedOut) as late:
        reported = late.task.id if isinstance(late, WaitTimedOut) else late.dag.id
        _add_notes(late, [waited for waited in waited_for if waited != reported])
        raise
    except OvernightError as error:
        _add_notes(error, waited_for)
        raise


def _add_notes(error: Exception, ids: Sequence[str]) -> None:
    for advice in _advice(ids):
        error.add_note(advice)


def _advice(ids: Sequence[str]) -> Iterator[str]:
    """Yield for each task and graph the command that waits for it again."""
    for waited in ids[:MOST_LISTED]:
        is_dag = waited.startswith(short_ids.DAG_PREFIX)
        command = f"overnight dag show {waited} --watch" if is_dag else f"overnight wait {waited}"
        yield f"{waited} is still in progress; continue waiting with `{command}`."
    if len(ids) > MOST_LISTED:
        yield f"{len(ids) - MOST_LISTED} more are in progress; `overnight list` shows them."


def _wait_until_final(
    client: "Client", task_id: str, timeout: float, show: "ShowTask | None"
) -> "Task":
    from overnight.errors import WaitTimedOut

    deadline = time.monotonic() + timeout
    # The first request is not retried: a server that does not respond now is most likely not there.
    task = client.tasks.get(task_id)
    while not task.is_final:
        if show is not None:
            show(task)
        left = deadline - time.monotonic()
        if left <= 0:
            raise WaitTimedOut(task, timeout)
        # The long poll returns only at the end; a display also needs the states before it.
        task = _poll(client, task_id, left if show is None else min(left, POLL_SECONDS))
    if show is not None:
        show(task)
    return task


def _poll(client: "Client", task_id: str, seconds: float) -> "Task":
    """Return the task once it has ended, or its current state after `seconds`."""
    from overnight.errors import WaitTimedOut

    def request() -> "Task":
        try:
            return client.tasks.wait(task_id, timeout=seconds, poll=POLL_SECONDS, check=False)
        except WaitTimedOut as late:
            return late.task

    return retry_while_unavailable(request)


def retry_while_unavailable(request: Callable[[], T]) -> T:
    """Return the result of the request, repeated for a minute while the server is unavailable."""
    from overnight.errors import Refused, Unreachable

    give_up_at = time.monotonic() + RETRY_SECONDS
    while True:
        try:
            return request()
        except (Unreachable, Refused) as error:
            is_transient = isinstance(error, Unreachable) or error.status in TRANSIENT_STATUSES
            if not is_transient or time.monotonic() >= give_up_at:
                raise
            time.sleep(POLL_SECONDS)


@contextmanager
def _state_display() -> "Iterator[ShowTask | None]":
    """Yield a function that shows the state of the task; None if stderr is no terminal."""
    if not output.is_terminal(sys.stderr):
        yield None
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    states: list[str] = []
    with console.status("waiting") as status:

        def show(task: "Task") -> None:
            state = _state_line(task)
            if states[-1:] != [state]:
                states.append(state)
                console.print(f"{task.id} {state}", highlight=False, markup=False)
            status.update(Text(output.printable(_status_line(task))))

        yield show


def _state_line(task: "Task") -> str:
    """Return the state of a task and, if it runs or has run, which attempt it is."""
    is_held = task.state in ("claimed", *task_output.RUNNING)
    # Attempts are counted when they end; the current one is not among them.
    attempt = task.attempts + 1 if is_held else task.attempts
    if not attempt or not (is_held or task.is_final):
        return task.state
    return f"{task.state}, attempt {attempt} of {task.max_attempts}"


def _status_line(task: "Task") -> str:
    if task.queue_position is not None:
        return f"{task.state}, position {task.queue_position}"
    progress = None if task.is_final else task_output.progress_text(task.progress)
    return f"{_state_line(task)}, {progress}" if progress else _state_line(task)
