"""Who is calling: every request but the health checks shows an API key or a token."""

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request

from overnight.errors import Forbidden, InvalidRequest, Unauthenticated
from overnight.models.field_errors import unknown_name
from overnight_server.api.http.dependencies import Parts, Use
from overnight_server.api.http.middleware import add_headers
from overnight_server.api.http.openapi import query_of
from overnight_server.control.keys import PREFIX, Caller, authenticate
from overnight_server.domain.scopes import ADMIN, EVERYTHING
from overnight_server.insight.users import find_identity
from overnight_server.settings.field_types import is_loopback

BEARER = "bearer "


class NotAnAdmin(Exception):
    """What admins do is not there for anybody else."""


def caller(request: Request, parts: Use) -> Caller:
    """Return who presents the key or the token of this request, and serve only them."""
    known = _known(request, parts)
    if known is None:
        raise Unauthenticated
    if parts.rates is not None:
        add_headers(request, parts.rates.take(known.key_id or str(known.user_id)))
    parts.serve(known)
    _check_query(request)
    return known


Known = Annotated[Caller, Depends(caller)]


def check_again(request: Request, parts: Parts, known: Caller) -> None:
    """Raise Unauthenticated if what a request showed no longer makes its caller who they were.

    For whoever is kept waiting: a key may be revoked, or a user disabled, in the meantime.
    """
    if _known(request, parts) != known:
        raise Unauthenticated


def reader(known: Known) -> Caller:
    """Return a caller who may look at tasks."""
    return _with_scope(known, "tasks:read")


def writer(known: Known) -> Caller:
    """Return a caller who may add and cancel tasks."""
    return _with_scope(known, "tasks:write")


def key_reader(known: Known) -> Caller:
    """Return a caller who may look at their keys."""
    return _with_scope(known, "keys:read")


def key_writer(known: Known) -> Caller:
    """Return a caller who may make and end their keys."""
    return _with_scope(known, "keys:write")


def agent_runner(known: Known) -> Caller:
    """Return a caller who may have agents of their own claim tasks."""
    return _with_scope(known, "agents:run")


def admin(known: Known) -> Caller:
    """Return a caller who may act on everybody; to anybody else there is nothing here."""
    if not (known.is_admin and known.may(ADMIN)):
        raise NotAnAdmin
    return known


Reader = Annotated[Caller, Depends(reader)]
Writer = Annotated[Caller, Depends(writer)]
KeyReader = Annotated[Caller, Depends(key_reader)]
KeyWriter = Annotated[Caller, Depends(key_writer)]
AgentRunner = Annotated[Caller, Depends(agent_runner)]
Admin = Annotated[Caller, Depends(admin)]


def _check_query(request: Request) -> None:
    """Refuse what Postgres could not even be asked for, and names that would have no effect.

    A filter with a slip in its name would else choose everything.
    """
    if not request.query_params:
        return
    known = query_of(request.app, request.url.path, request.method)
    for name, value in request.query_params.multi_items():
        if known is not None and name not in known:
            legal = f"one of {', '.join(known)}" if known else "no parameters"
            raise InvalidRequest(name, unknown_name(name, known, "parameter"), legal=legal)
        if "\0" in value:
            raise InvalidRequest(name, "holds a NUL character", legal="text without one")


def _known(request: Request, parts: Parts) -> Caller | None:
    shown = presented(request)
    if not shown:
        return _trusted(request, parts)
    if parts.tokens is not None and not shown.startswith(f"{PREFIX}_"):
        # A token has no place in the header that is for keys.
        return None if "x-api-key" in request.headers else parts.tokens.caller(parts.db, shown)
    return authenticate(parts.db, shown)


def _trusted(request: Request, parts: Parts) -> Caller | None:
    """Return the user that a deployment without keys works for, if the call came from this machine.

    A web page in a browser here comes from this machine too: it gives itself away by the name it
    called, or by where it came from.
    """
    name = parts.settings.no_auth
    if name is None:
        return None
    named = [urlsplit(f"//{request.headers.get('host', '')}").hostname or ""]
    origin = request.headers.get("origin")
    if origin is not None:
        named.append(urlsplit(origin).hostname or "")
    if not all(map(is_loopback, named)):
        return None
    found = find_identity(parts.db, name)
    if found is None or found.is_disabled:
        return None
    return Caller(found.user_id, "", (EVERYTHING,), found.is_admin)


def presented(request: Request) -> str:
    """Return the key or the token that a request shows, or nothing."""
    header = request.headers.get("authorization", "")
    if header.lower().startswith(BEARER):
        return header[len(BEARER) :].strip()
    return request.headers.get("x-api-key", "").strip()


def _with_scope(known: Caller, scope: str) -> Caller:
    if not known.may(scope):
        raise Forbidden(scope)
    return known
