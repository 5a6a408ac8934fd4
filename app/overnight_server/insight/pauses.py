"""What is paused, by whom, since when and why."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from overnight_server.domain.ids import UserId
from overnight_server.domain.pauses import Scope
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


@dataclass(frozen=True)
class PauseView:
    """One pause in force; `target` is the user's or the pool's name, None for everything."""

    scope: str
    target: str | None
    note: str | None
    paused_by: str
    paused_at: datetime

    @property
    def message(self) -> str:
        """Say it in one line."""
        what = {
            Scope.USER.value: "the user is",
            Scope.POOL.value: f"the pool {self.target} is",
            Scope.ALL.value: "everything is",
        }[self.scope]
        since = f"{self.paused_at:%Y-%m-%d %H:%MZ}"
        return f"{what} paused since {since}" + (f": {self.note}" if self.note else "")


def list_pauses(db: Db) -> list[PauseView]:
    """Return every pause in force, the oldest first."""
    return db.atomically(pauses_of)


def pauses_of(tx: Connection, user_id: UserId | None = None) -> list[PauseView]:
    """Return the pauses that keep a user waiting, or all of them."""
    rows = tx.execute(statement("view_pauses"), {"user_id": user_id}).mappings()
    return [PauseView(**row) for row in rows]
