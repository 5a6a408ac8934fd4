"""Who is calling: every request but the health checks shows an API key."""

from typing import Annotated

from fastapi import Depends, Request

from app.api.parts import Use
from app.control.keys import Caller, authenticate

BEARER = "bearer "


class Unauthenticated(Exception):
    """No key, or none that opens anything; which of the two is not told."""


class Forbidden(Exception):
    """The key is good, but was not given this right."""

    def __init__(self, scope: str) -> None:
        super().__init__(f"this key lacks the scope {scope}")


def caller(request: Request, parts: Use) -> Caller:
    """Return who presents the key of this request."""
    key = _presented(request)
    known = authenticate(parts.db, key) if key else None
    if known is None:
        raise Unauthenticated
    return known


def reader(known: Annotated[Caller, Depends(caller)]) -> Caller:
    """Return a caller who may look at tasks."""
    return _with_scope(known, "tasks:read")


def writer(known: Annotated[Caller, Depends(caller)]) -> Caller:
    """Return a caller who may add and cancel tasks."""
    return _with_scope(known, "tasks:write")


Reader = Annotated[Caller, Depends(reader)]
Writer = Annotated[Caller, Depends(writer)]


def _presented(request: Request) -> str:
    header = request.headers.get("authorization", "")
    if header.lower().startswith(BEARER):
        return header[len(BEARER) :].strip()
    return request.headers.get("x-api-key", "").strip()


def _with_scope(known: Caller, scope: str) -> Caller:
    if not known.may(scope):
        raise Forbidden(scope)
    return known
