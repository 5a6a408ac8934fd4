"""Setting a user's night window; it acts at once."""

from sqlalchemy import Connection, update

from overnight.errors import UserNotFound
from overnight_server.domain.ids import UserId
from overnight_server.domain.windows import Window
from overnight_server.store import lanes, windows
from overnight_server.store.after_commit import wake_after_commit
from overnight_server.store.db import Db
from overnight_server.store.models import User


def set_window(db: Db, user_id: UserId, window: Window | None) -> None:
    """Give a user a night window, or none; from the commit on the gate goes by it.

    A claim under way is judged by the old one. Runs feel a change through their next heartbeat,
    and only under the rule `stop`.
    """

    def work(tx: Connection) -> None:
        # The lane first, like everyone, so that no claim sees half of the change.
        lanes.lock(tx, [user_id])
        changed = tx.execute(
            update(User).where(User.id == user_id).values(_columns(window)).returning(User.id)
        )
        if changed.one_or_none() is None:
            raise UserNotFound
        windows.refresh_windows(tx, [user_id])
        wake_after_commit(tx)

    db.atomically(work)


def _columns(window: Window | None) -> dict[str, object]:
    if window is None:
        return {"window_zone": None, "window_from": None, "window_to": None}
    return {
        "window_zone": window.zone,
        "window_from": window.opens,
        "window_to": window.closes,
        "window_at_closing": window.at_closing.value,
    }
