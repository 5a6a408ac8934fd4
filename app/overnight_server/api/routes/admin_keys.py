"""Admin routes for the API keys of all users and for the audit log.

Only admins can call them; other callers get 404.
"""

from typing import Annotated

from fastapi import APIRouter, Query

from overnight.errors import KeyNotFound, UserNotFound
from overnight.models.admin import AuditEntry
from overnight.models.field_types import Instant
from overnight.models.keys import (
    ApiKey,
    CreatedApiKey,
    KeyCreate,
    KeyRotation,
    RevokedApiKey,
    UserApiKey,
)
from overnight_server.api.http.authentication import Admin
from overnight_server.api.http.dependencies import Dependencies, Injected
from overnight_server.api.http.thread_route import ThreadRoute
from overnight_server.api.routes.keys import DEFAULT_ROTATION
from overnight_server.control.keys import issue, key_id_of, revoke, rotate
from overnight_server.domain.ids import UserId
from overnight_server.insight.audit_log import list_audit_entries
from overnight_server.insight.users import find_identity, list_keys

router = APIRouter(route_class=ThreadRoute, prefix="/api/v1/admin", tags=["admin"])
PAGE = 100
LONGEST_LIST = 1000
ManyLimit = Annotated[
    int, Query(ge=1, le=LONGEST_LIST, description="Largest number of items to list.")
]


@router.get("/keys")
def list_all_keys(
    deps: Injected,
    _caller: Admin,
    user: Annotated[
        str | None, Query(max_length=200, description="Only keys of this user.")
    ] = None,
) -> list[UserApiKey]:
    """List the keys of all users or of one, newest first, without their secrets."""
    return list_keys(deps.admin_db, None if user is None else find_user_id(deps, user))


@router.get("/users/{user_id}/keys", response_model=list[ApiKey])
def list_keys_of(user_id: str, deps: Injected, _caller: Admin) -> list[UserApiKey]:
    """List the keys of a user, given by id or name."""
    return list_keys(deps.admin_db, find_user_id(deps, user_id))


@router.post("/users/{user_id}/keys", status_code=201)
def make_key_for(user_id: str, body: KeyCreate, deps: Injected, caller: Admin) -> CreatedApiKey:
    """Create a key for a user; no later response contains the key itself.

    It cannot have more scopes than the key or token of the request, nor expire later.
    """
    key = issue(
        deps.admin_db,
        find_user_id(deps, user_id),
        name=body.name,
        scopes=body.scopes,
        expires_in=body.expires_in,
        maker=caller,
    )
    return CreatedApiKey(id=key_id_of(key), key=key)


@router.post("/keys/{key_id}/rotate", status_code=201)
def rotate_any_key(
    key_id: str, deps: Injected, caller: Admin, body: KeyRotation = DEFAULT_ROTATION
) -> CreatedApiKey:
    """Create the key that replaces another, which stays valid for the grace period."""
    key = rotate(deps.admin_db, key_id, grace=body.grace, maker=caller)
    return CreatedApiKey(id=key_id_of(key), key=key)


@router.delete("/keys/{key_id}")
def revoke_any_key(key_id: str, deps: Injected, _caller: Admin) -> RevokedApiKey:
    """Revoke a key of any user, and the keys made with it, at once."""
    if not revoke(deps.admin_db, key_id):
        raise KeyNotFound
    return RevokedApiKey(id=key_id)


@router.get("/audit")
def list_audit(
    *,
    deps: Injected,
    _caller: Admin,
    user: Annotated[
        str | None, Query(max_length=200, description="Only acts that concern this user.")
    ] = None,
    since: Annotated[
        Instant | None, Query(description="Only acts at or after this instant.")
    ] = None,
    limit: ManyLimit = PAGE,
) -> list[AuditEntry]:
    """List what people did, newest first."""
    concerned = None if user is None else find_user_id(deps, user)
    return list_audit_entries(deps.admin_db, user_id=concerned, since=since, limit=limit)


def find_user_id(deps: Dependencies, reference: str) -> UserId:
    """Return the user with this id or name; raise UserNotFound if there is none."""
    found = find_identity(deps.admin_db, reference)
    if found is None:
        raise UserNotFound
    return found.user_id
