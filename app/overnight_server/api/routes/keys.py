"""The routes of keys: the caller's own, listed, made, rotated and revoked."""

from fastapi import APIRouter

from overnight.errors import InvalidRequest, KeyNotFound
from overnight.models.keys import ApiKey, CreatedApiKey, RevokedApiKey, UserApiKey
from overnight_server.api.http.authentication import KeyReader, KeyWriter
from overnight_server.api.http.dependencies import Use
from overnight_server.api.http.key_requests import USUAL, NewKey, Rotation
from overnight_server.control.keys import issue, key_id_of, revoke, rotate
from overnight_server.domain.scopes import within
from overnight_server.insight.users import list_keys

router = APIRouter(prefix="/api/v1/keys", tags=["keys"])


@router.get("", response_model=list[ApiKey])
def list_own_keys(parts: Use, caller: KeyReader) -> list[UserApiKey]:
    """List the caller's keys, newest first; the keys themselves are not kept."""
    return list_keys(parts.db, caller.user_id)


@router.post("", status_code=201)
def make_own_key(body: NewKey, parts: Use, caller: KeyWriter) -> CreatedApiKey:
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
    return CreatedApiKey(id=key_id_of(key), key=key)


@router.post("/{key_id}/rotate", status_code=201)
def rotate_own_key(
    key_id: str, parts: Use, caller: KeyWriter, body: Rotation = USUAL
) -> CreatedApiKey:
    """Make the key that takes over from one of the caller's, which stays good for the grace."""
    _reaching(parts, caller, key_id)
    key = rotate(parts.db, key_id, grace=body.grace, user_id=caller.user_id, maker=caller.key_id)
    return CreatedApiKey(id=key_id_of(key), key=key)


@router.delete("/{key_id}")
def revoke_own_key(key_id: str, parts: Use, caller: KeyWriter) -> RevokedApiKey:
    """End one of the caller's keys at once; it may be the one this request shows."""
    if not revoke(parts.db, key_id, user_id=caller.user_id):
        raise KeyNotFound
    return RevokedApiKey(id=key_id)


def _reaching(parts: Use, caller: KeyWriter, key_id: str) -> None:
    """Refuse to hand out, by rotation, a key that reaches further than the one shown."""
    own = {key.id: key for key in list_keys(parts.db, caller.user_id)}
    if key_id not in own or not within(own[key_id].scopes, caller.scopes):
        raise KeyNotFound
