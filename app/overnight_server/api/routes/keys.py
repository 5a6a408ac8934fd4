"""The routes of keys: the caller's own, listed, made, rotated and revoked."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from overnight.errors import InvalidRequest, KeyNotFound
from overnight_server.api.http.authentication import KeyReader, KeyWriter
from overnight_server.api.http.dependencies import Use
from overnight_server.api.http.key_requests import USUAL, NewKey, Rotation
from overnight_server.control.keys import issue, key_id_of, revoke, rotate
from overnight_server.domain.scopes import within
from overnight_server.insight.users import KeyView, list_keys

router = APIRouter(prefix="/api/v1/keys", tags=["keys"])


@dataclass(frozen=True)
class ShownKey:
    """One key without anything that would open a door."""

    id: Annotated[str, Field(description="Its id.")]
    name: Annotated[str, Field(description="What its owner calls it.")]
    last4: Annotated[str, Field(description="The last letters of its secret, to know it by.")]
    scopes: Annotated[list[str], Field(description="What it may be used for.")]
    created_at: Annotated[datetime, Field(description="When it was made.")]
    expires_at: Annotated[datetime | None, Field(description="When it ends; null is never.")]
    revoked_at: Annotated[datetime | None, Field(description="When it was ended, if it was.")]
    last_used_at: Annotated[datetime | None, Field(description="When it last opened a door.")]
    replaced_by: Annotated[str | None, Field(description="The key that took over from it.")]


@dataclass(frozen=True)
class MadeKey:
    """A new key, for the only time that it is shown."""

    id: Annotated[str, Field(description="Its id.")]
    key: Annotated[str, Field(description="The key itself; only its hash is kept.")]


@dataclass(frozen=True)
class Revoked:
    """A key that opens nothing any more."""

    id: Annotated[str, Field(description="Its id.")]
    revoked: Annotated[bool, Field(description="It opens nothing.")] = True


def shown(view: KeyView) -> ShownKey:
    """Leave out whose key it is: it is the caller's, or the path says it."""
    return ShownKey(**{name: value for name, value in vars(view).items() if name != "user"})


@router.get("")
def list_own_keys(parts: Use, caller: KeyReader) -> list[ShownKey]:
    """List the caller's keys, newest first; the keys themselves are not kept."""
    return [shown(key) for key in list_keys(parts.db, caller.user_id)]


@router.post("", status_code=201)
def make_own_key(body: NewKey, parts: Use, caller: KeyWriter) -> MadeKey:
    """Make a key for the caller, shown this once; it reaches and lives no further than this one."""
    if not within(body.scopes, caller.scopes):
        legal = f"those of this key: {', '.join(caller.scopes)}"
        raise InvalidRequest("scopes", "go further than this key's own", legal=legal)
    key = issue(
        parts.db,
        caller.user_id,
        name=body.name,
        scopes=body.scopes,
        expires_in=body.expires_in,
        maker=caller.key_id,
    )
    return MadeKey(key_id_of(key), key)


@router.post("/{key_id}/rotate", status_code=201)
def rotate_own_key(key_id: str, parts: Use, caller: KeyWriter, body: Rotation = USUAL) -> MadeKey:
    """Make the key that takes over from one of the caller's, which stays good for the grace."""
    _reaching(parts, caller, key_id)
    key = rotate(parts.db, key_id, grace=body.grace, user_id=caller.user_id, maker=caller.key_id)
    return MadeKey(key_id_of(key), key)


@router.delete("/{key_id}")
def revoke_own_key(key_id: str, parts: Use, caller: KeyWriter) -> Revoked:
    """End one of the caller's keys at once; it may be the one this request shows."""
    if not revoke(parts.db, key_id, user_id=caller.user_id):
        raise KeyNotFound
    return Revoked(key_id)


def _reaching(parts: Use, caller: KeyWriter, key_id: str) -> None:
    """Refuse to hand out, by rotation, a key that reaches further than the one shown."""
    own = {key.id: key for key in list_keys(parts.db, caller.user_id)}
    if key_id not in own or not within(own[key_id].scopes, caller.scopes):
        raise KeyNotFound
