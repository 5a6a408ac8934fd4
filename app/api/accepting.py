"""Letting one task in through whichever route it came, with what the log and dispatchers hear."""

from app import telemetry
from app.api.parts import Parts
from app.control.keys import Caller
from app.domain.errors import Refused
from app.domain.ids import show_task
from app.intake.submit import Caps, NewTask, Submitted, submit


def accept(parts: Parts, caller: Caller, task: NewTask) -> Submitted:
    """Queue a task of the caller's; a refusal is logged, and a new task wakes the dispatchers."""
    try:
        submitted = submit(parts.db, caller.user_id, task, Caps.of(parts.settings))
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
        parts.nudge()
    return submitted
