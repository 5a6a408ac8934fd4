"""The places of the navigation, in their order, and what the frame of each page shows."""

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from overnight_server.domain.ids import UserId
from overnight_server.store.batched_statements import StatementCall
from overnight_server.store.db import Db

#: Dead letters are counted up to here.
MOST = 100


class Place(NamedTuple):
    """A link of the navigation; its sign is the symbol `i-<name>` of the sprite."""

    name: str
    label: str
    path: str
    group: str = ""


#: A place is shown once a screen with its name exists, and to admins only if the screen is theirs.
PLACES = (
    Place("morning", "Morning", "/"),
    Place("tasks", "Tasks", "/tasks"),
    Place("graphs", "Graphs", "/graphs"),
    Place("queue", "Queue", "/queue"),
    Place("dead", "Dead letters", "/dead"),
    Place("approvals", "Approvals", "/approvals"),
    Place("limits", "Limits and usage", "/limits", "Plan"),
    Place("locks", "Locks", "/locks", "Plan"),
    Place("schedules", "Schedules", "/schedules", "Plan"),
    Place("notifications", "Notifications", "/notifications", "Plan"),
    Place("bulk", "Bulk operations", "/bulk", "Plan"),
    Place("workers", "Agents and workers", "/workers", "System"),
    Place("fairness", "Fairness", "/fairness", "System"),
    Place("audit", "Audit", "/audit", "System"),
    Place("users", "Users", "/users", "System"),
    Place("keys", "Keys", "/keys", "System"),
)


@dataclass(frozen=True)
class Frame:
    """The user, and the figures in the header and the navigation."""

    name: str
    plan: str
    zone: str | None
    running: int
    waiting: int
    dead: int
    now: datetime

    @property
    def marks(self) -> dict[str, str]:
        """The numbers beside places that a person should act on or expects."""
        figures = {"queue": self.waiting, "dead": self.dead}
        return {place: _capped(number) for place, number in figures.items() if number}


def read_frame(db: Db, user_id: UserId) -> Frame:
    """Return what the frame of a page shows."""
    [row] = db.run_batch(StatementCall("view_frame", {"user_id": user_id, "most": MOST}))
    return Frame(row.name, row.plan, row.window_zone, row.running, row.waiting, row.dead, row.now)


def _capped(number: int) -> str:
    return f"{number:,}" if number < MOST else f"{number:,}+" if number == MOST else f"{number:,}"
