"""What people did, to whom and through which door: the trail, newest first."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field

from overnight_server.domain.ids import UserId, show_bulk, show_task, show_trigger
from overnight_server.mask import mask_value
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

#: What an act is done to, by the first word of its name, as people see its id everywhere else.
SHOWN: Mapping[str, Callable[[UUID], str]] = {
    "bulk": show_bulk,
    "dead_letter": show_task,
    "task": show_task,
    "trigger": show_trigger,
}


@dataclass(frozen=True)
class Act:
    """One act: `actor` is `user:<id>` behind a key or a token, or `human:<name>` at a terminal.

    `user` is whom it concerns, None if everybody; `detail` holds what was changed, as it was and
    as it is.
    """

    at: Annotated[datetime, Field(description="When it was done.")]
    actor: Annotated[str, Field(description="Who did it: user: and an id, or human: and a name.")]
    via: Annotated[str, Field(description="Through which process.")]
    key_id: Annotated[str | None, Field(description="The key that was shown, if one was.")]
    act: Annotated[str, Field(description="What was done.")]
    user: Annotated[str | None, Field(description="Whom it concerns; null is everybody.")]
    target: Annotated[str, Field(description="What it was done to.")]
    detail: Annotated[
        dict[str, Any], Field(description="What was changed, as it was and as it is.")
    ]


def list_acts(
    db: Db,
    *,
    user_id: UserId | None = None,
    since: datetime | None = None,
    within: timedelta | None = None,
    limit: int = 100,
) -> list[Act]:
    """Return what was done last, to one user or to all: since an instant, or within a time."""
    asked = {"user_id": user_id, "since": since, "within": within, "limit": limit}
    rows = db.atomically(lambda tx: tx.execute(statement("view_audit"), asked).mappings().all())
    return [
        Act(
            **{
                **row,
                "target": _shown(row["act"], row["target"]),
                "detail": mask_value("detail", row["detail"]),
            }
        )
        for row in rows
    ]


def _shown(act: str, target: str) -> str:
    show = SHOWN.get(act.partition(".")[0])
    return target if show is None else show(UUID(target))
