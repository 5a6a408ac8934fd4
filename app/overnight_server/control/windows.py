"""Set a user's night window."""

from sqlalchemy import Connection, update

from overnight.errors import UserNotFound
from overnight_server.domain.ids import UserId
from overnight_server.domain.windows import NightWindow
from overnight_server.store import lanes, windows
from overnight_server.store.after_commit import wake_after_commit
from overnight_server.store.db import Db
from overnight_server.store.models import UserRow


def set_window(db: Db, user_id: UserId, window: NightWindow | None) -> None:
    """Set or remove a user's night window; the gate uses it from the commit on.

    Running tasks are affected only under the rule `stop`, with their next heartbeat. Locks the
    lane, writes whether the window is open to it, and wakes the dispatchers. Raises UserNotFound.
    """

    def work(tx: Connection) -> None:
        # The lane is locked first, so that a claim sees the change whole or not at all.
        lanes.lock(tx, [user_id])
        changed = tx.execute(
            update(UserRow)
            .where(UserRow.id == user_id)
            .values(_columns(window))
            .returning(UserRow.id)
        )
        if changed.one_or_none() is None:
            raise UserNotFound
        windows.refresh_windows(tx, [user_id])
        wake_after_commit(tx)

    db.atomically(work)


def _columns(window: NightWindow | None) -> dict[str, object]:
    if window is None:
        return {"window_zone": None, "window_from": None, "window_to": None}
    return {
        "window_zone": window.zone,
        "window_from": window.opens,
        "window_to": window.closes,
        "window_at_closing": window.at_closing.value,
    }
