"""The routes of admins: everybody's keys, and what was done. To others they are not there."""

from typing import Annotated

from fastapi import APIRouter, Query

from overnight.errors import KeyNotFound, UserNotFound
from overnight.models.admin import AuditEntry
from overnight.models.field_types import Instant
from overnight.models.keys import ApiKey, CreatedApiKey, RevokedApiKey, UserApiKey
from overnight_server.api.http.authentication import Admin
from overnight_server.api.http.dependencies import Parts, Use
from overnight_server.api.http.key_requests import USUAL, NewKey, Rotation
from overnight_server.control.keys import issue, key_id_of, revoke, rotate
from overnight_server.domain.ids import UserId
from overnight_server.insight.audit import list_audit_entries
from overnight_server.insight.users import find_identity, list_keys

router = APIRouter(prefix="/api/v1/admin", tags=["admin"])
PAGE = 100
MAX_PAGE = 1000


@router.get("/users/{user_id}/keys", response_model=list[ApiKey])
def list_keys_of(user_id: str, parts: Use, _caller: Admin) -> list[UserApiKey]:
    """List a user's keys; the user goes by id or name."""
    return list_keys(parts.admin_db, user_named(parts, user_id))


@router.post("/users/{user_id}/keys", status_code=201)
def make_key_for(user_id: str, body: NewKey, parts: Use, _caller: Admin) -> CreatedApiKey:
    """Make a key for a user; it is shown this once."""
    key = issue(
        parts.admin_db,
        user_named(parts, user_id),
        name=body.name,
        scopes=body.scopes,
        expires_in=body.expires_in,
    )
    return CreatedApiKey(id=key_id_of(key), key=key)


@router.post("/keys/{key_id}/rotate", status_code=201)
def rotate_any_key(
    key_id: str, parts: Use, _caller: Admin, body: Rotation = USUAL
) -> CreatedApiKey:
    """Make the key that takes over from anybody's, which stays good for the grace."""
    key = rotate(parts.admin_db, key_id, grace=body.grace)
    return CreatedApiKey(id=key_id_of(key), key=key)


@router.delete("/keys/{key_id}")
def revoke_any_key(key_id: str, parts: Use, _caller: Admin) -> RevokedApiKey:
    """End anybody's key at once."""
    if not revoke(parts.admin_db, key_id):
        raise KeyNotFound
    return RevokedApiKey(id=key_id)


@router.get("/audit")
def list_audit(
    *,
    parts: Use,
    _caller: Admin,
    user: Annotated[
        str | None, Query(max_length=200, description="Only what was done to this user.")
    ] = None,
    since: Annotated[Instant | None, Query(description="Only what was done since then.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="How many at most.")] = PAGE,
) -> list[AuditEntry]:
    """Tell what people did, newest first: to one user or to all, since an instant."""
    concerned = None if user is None else user_named(parts, user)
    return list_audit_entries(parts.admin_db, user_id=concerned, since=since, limit=limit)


def user_named(parts: Parts, named: str) -> UserId:
    """Return the user of this id or name."""
    found = find_identity(parts.admin_db, named)
    if found is None:
        raise UserNotFound
    return found.user_id
