"""The audit log: who changed what, when, and through which process; newest first."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from uuid import UUID

from overnight.models.admin import AuditEntry
from overnight_server.domain.ids import UserId, show_bulk, show_task, show_trigger
from overnight_server.mask import mask_value
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

#: How the id in `target` is written, by the part of the act's name before the dot.
FORMAT_TARGET: Mapping[str, Callable[[UUID], str]] = {
    "bulk": show_bulk,
    "dead_letter": show_task,
    "task": show_task,
    "trigger": show_trigger,
}


def list_audit_entries(
    db: Db,
    *,
    user_id: UserId | None = None,
    since: datetime | None = None,
    within: timedelta | None = None,
    limit: int = 100,
) -> list[AuditEntry]:
    """Return the newest entries about one user or about all.

    `since` is an instant and `within` a duration up to now; both narrow the list.
    """
    params = {"user_id": user_id, "since": since, "within": within, "limit": limit}
    rows = db.atomically(lambda tx: tx.execute(statement("view_audit"), params).mappings().all())
    return [
        AuditEntry(
            **{
                **row,
                "target": _format_target(row["act"], row["target"]),
                "detail": mask_value("detail", row["detail"]),
            }
        )
        for row in rows
    ]


def _format_target(act: str, target: str) -> str:
    show = FORMAT_TARGET.get(act.partition(".")[0])
    return target if show is None else show(UUID(target))
