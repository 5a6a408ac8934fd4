"""Middleware for every request: security headers, a limit on body sizes, NUL in paths."""

from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
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
MAX_BODY_BYTES = 1024 * 1024
# A graph is submitted in one request, so its body may be larger.
GRAPH_PATHS = "/api/v1/dags"
# So may the body with an artifact; a setting limits the size of the artifact itself.
ARTIFACT_PATHS = "/artifacts"
MAX_LARGE_BODY_BYTES = 16 * 1024 * 1024


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


class LimitBodySize:
    """Responds 413 to a request body that is too large.

    A body with a declared length is refused before it is read, any other one as soon as more
    than the limit has arrived.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        is_large = path.startswith(GRAPH_PATHS) or path.endswith(ARTIFACT_PATHS)
        limit = MAX_LARGE_BODY_BYTES if is_large else MAX_BODY_BYTES
        # Nineteen digits are enough for the comparison; parsing a longer number costs time.
        declared = dict(scope["headers"]).get(b"content-length", b"")[:19]
        is_too_large = declared.isdigit() and int(declared) > limit
        received = 0

        async def receive_within_limit() -> Message:
            nonlocal received
            if is_too_large:
                raise _too_large(limit)
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise _too_large(limit)
            return message

        await self._app(scope, receive_within_limit, send)


def _too_large(limit: int) -> HTTPException:
    return HTTPException(413, f"the request body is too large; the limit is {limit} bytes")


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
