"""Log lines about a claimed task on its way to the agent that runs it.

The lines are the same for every way: a dispatcher's message to a pool, a slot that claims for
itself, the idle listener, a pull agent, and a caller that runs the task itself. They are written
after the claim was committed.
"""

from collections.abc import Iterable

from overnight_server.domain.ids import TaskId, show_task
from overnight_server.telemetry import LogEvent, emit, is_logged

AGENT_BUSY = "agent busy"
NOT_STARTED = "timeout"


def log_dispatch(tasks: Iterable[TaskId], agent: str) -> None:
    """Log that tasks were claimed for an agent, or for the workers of a pool."""
    if is_logged(LogEvent.DISPATCH):
        for task_id in tasks:
            emit(LogEvent.DISPATCH, queue_id=show_task(task_id), agent=agent)


def log_dispatch_success(tasks: Iterable[TaskId]) -> None:
    """Log that claimed tasks were handed over."""
    if is_logged(LogEvent.DISPATCH_SUCCESS):
        for task_id in tasks:
            shown = show_task(task_id)
            emit(LogEvent.DISPATCH_SUCCESS, queue_id=shown, task_id=shown)


def log_taken(tasks: Iterable[TaskId], agent: str) -> None:
    """Log tasks that an agent claimed for itself: the claim is also the hand-over."""
    for task_id in tasks:
        log_dispatch([task_id], agent)
        log_dispatch_success([task_id])


def log_dispatch_failed(
    task_id: TaskId, error: str, *, attempt: int, max_attempts: int, is_final: bool = False
) -> None:
    """Log that an agent did not run a task that was claimed for it.

    `attempt` is the one that the run was, or would have been.
    """
    emit(
        LogEvent.DISPATCH_FAILED,
        queue_id=show_task(task_id),
        error=error,
        attempt=f"{attempt}/{max_attempts}",
        final=True if is_final else None,
    )
