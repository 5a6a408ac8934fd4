"""Authentication: every request except health checks needs an API key or a token.

Requests of a run carry the token of its claim instead; `api/routes/runs.py` verifies those.
"""

from dataclasses import replace
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool

from overnight.errors import Forbidden, InvalidRequest, Unauthenticated
from overnight.models.field_errors import unknown_name
from overnight.models.scopes import EVERYTHING
from overnight_server.api.http.dependencies import Dependencies, Injected
from overnight_server.api.http.middleware import add_headers
from overnight_server.api.http.openapi import query_parameter_names
from overnight_server.control.keys import PREFIX, Caller, authenticate
from overnight_server.insight.users import find_identity
from overnight_server.settings.field_types import is_loopback

BEARER = "bearer "


class NotAnAdmin(Exception):
    """Somebody who is not an admin called an admin route; the response is 404."""


async def authenticated(request: Request, deps: Injected) -> Caller:
    """Return the caller of a request, count the request, and limit the database to the caller.

    Raises Unauthenticated without a valid key or token, TooManyRequests above the rate limit, and
    InvalidRequest for unknown query parameters.
    """
    caller = await run_in_threadpool(_authenticate, request, deps)
    return await _admit(request, deps, caller, checks_key=False)


async def recognized(request: Request, deps: Injected) -> Caller:
    """Do the same as `authenticated`, but look up a key only if no recent request had it.

    Transactions of the request check that the key is still valid. The field `is_admin` of the
    caller may be out of date.
    """
    key = credential(request)
    caller = deps.known_keys.find(key)
    if caller is not None:
        return await _admit(request, deps, caller, checks_key=True)
    caller = await authenticated(request, deps)
    if caller.key_id:
        deps.known_keys.add(key, caller)
    return caller


Authenticated = Annotated[Caller, Depends(authenticated)]
Recognized = Annotated[Caller, Depends(recognized)]


def check_again(request: Request, deps: Dependencies, caller: Caller) -> None:
    """Raise Unauthenticated if the caller's key was revoked or the user disabled since.

    For requests that wait: they authenticate again before each response.
    """
    if _authenticate(request, deps) != caller:
        raise Unauthenticated


async def reader(caller: Recognized) -> Caller:
    """Return a caller with the scope to read tasks."""
    return _with_scope(caller, "tasks:read")


async def listener(caller: Authenticated) -> Caller:
    """Return a caller with the scope to read tasks, for a response that waits for events.

    A stream may begin without a transaction, which would check a key that was looked up before.
    """
    return _with_scope(caller, "tasks:read")


async def writer(caller: Recognized) -> Caller:
    """Return a caller with the scope to add, change and cancel tasks."""
    return _with_scope(caller, "tasks:write")


async def key_reader(caller: Authenticated) -> Caller:
    """Return a caller with the scope to list the own API keys."""
    return _with_scope(caller, "keys:read")


async def key_writer(caller: Authenticated) -> Caller:
    """Return a caller with the scope to create and revoke the own API keys."""
    return _with_scope(caller, "keys:write")


async def agent_runner(caller: Authenticated) -> Caller:
    """Return a caller with the scope to run pull agents."""
    return _with_scope(caller, "agents:run")


async def admin(caller: Authenticated) -> Caller:
    """Return a caller who is an admin; raise NotAnAdmin for anybody else."""
    if not caller.is_operator:
        raise NotAnAdmin
    return caller


Reader = Annotated[Caller, Depends(reader)]
Listener = Annotated[Caller, Depends(listener)]
Writer = Annotated[Caller, Depends(writer)]
KeyReader = Annotated[Caller, Depends(key_reader)]
KeyWriter = Annotated[Caller, Depends(key_writer)]
AgentRunner = Annotated[Caller, Depends(agent_runner)]
Admin = Annotated[Caller, Depends(admin)]


def credential(request: Request) -> str:
    """Return the key or token of a request's headers, or an empty string."""
    header = request.headers.get("authorization", "")
    if header.lower().startswith(BEARER):
        return header[len(BEARER) :].strip()
    return request.headers.get("x-api-key", "").strip()


async def _admit(
    request: Request, deps: Dependencies, caller: Caller | None, *, checks_key: bool
) -> Caller:
    if caller is None:
        raise Unauthenticated
    if deps.rate_limiter is not None:
        name = caller.key_id or str(caller.user_id)
        headers = deps.rate_limiter.take_held(name)
        if headers is None:
            headers = await run_in_threadpool(deps.rate_limiter.take, name)
        add_headers(request, headers)
    deps.act_for(replace(caller.served, checks_key=checks_key))
    _check_query(request)
    return caller


def _check_query(request: Request) -> None:
    """Raise InvalidRequest for unknown query parameters and for NUL characters.

    An unknown parameter is an error because a filter with a misspelled name would select
    everything. Postgres cannot store NUL.
    """
    if not request.query_params:
        return
    names = query_parameter_names(request.app, request.url.path, request.method)
    for name, value in request.query_params.multi_items():
        if names is not None and name not in names:
            legal = f"one of {', '.join(names)}" if names else "no parameters"
            raise InvalidRequest(name, unknown_name(name, names, "parameter"), legal=legal)
        if "\0" in value:
            raise InvalidRequest(name, "contains a NUL character", legal="text without NUL")


def _authenticate(request: Request, deps: Dependencies) -> Caller | None:
    """Return the caller that the request's credential belongs to, or None."""
    secret = credential(request)
    if not secret:
        return _trusted_caller(request, deps)
    if deps.token_verifier is not None and not secret.startswith(f"{PREFIX}_"):
        # The header X-API-Key is for keys only.
        if "x-api-key" in request.headers:
            return None
        return deps.token_verifier.caller(deps.db, secret)
    return authenticate(deps.db, secret)


def _trusted_caller(request: Request, deps: Dependencies) -> Caller | None:
    """Return the user of the setting `no_auth` if the request names this machine, else None.

    A web page in a local browser could call the API too, so the Host and Origin headers must
    both name a loopback address.
    """
    name = deps.settings.no_auth
    if name is None:
        return None
    hosts = [urlsplit(f"//{request.headers.get('host', '')}").hostname or ""]
    origin = request.headers.get("origin")
    if origin is not None:
        hosts.append(urlsplit(origin).hostname or "")
    if not all(map(is_loopback, hosts)):
        return None
    user = find_identity(deps.db, name)
    if user is None or user.is_disabled:
        return None
    return Caller(user.user_id, "", (EVERYTHING,), user.is_admin)


def _with_scope(caller: Caller, scope: str) -> Caller:
    if not caller.may(scope):
        raise Forbidden(scope)
    return caller
