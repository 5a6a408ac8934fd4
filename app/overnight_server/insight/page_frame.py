"""What the frame of every page of the dashboard shows: the user, and a few figures."""

from dataclasses import dataclass
from datetime import datetime

from overnight_server.domain.ids import UserId
from overnight_server.store.batched_statements import StatementCall
from overnight_server.store.db import Db

#: Dead letters, and tasks that ask for money, are counted up to here.
MOST = 100


@dataclass(frozen=True)
class Frame:
    """The user, and the figures in the header and the navigation.

    `asking` tasks wait for an answer about money; `dead_groups` are the ways in which the `dead`
    letters failed.
    """

    name: str
    plan: str
    zone: str | None
    running: int
    waiting: int
    dead: int
    dead_groups: int
    asking: int
    now: datetime


def read_frame(db: Db, user_id: UserId) -> Frame:
    """Return what the frame of a page shows."""
    [row] = db.run_batch(StatementCall("view_frame", {"user_id": user_id, "most": MOST}))
    return Frame(
        name=row.name,
        plan=row.plan,
        zone=row.window_zone,
        running=row.running,
        waiting=row.waiting,
        dead=row.dead,
        dead_groups=row.dead_groups,
        asking=row.asking,
        now=row.now,
    )
