"""Letting one task in through whichever route it came, with what the log and dispatchers hear."""

from overnight.errors import Refused
from overnight_server import telemetry
from overnight_server.api.http.dependencies import Parts
from overnight_server.control.keys import Caller
from overnight_server.domain.ids import DagId, show_task
from overnight_server.intake.join_graph import join
from overnight_server.intake.submit import Caps, NewTask, Submitted, submit


def accept(parts: Parts, caller: Caller, task: NewTask, dag_id: DagId | None = None) -> Submitted:
    """Queue a task of the caller's; a refusal is logged, and a new task wakes the dispatchers.

    With a graph it becomes one more task of that.
    """
    caps = Caps.of(parts.settings)
    try:
        if dag_id is None:
            submitted = submit(parts.db, caller.user_id, task, caps)
        else:
            submitted = join(parts.db, caller.user_id, dag_id, task, caps)
    except Refused as refusal:
        depth = refusal.details.get("depth", refusal.details.get("pending"))
        telemetry.emit(telemetry.Event.SUBMIT_REJECTED, reason=refusal.code.lower(), depth=depth)
        raise
    if submitted.created:
        telemetry.emit(
            telemetry.Event.TASK_ADDED,
            queue_id=show_task(submitted.task_id),
            depth=submitted.depth,
            source=task.source,
        )
        parts.wake()
    return submitted
