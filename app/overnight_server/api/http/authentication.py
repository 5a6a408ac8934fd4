"""Authentication: every request except health checks needs an API key or a token.

It is judged from the headers, before the body is read. Requests of a run carry the token of its
claim instead; `api/routes/runs.py` verifies those.
"""

from dataclasses import dataclass, replace
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool

from overnight.errors import Forbidden, InvalidRequest, Unauthenticated
from overnight.models.field_errors import unknown_name
from overnight.models.scopes import EVERYTHING
from overnight.trace_context import valid_traceparent
from overnight_server.api.http.admission import admitted
from overnight_server.api.http.dependencies import Dependencies
from overnight_server.api.http.middleware import add_headers
from overnight_server.api.http.openapi import query_parameter_names
from overnight_server.control.keys import PREFIX, Caller, authenticate
from overnight_server.insight.users import find_identity
from overnight_server.settings.field_types import is_loopback

BEARER = "bearer "


class NotAnAdmin(Exception):
    """Somebody who is not an admin called an admin route; the response is 404."""


@dataclass(frozen=True)
class Access:
    """Who may call a route: the caller's scope, or admins only; FastAPI injects the caller.

    With `recognizes`, a key that a recent request had is not looked up: transactions of the
    request check that it is still valid, and the field `is_admin` of the caller may be out of date.
    """

    scope: str = ""
    is_for_admins: bool = False
    recognizes: bool = False

    async def admit(self, request: Request, deps: Dependencies, cost: int) -> Caller:
        """Return the caller of a request, count the request, and limit the database to the caller.

        Raises Unauthenticated without a valid key or token, TooManyRequests above the rate limit,
        Forbidden without the scope, NotAnAdmin, and InvalidRequest for unknown query parameters.
        """
        caller = await self._identify(request, deps)
        if deps.rate_limiter is not None:
            name = str(caller.user_id)
            headers = deps.rate_limiter.take_held(name, cost)
            if headers is None:
                headers = await run_in_threadpool(deps.rate_limiter.take, name, cost)
            add_headers(request, headers)
        # Before the query is checked: an error there would tell that the route exists.
        if self.is_for_admins and not caller.is_operator:
            raise NotAnAdmin
        if self.scope and not caller.may(self.scope):
            raise Forbidden(self.scope)
        _check_query(request)
        return caller

    async def __call__(self, request: Request) -> Caller:
        """Return the caller that `admit` has returned before the body was read."""
        return admitted(request, Caller)

    async def _identify(self, request: Request, deps: Dependencies) -> Caller:
        key = credential(request)
        caller = deps.known_keys.find(key) if self.recognizes else None
        is_known = caller is not None
        if caller is None:
            caller = await run_in_threadpool(_authenticate, request, deps)
        if caller is None:
            raise Unauthenticated
        if self.recognizes and caller.key_id and not is_known:
            deps.known_keys.add(key, caller)
        traceparent = valid_traceparent(request.headers.get("traceparent")) or ""
        deps.act_for(replace(caller.served, checks_key=is_known, traceparent=traceparent))
        return caller


ANYBODY_WITH_A_KEY = Access()
Reader = Annotated[Caller, Depends(Access("tasks:read", recognizes=True))]
# A stream may begin without a transaction, which would check a key that was looked up before.
Listener = Annotated[Caller, Depends(Access("tasks:read"))]
Writer = Annotated[Caller, Depends(Access("tasks:write", recognizes=True))]
KeyReader = Annotated[Caller, Depends(Access("keys:read"))]
KeyWriter = Annotated[Caller, Depends(Access("keys:write"))]
AgentRunner = Annotated[Caller, Depends(Access("agents:run"))]
Admin = Annotated[Caller, Depends(Access(is_for_admins=True))]


def check_again(request: Request, deps: Dependencies, caller: Caller) -> None:
    """Raise Unauthenticated if the caller's key was revoked or the user disabled since.

    For requests that wait: they authenticate again before each response.
    """
    if _authenticate(request, deps) != caller:
        raise Unauthenticated


def credential(request: Request) -> str:
    """Return the key or token of a request's headers, or an empty string."""
    header = request.headers.get("authorization", "")
    if header.lower().startswith(BEARER):
        return header[len(BEARER) :].strip()
    return request.headers.get("x-api-key", "").strip()


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
        return trusted_caller(request, deps)
    # The header X-API-Key is for keys only.
    if "x-api-key" in request.headers and not secret.startswith(f"{PREFIX}_"):
        return None
    return authenticate_secret(deps, secret)


def authenticate_secret(deps: Dependencies, secret: str) -> Caller | None:
    """Return the caller that a key or token belongs to, or None if it is not valid."""
    if deps.token_verifier is not None and not secret.startswith(f"{PREFIX}_"):
        return deps.token_verifier.caller(deps.db, secret)
    return authenticate(deps.db, secret)


def trusted_caller(request: Request, deps: Dependencies) -> Caller | None:
    """Return the user of the setting `no_auth` if the request is from this machine, else None.

    A web page in a local browser could call the API too. So the Host header must name a loopback
    address, and a browser must say that the page is from this API: from the same host and port.
    """
    name = deps.settings.no_auth
    if name is None:
        return None
    host = request.headers.get("host", "")
    if not is_loopback(urlsplit(f"//{host}").hostname or ""):
        return None
    if request.headers.get("origin", f"http://{host}") != f"http://{host}":
        return None
    # Browsers send no Origin with the request for an image or a script.
    if request.headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:
        return None
    user = find_identity(deps.db, name)
    if user is None or user.is_disabled:
        return None
    return Caller(user.user_id, "", (EVERYTHING,), user.is_admin)
