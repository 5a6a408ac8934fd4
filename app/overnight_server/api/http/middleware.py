"""Middleware for every request: security headers, and NUL in paths."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SECURITY_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def add_headers(request: Request, headers: Mapping[str, str]) -> None:
    """Add headers to the response of this request, also if the response is an error."""
    request.state.added_headers = headers


def _encode(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Return headers as ASGI sends them: names in lower case, as bytes."""
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]


_RAW_SECURITY_HEADERS = _encode(SECURITY_HEADERS)


class AddSecurityHeaders:
    """Adds SECURITY_HEADERS, and those of `add_headers`, to every response that lacks them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        state: dict[str, Any] = scope.setdefault("state", {})

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                added = (*_RAW_SECURITY_HEADERS, *_encode(state.get("added_headers", {})))
                absent = [header for header in added if header[0] not in present]
                message = {**message, "headers": [*message["headers"], *absent]}
            await send(message)

        await self._app(scope, receive, send_with_headers if scope["type"] == "http" else send)


class ReplaceNulInPath:
    """Replaces NUL characters in paths, because Postgres rejects them in a parameter.

    The id in such a path then exists as little as any other malformed one: the response is 404.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if "\0" in scope.get("path", ""):
            scope = {**scope, "path": scope["path"].replace("\0", "\N{REPLACEMENT CHARACTER}")}
        await self._app(scope, receive, send)
