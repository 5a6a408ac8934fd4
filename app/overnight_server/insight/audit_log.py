"""The audit log: who changed what, when, and through which process; newest first."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class AuditPage:
    """Where a page of the audit log begins: up to an instant, without its first `skip` entries.

    An instant alone would lose entries, because all acts of one transaction have the same.
    """

    until: datetime | None = None
    skip: int = 0

    def after(self, entries: Sequence[AuditEntry]) -> "AuditPage":
        """Return where the next page begins after the entries of this one."""
        until = entries[-1].at
        same = sum(entry.at == until for entry in entries)
        return AuditPage(until, same + (self.skip if until == self.until else 0))


FIRST_PAGE = AuditPage()


def list_audit_entries(
    db: Db,
    *,
    user_id: UserId | None = None,
    since: datetime | None = None,
    within: timedelta | None = None,
    act: str = "",
    page: AuditPage = FIRST_PAGE,
    limit: int = 100,
) -> list[AuditEntry]:
    """Return the newest entries about one user or about all, with acts that begin with `act`.

    `since` is an instant and `within` a duration up to now; both narrow the list. `page` continues
    an earlier list.
    """
    params = {
        "user_id": user_id,
        "since": since,
        "within": within,
        "act": act,
        "until": page.until,
        "skip": page.skip,
        "limit": limit,
    }
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
