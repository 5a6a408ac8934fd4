"""Keys: who may call the API, what each key may do, and when it was last used."""

from datetime import timedelta
from urllib.parse import urlencode

from starlette.responses import Response

from overnight.errors import InvalidRequest, KeyNotFound, UserNotFound
from overnight.models.scopes import SCOPES
from overnight_server.control.keys import issue, key_id_of, revoke, rotate
from overnight_server.dashboard.screen import Screen
from overnight_server.dashboard.visit import Visit
from overnight_server.domain.ids import UserId
from overnight_server.insight.users import find_identity, list_keys
from overnight_server.store.db import Db

screen = Screen("keys")
MOST_DAYS = 3650
PAGE = 50


@screen.page("/keys", scope="keys:read")
def show_keys(visit: Visit) -> Response:
    """Show the user's keys; for admins, those of all users."""
    before = visit.query("before")
    keys = list_keys(_db(visit), _whose(visit), before=before or None, limit=PAGE + 1)
    return visit.page(
        "keys_page.html",
        title="Keys",
        place="keys",
        keys=keys[:PAGE],
        older=f"/keys?{urlencode({'before': keys[PAGE - 1].id})}" if len(keys) > PAGE else "",
        is_first=not before,
        scopes=SCOPES,
    )


@screen.act("/keys", scope="keys:write")
def make_key(visit: Visit) -> Response:
    """Create a key and show it, this once."""
    name = visit.value("name").strip()
    if not name:
        raise InvalidRequest("name", "is empty", legal="a name such as laptop")
    key = issue(
        _db(visit),
        _owner(visit),
        name=name,
        scopes=visit.values("scope") or ["*"],
        expires_in=_lifetime(visit.value("days")),
        maker=visit.caller,
    )
    return visit.page("key_made.html", title="A new key", place="keys", key=key, name=name)


@screen.act("/keys/{key_id}/rotate", scope="keys:write")
def rotate_key(visit: Visit, key_id: str) -> Response:
    """Create the key that replaces another, and show it, this once."""
    user_id = None if visit.is_admin else visit.user_id
    key = rotate(_db(visit), key_id, user_id=user_id, maker=visit.caller)
    name = f"the key that replaces {key_id_of(key)}"
    return visit.page("key_made.html", title="A new key", place="keys", key=key, name=name)


@screen.page("/keys/{key_id}/revoke", scope="keys:read")
def ask_revoke(visit: Visit, key_id: str) -> Response:
    """Ask before a key is revoked."""
    found = list_keys(_db(visit), _whose(visit), key_id=key_id)
    if not found:
        raise KeyNotFound
    return visit.page("key_revoke.html", title="Revoke?", place="keys", key=found[0])


@screen.act("/keys/{key_id}/revoke", scope="keys:write")
def revoke_key(visit: Visit, key_id: str) -> Response:
    """Revoke a key and those made with it, at once."""
    if not revoke(_db(visit), key_id, user_id=None if visit.is_admin else visit.user_id):
        raise KeyNotFound
    return visit.done("The key is revoked; sessions that began with it have ended.", to="/keys")


def _db(visit: Visit) -> Db:
    return visit.admin_db if visit.is_admin else visit.db


def _whose(visit: Visit) -> UserId | None:
    """Return whose keys are shown: the user's own; for admins, those of all."""
    return None if visit.is_admin else visit.user_id


def _owner(visit: Visit) -> UserId:
    """Return for whom a key is made: the user, or for admins the one that the form names."""
    name = visit.value("user").strip()
    if not (visit.is_admin and name):
        return visit.user_id
    found = find_identity(visit.admin_db, name)
    if found is None:
        raise UserNotFound
    return found.user_id


def _lifetime(days: str) -> timedelta | None:
    if not days.strip():
        return None
    if not (days.strip().isdecimal() and 0 < int(days[:6]) <= MOST_DAYS):
        raise InvalidRequest("days", "is not a number of days", legal=f"1 to {MOST_DAYS}")
    return timedelta(days=int(days))
