"""Admin routes of all users' API keys and of the audit trail; for others they respond 404."""

from typing import Annotated

from fastapi import APIRouter, Query

from overnight.errors import KeyNotFound, UserNotFound
from overnight.models.admin import AuditEntry
from overnight.models.field_types import Instant
from overnight.models.keys import ApiKey, CreatedApiKey, RevokedApiKey, UserApiKey
from overnight_server.api.http.authentication import Admin
from overnight_server.api.http.dependencies import Dependencies, Injected
from overnight_server.api.routes.keys import DEFAULT_ROTATION, KeyCreate, KeyRotation
from overnight_server.control.keys import issue, key_id_of, revoke, rotate
from overnight_server.domain.ids import UserId
from overnight_server.insight.audit import list_audit_entries
from overnight_server.insight.users import find_identity, list_keys

router = APIRouter(prefix="/api/v1/admin", tags=["admin"])
PAGE = 100
MAX_PAGE = 1000


@router.get("/users/{user_id}/keys", response_model=list[ApiKey])
def list_keys_of_user(user_id: str, deps: Injected, _caller: Admin) -> list[UserApiKey]:
    """List a user's API keys; the path takes the id or the name of the user."""
    return list_keys(deps.admin_db, find_user_id(deps, user_id))


@router.post("/users/{user_id}/keys", status_code=201)
def create_key_for_user(
    user_id: str, body: KeyCreate, deps: Injected, _caller: Admin
) -> CreatedApiKey:
    """Create an API key for a user and return it, this once."""
    key = issue(
        deps.admin_db,
        find_user_id(deps, user_id),
        name=body.name,
        scopes=body.scopes,
        expires_in=body.expires_in,
    )
    return CreatedApiKey(id=key_id_of(key), key=key)


@router.post("/keys/{key_id}/rotate", status_code=201)
def rotate_any_key(
    key_id: str, deps: Injected, _caller: Admin, body: KeyRotation = DEFAULT_ROTATION
) -> CreatedApiKey:
    """Create the key that replaces any user's key; the old one stays valid for the grace."""
    key = rotate(deps.admin_db, key_id, grace=body.grace)
    return CreatedApiKey(id=key_id_of(key), key=key)


@router.delete("/keys/{key_id}")
def revoke_any_key(key_id: str, deps: Injected, _caller: Admin) -> RevokedApiKey:
    """Revoke any user's key at once."""
    if not revoke(deps.admin_db, key_id):
        raise KeyNotFound
    return RevokedApiKey(id=key_id)


@router.get("/audit")
def list_audit(
    *,
    deps: Injected,
    _caller: Admin,
    user: Annotated[
        str | None, Query(max_length=200, description="Only entries about this user.")
    ] = None,
    since: Annotated[Instant | None, Query(description="Only entries since this instant.")] = None,
    limit: Annotated[
        int, Query(ge=1, le=MAX_PAGE, description="The maximum number of items.")
    ] = PAGE,
) -> list[AuditEntry]:
    """List the entries of the audit trail about one user or all, newest first."""
    user_id = None if user is None else find_user_id(deps, user)
    return list_audit_entries(deps.admin_db, user_id=user_id, since=since, limit=limit)


def find_user_id(deps: Dependencies, id_or_name: str) -> UserId:
    """Return the id of the user with this id or name; raise UserNotFound if there is none."""
    user = find_identity(deps.admin_db, id_or_name)
    if user is None:
        raise UserNotFound
    return user.user_id
