"""The validation of a run's output: its beginning, and what the next attempt learns from it."""

from overnight.models.validation import FEEDBACK_BYTES, Feedback
from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import TaskId
from overnight_server.domain.lifecycle import LifecycleEvent, sources, target
from overnight_server.domain.validation import INVALID_OUTPUT
from overnight_server.store.batched_statements import StatementCall
from overnight_server.store.db import Db


def begin_validation(db: Db, claim: Claim) -> bool:
    """Move a run whose output is to be validated to `validating`; False if its claim is lost.

    The claim, its lease and its hours go on.
    """
    params = {
        "task_id": claim.task_id,
        "epoch": claim.epoch,
        "token": claim.token,
        "sources": sources(LifecycleEvent.CHECK),
        "target": target(LifecycleEvent.CHECK),
    }
    return bool(db.run_batch(StatementCall("begin_validation", params)))


def latest_feedback(db: Db, task_id: TaskId) -> Feedback | None:
    """Return why the latest rejected output of a task was rejected; None if none was."""
    params = {
        "task_id": task_id,
        "error_class": INVALID_OUTPUT,
        "characters": FEEDBACK_BYTES,
    }
    rows = db.run_batch(StatementCall("latest_rejection", params))
    return Feedback(**_clipped(rows[0])) if rows else None


def _clipped(row: object) -> dict[str, object]:
    fields = {name: getattr(row, name) for name in Feedback.model_fields}
    output = fields["output"]
    if output is not None:
        fields["output"] = output.encode()[:FEEDBACK_BYTES].decode(errors="ignore")
    return fields
