"""Middleware that compresses pages, JSON, style sheets and scripts with gzip."""

import gzip

from anyio.to_thread import run_sync
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Smaller contents gain less than the headers cost.
SMALLEST = 1000
#: From so many bytes on, a thread compresses, so that other requests are not delayed.
LARGE = 100_000
#: Twice as fast as level 9, for contents that are a few percent larger.
LEVEL = 5
COMPRESSED = frozenset(
    {
        "application/json",
        "application/problem+json",
        "image/svg+xml",
        "text/css",
        "text/html",
        "text/javascript",
    }
)


class CompressResponses:
    """Compresses a response of the types in COMPRESSED, if the client takes gzip.

    A stream, a part of a content, a download and a response with an ETag are sent as they are: a
    stream has to be sent piece by piece, offsets count the bytes of the original, and an ETag names
    one sequence of bytes.

    The size of a compressed page may tell a secret in it to somebody who chooses other text of the
    page and sees how long it is (BREACH). The only secret that pages repeat is the token of their
    forms, and `dashboard.form_tokens` writes it anew for each page. JSON has no such secret: other
    sites cannot ask for it, because it needs a key in a header.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] == "HEAD":
            await self._app(scope, receive, send)
            return
        accepts = "gzip" in Headers(scope=scope).get("accept-encoding", "")
        await self._app(scope, receive, _Compressor(send, accepts=accepts).send)


class _Compressor:
    """Sends one response: its first message is kept until the body shows how it is to be sent."""

    def __init__(self, send: Send, *, accepts: bool) -> None:
        self._send = send
        self._accepts = accepts
        self._start: Message | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and is_compressible(message):
            self._start = message
            return
        if self._start is not None:
            message = await self._begin(self._start, message)
            self._start = None
        await self._send(message)

    async def _begin(self, start: Message, first: Message) -> Message:
        """Send the start of the response; return the message with its body."""
        body: bytes = first.get("body", b"")
        headers = MutableHeaders(raw=start["headers"])
        is_whole = first["type"] == "http.response.body" and not first.get("more_body", False)
        if is_whole and len(body) >= SMALLEST:
            headers.add_vary_header("Accept-Encoding")
            if self._accepts:
                body = await _compress(body)
                headers["Content-Encoding"] = "gzip"
                headers["Content-Length"] = str(len(body))
                first = {**first, "body": body}
        await self._send(start)
        return first


def is_compressible(start: Message) -> bool:
    """Whether a response may be compressed, as far as its status and headers tell."""
    headers = Headers(raw=start["headers"])
    media_type = headers.get("content-type", "").partition(";")[0].strip()
    is_plain = not any(
        name in headers
        for name in ("content-encoding", "content-range", "content-disposition", "etag")
    )
    return media_type in COMPRESSED and is_plain and start["status"] != PARTIAL


PARTIAL = 206


async def _compress(body: bytes) -> bytes:
    if len(body) < LARGE:
        return gzip.compress(body, LEVEL, mtime=0)
    return await run_sync(gzip.compress, body, LEVEL)
