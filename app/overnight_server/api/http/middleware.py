"""What holds for every request: private answers, bodies within bounds, paths that can be asked."""

from collections.abc import Mapping
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PRIVATE = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
MAX_BODY_BYTES = 1024 * 1024
# A graph comes whole, so it may be larger than any task.
GRAPHS = "/api/v1/dags"
MAX_GRAPH_BYTES = 16 * 1024 * 1024
# So may what a run keeps; how large an artifact may be the settings say.
ARTIFACTS = "/artifacts"


def add_headers(request: Request, headers: Mapping[str, str]) -> None:
    """Have the answer to this request bear these headers, whoever writes it."""
    request.state.added_headers = headers


class PrivateAnswers:
    """Adds the headers above, and those of one request, to every answer that lacks them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        state: dict[str, Any] = scope.setdefault("state", {})

        async def send_privately(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in (PRIVATE | state.get("added_headers", {})).items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_privately if scope["type"] == "http" else send)


class BoundedBodies:
    """Refuses a body above the limit as soon as it is known to be one.

    A declared length is refused unread; an undeclared one when the limit is passed.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        is_large = path.startswith(GRAPHS) or path.endswith(ARTIFACTS)
        most = MAX_GRAPH_BYTES if is_large else MAX_BODY_BYTES
        # Nineteen digits tell enough; more would only be work.
        declared = dict(scope["headers"]).get(b"content-length", b"")[:19]
        is_too_large = declared.isdigit() and int(declared) > most
        taken = 0

        async def receive_within_bounds() -> Message:
            nonlocal taken
            if is_too_large:
                raise _too_large(most)
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > most:
                raise _too_large(most)
            return message

        await self._app(scope, receive_within_bounds, send)


def _too_large(most: int) -> HTTPException:
    return HTTPException(413, f"a request body holds at most {most} bytes")


class SoundPaths:
    """Has a NUL character in a path name nothing, as any other strange one does.

    Postgres cannot even be asked for it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if "\0" in scope.get("path", ""):
            scope = {**scope, "path": scope["path"].replace("\0", "\N{REPLACEMENT CHARACTER}")}
        await self._app(scope, receive, send)
