"""Routes of the caller's own API keys: list, create, rotate and revoke them."""

from fastapi import APIRouter

from overnight.errors import KeyNotFound
from overnight.models.keys import (
    ApiKey,
    CreatedApiKey,
    KeyCreate,
    KeyRotation,
    RevokedApiKey,
    UserApiKey,
)
from overnight_server.api.http.authentication import KeyReader, KeyWriter
from overnight_server.api.http.dependencies import Injected
from overnight_server.api.http.thread_route import ThreadRoute
from overnight_server.control.keys import issue, key_id_of, revoke, rotate
from overnight_server.insight.users import list_keys

router = APIRouter(route_class=ThreadRoute, prefix="/api/v1/keys", tags=["keys"])
DEFAULT_ROTATION = KeyRotation()


@router.get("", response_model=list[ApiKey])
def list_own_keys(deps: Injected, caller: KeyReader) -> list[UserApiKey]:
    """List the caller's API keys without their secrets, newest first."""
    return list_keys(deps.db, caller.user_id)


@router.post("", status_code=201)
def create_own_key(body: KeyCreate, deps: Injected, caller: KeyWriter) -> CreatedApiKey:
    """Create an API key for the caller and return it, this once.

    It cannot have more scopes than the key or token of the request, nor expire later.
    """
    key = issue(
        deps.db,
        caller.user_id,
        name=body.name,
        scopes=body.scopes,
        expires_in=body.expires_in,
        maker=caller,
    )
    return CreatedApiKey(id=key_id_of(key), key=key)


@router.post("/{key_id}/rotate", status_code=201)
def rotate_own_key(
    key_id: str, deps: Injected, caller: KeyWriter, body: KeyRotation = DEFAULT_ROTATION
) -> CreatedApiKey:
    """Create the key that replaces one of the caller's; the old one stays valid for the grace."""
    key = rotate(deps.db, key_id, grace=body.grace, user_id=caller.user_id, maker=caller)
    return CreatedApiKey(id=key_id_of(key), key=key)


@router.delete("/{key_id}")
def revoke_own_key(key_id: str, deps: Injected, caller: KeyWriter) -> RevokedApiKey:
    """Revoke one of the caller's keys, and the keys made with it, at once.

    It may be the key of this request.
    """
    if not revoke(deps.db, key_id, user_id=caller.user_id):
        raise KeyNotFound
    return RevokedApiKey(id=key_id)
