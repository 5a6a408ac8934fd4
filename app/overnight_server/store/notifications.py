"""The outbox of notifications: record an event for the channels that are subscribed to it."""

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from overnight_server.domain.notifications import NotificationKind
from overnight_server.store.statements import statement


def record_notification(
    tx: Connection,
    kind: NotificationKind,
    *,
    user_id: UUID | None,
    subject: str,
    task_id: UUID | None = None,
    dag_id: UUID | None = None,
    detail: Mapping[str, Any] | None = None,
) -> int:
    """Record an event in the outbox, for every channel that is subscribed to its kind.

    Call it in the transaction that makes the event: both are committed, or neither. The notifier
    sends the messages later. Return how many there will be; without a subscribed channel nothing is
    written and the call costs one look at an index.

    `subject` names the event among those of this user and kind, such as `<schedule>:<fire time>`; a
    second call with the same subject does nothing, so a caller that repeats its transaction or runs
    twice does no harm. Without a `user_id` the event concerns the operators, and every subscribed
    admin is told; only `worker.lost` is such a kind. Messages about one task, or else one graph,
    reach a channel in the order of these calls. `detail` is what the message says, as plain JSON:
    `title` and `text` are shown first, everything else as lines. What is in it is masked like logs.

    >>> record_notification(
    ...     tx,
    ...     NotificationKind.SCHEDULE_SKIPPED,
    ...     user_id=user_id,
    ...     subject=f"{schedule_id}:{fire_time.isoformat()}",
    ...     detail={"title": "nightly", "reason": "skipped_overlap"},
    ... )  # doctest: +SKIP
    1
    """
    params = {
        "user_id": user_id,
        "kind": kind,
        "subject": subject,
        "task_id": task_id,
        "dag_id": dag_id,
        "detail": json.dumps(detail or {}, default=str),
    }
    return int(tx.execute(statement("record_notification"), params).scalar_one())


def record_morning_report(
    tx: Connection, user_id: UUID, subject: str, detail: Mapping[str, Any] | None = None
) -> int:
    """Record that it is time for a user's report; return how many channels will get it.

    `subject` is the local day (`2026-03-29`) of the daily report, or another name of a report that
    is sent once. The notifier builds the content when it sends it.
    """
    return record_notification(
        tx, NotificationKind.MORNING_REPORT, user_id=user_id, subject=subject, detail=detail
    )


def record_due_reports(tx: Connection, *, limit: int) -> int:
    """Record the reports of users whose time has come; return how many users these are.

    Any number of callers at once record each report once.
    """
    rows = tx.execute(statement("due_reports"), {"limit": limit}).all()
    for row in rows:
        day = row.day.isoformat()
        record_morning_report(tx, row.user_id, day, {"title": day, "day": day})
    return len(rows)
