"""Sessions of the dashboard: open, look up, rotate and end them; only hashes are stored.

A session has the rights of the key or token that it was made with, and ends with it. The value of
its cookie changes every hour. The old value stays valid until the browser has sent the new one,
because the response with the new one may have been lost.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row

from overnight.errors import Unauthenticated
from overnight.models.keys import SignInLink
from overnight_server.control.keys import Caller
from overnight_server.domain.ids import UserId
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

#: A session ends after this time, and after a week without use.
LIFETIME = timedelta(days=30)
LINK_LIFETIME = timedelta(minutes=10)
LINK_PATH = "/sign-in/"
#: How many sessions and unopened links a user may have; the oldest end first.
MAX_SESSIONS = 50
MAX_BROWSER_LENGTH = 300
TOKEN_BYTES = 32
MAX_TOKEN_LENGTH = 100


@dataclass(frozen=True)
class Session:
    """An open session and its holder; `new_cookie` is sent to the browser if it is set."""

    session_id: UUID
    caller: Caller
    secret: str
    new_cookie: str | None = None

    def sign(self, text: str) -> str:
        """Return the signature of a text in this session."""
        return sign(self.secret, text)


@dataclass(frozen=True)
class OpenSession:
    """A session as its user sees it under Me."""

    session_id: UUID
    browser: str
    key_id: str | None
    key_name: str | None
    opened_at: datetime
    last_used_at: datetime
    expires_at: datetime


def open_session(db: Db, caller: Caller, browser: str) -> str:
    """Open a session with the rights of a caller; return the value of its cookie.

    `db` acts for the caller, here and in `make_sign_in_link`.
    """
    cookie, _ = _create(db, caller, LIFETIME, browser=browser, is_open=True)
    return cookie


def make_sign_in_link(db: Db, caller: Caller) -> SignInLink:
    """Make a link that opens a session with the rights of a caller, once."""
    token, expires_at = _create(db, caller, LINK_LIFETIME, is_open=False)
    return SignInLink(path=f"{LINK_PATH}{token}", expires_at=expires_at)


def open_link(db: Db, token: str, browser: str) -> str | None:
    """Open the session of a sign-in link; return its cookie's value, None if it is not valid."""
    if not _is_well_formed(token):
        return None
    cookie = secrets.token_urlsafe(TOKEN_BYTES)
    params = {
        "link_hash": _hash(token),
        "cookie_hash": _hash(cookie),
        "browser": browser[:MAX_BROWSER_LENGTH],
        "lifetime": LIFETIME.total_seconds(),
    }
    opened = db.atomically(lambda tx: tx.execute(statement("open_sign_in_link"), params).scalar())
    return None if opened is None else cookie


def find_session(db: Db, cookie: str) -> Session | None:
    """Return the session of a cookie, None if it is not valid; rotate it if that is due."""
    if not _is_well_formed(cookie):
        return None
    return db.atomically(lambda tx: _find(tx, cookie))


def end_session(db: Db, user_id: UserId, session_id: UUID) -> bool:
    """End a session of a user; return False if there is no such open session."""
    params = {"user_id": user_id, "session_id": session_id}
    return (
        db.atomically(lambda tx: tx.execute(statement("end_session"), params).first()) is not None
    )


def list_sessions(db: Db, user_id: UserId) -> list[OpenSession]:
    """Return the open sessions of a user, the last used first."""
    params = {"user_id": user_id}
    rows = db.atomically(lambda tx: tx.execute(statement("view_sessions"), params).mappings().all())
    return [OpenSession(**row) for row in rows]


def sign(secret: str, text: str) -> str:
    """Return the signature of a text."""
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()


def _create(
    db: Db, caller: Caller, lifetime: timedelta, *, browser: str = "", is_open: bool
) -> tuple[str, datetime]:
    if not (caller.key_id or caller.token_subject):
        raise Unauthenticated
    token = secrets.token_urlsafe(TOKEN_BYTES)
    params: dict[str, Any] = {
        "user_id": caller.user_id,
        "hash": _hash(token),
        "secret": secrets.token_urlsafe(TOKEN_BYTES),
        "key_id": caller.key_id or None,
        "token_subject": None if caller.key_id else caller.token_subject,
        "scopes": list(caller.scopes),
        "browser": browser[:MAX_BROWSER_LENGTH],
        "is_open": is_open,
        "lifetime": lifetime.total_seconds(),
        "ends_by": caller.ends_at,
    }

    def work(tx: Connection) -> datetime:
        # Counted under the lane's lock, as the keys are.
        lanes.lock(tx, [caller.user_id])
        end: datetime = tx.execute(statement("open_session"), params).scalar_one()
        surplus = {"user_id": caller.user_id, "most": MAX_SESSIONS}
        tx.execute(statement("end_surplus_sessions"), surplus)
        return end

    return token, db.atomically(work)


def _find(tx: Connection, cookie: str) -> Session | None:
    row = tx.execute(statement("holder_of_session"), {"cookie_hash": _hash(cookie)}).one_or_none()
    if row is None:
        return None
    caller = Caller(
        UserId(row.user_id),
        row.key_id or "",
        tuple(row.scopes),
        row.is_admin,
        token_subject=row.token_subject or "",
        ends_at=None if row.key_id else row.expires_at,
    )
    new_cookie = None
    if row.is_due or row.is_new or row.use_is_old:
        # Row-level security shows a session to its user only.
        acting = {
            "user_id": str(caller.user_id),
            "actor": caller.actor,
            "key_id": caller.key_id,
            "traceparent": "",
        }
        tx.execute(statement("set_acting_user"), acting)
        new_cookie = _renew(tx, cookie, row)
    return Session(row.session_id, caller, row.secret, new_cookie)


def _renew(tx: Connection, cookie: str, row: Row[Any]) -> str | None:
    """Rotate a session, or else record its use; return the new value of its cookie, if any."""
    session = {"session_id": row.session_id, "user_id": row.user_id}
    if row.is_due:
        new_cookie = secrets.token_urlsafe(TOKEN_BYTES)
        hashes = {"cookie_hash": _hash(cookie), "new_hash": _hash(new_cookie)}
        if tx.execute(statement("rotate_session"), {**session, **hashes}).first() is not None:
            return new_cookie
        return None
    tx.execute(statement("touch_session"), {**session, "is_new": row.is_new})
    return None


def _is_well_formed(token: str) -> bool:
    return 0 < len(token) <= MAX_TOKEN_LENGTH and token.isascii() and token.isprintable()


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
