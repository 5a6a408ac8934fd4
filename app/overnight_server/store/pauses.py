"""Pauses in force, as the insight pages and explain read them."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from overnight_server.domain.ids import UserId
from overnight_server.domain.pauses import Scope
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
        """Return the pause as one line for people."""
        what = {
            Scope.USER.value: "the user is",
            Scope.POOL.value: f"the pool {self.target} is",
            Scope.ALL.value: "everything is",
        }[self.scope]
        since = f"{self.paused_at:%Y-%m-%d %H:%MZ}"
        return f"{what} paused since {since}" + (f": {self.note}" if self.note else "")


def pauses_in_force(tx: Connection, user_id: UserId | None = None) -> list[PauseView]:
    """Return the pauses that stop this user's tasks from starting; without a user, all pauses."""
    rows = tx.execute(statement("view_pauses"), {"user_id": user_id}).mappings()
    return [PauseView(**row) for row in rows]
