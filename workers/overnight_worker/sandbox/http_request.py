"""Requests of commands to the proxy: what a head says, and where a body ends.

A server, or another proxy before it, may understand an unusual request differently, and find a
second request in it that nobody has checked. So only what has one meaning is passed on: a request
whose form is exact, with the length of its body given once.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

_NAME: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST: Final = re.compile(rf"({_NAME}) ([\x21-\x7e]+) (HTTP/1\.[01])")
_FIELD: Final = re.compile(rf"({_NAME}):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
_AUTHORITY: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:/@?#\\]+)):([0-9]{1,5})")
_CHUNK_SIZE: Final = re.compile(r"([0-9A-Fa-f]{1,15})(?:[ \t]*;.*)?")
# What concerns the proxy alone, or is written anew.
_DROPPED: Final = frozenset(
    {"connection", "host", "keep-alive", "proxy-authorization", "proxy-connection", "upgrade"}
)
_LENGTHS: Final = frozenset({"content-length", "transfer-encoding"})
HTTP_PORT: Final = 80
LINE_BYTES: Final = 8192
PIECE_BYTES: Final = 65_536

Receive = Callable[[], bytes]
Send = Callable[[bytes], object]


@dataclass(frozen=True)
class Request:
    """What a command asks of the proxy.

    For the method CONNECT, which asks for a tunnel, there is nothing to pass on. For others `head`
    is what the server gets; `body_bytes` is the length of the body, None if it comes in chunks.
    """

    method: str
    host: str
    port: int
    head: bytes = b""
    body_bytes: int | None = 0

    @property
    def is_tunnel(self) -> bool:
        """Whether everything that follows is passed on unread."""
        return self.method == "CONNECT"


def parse_head(head: bytes) -> Request:
    """Return the request of a head, which has no empty line at its end.

    A connection serves one request, and the server is told so. Raise ValueError for a head that
    does not have the exact form.
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    request = _REQUEST.fullmatch(first)
    if request is None:
        raise ValueError(f"a request that begins with {first[:200]!r}")
    method, target, version = request.groups()
    fields = [_field(line) for line in lines]
    if method == "CONNECT":
        return _tunnel(target)
    url = urlsplit(target)
    if url.scheme != "http" or not url.hostname:
        raise ValueError(f"a request for {target[:200]!r}, which is no http address")
    path = url.path or "/"
    path += f"?{url.query}" if url.query else ""
    kept = [f"{name}: {value}" for name, value in fields if name.lower() not in _DROPPED]
    host, port = url.hostname, url.port or HTTP_PORT
    new = [f"{method} {path} {version}", _host_line(host, port), *kept, "Connection: close", "", ""]
    head = "\r\n".join(new).encode("latin-1")
    return Request(method, host, port, head, _body_bytes(fields, version))


def pass_body(request: Request, received: bytes, receive: Receive, send: Send) -> None:
    """Pass the body of a request on, and nothing that follows it.

    `received` is what came behind the head, `receive` returns what comes next, empty at the end.
    Raise ValueError for a body that does not have the exact form.
    """
    body = _Body(received, receive)
    if request.body_bytes is not None:
        body.pass_bytes(request.body_bytes, send)
        return
    while size := body.chunk_size():
        send(b"%x\r\n" % size)
        body.pass_bytes(size, send)
        if body.line() != b"":
            raise ValueError("a chunk that is longer than it says")
        send(b"\r\n")
    # Fields behind a body mean nothing to most servers; they end at an empty line.
    while body.line():
        pass
    send(b"0\r\n\r\n")


class _Body:
    """What comes behind the head of a request."""

    def __init__(self, received: bytes, receive: Receive) -> None:
        self._waiting = received
        self._receive = receive

    def pass_bytes(self, count: int, send: Send) -> None:
        """Pass on exactly so many bytes."""
        while count:
            self._fill()
            piece = self._waiting[: min(count, PIECE_BYTES)]
            self._waiting = self._waiting[len(piece) :]
            count -= len(piece)
            send(piece)

    def chunk_size(self) -> int:
        """Return the size of the next chunk, 0 for the last one."""
        line = self.line().decode("latin-1")
        match = _CHUNK_SIZE.fullmatch(line)
        if match is None:
            raise ValueError(f"a chunk of the size {line[:50]!r}")
        return int(match[1], 16)

    def line(self) -> bytes:
        """Return the next line without its end."""
        while b"\r\n" not in self._waiting:
            if len(self._waiting) > LINE_BYTES:
                raise ValueError("a line of a body without an end")
            self._waiting += self._next()
        line, _, self._waiting = self._waiting.partition(b"\r\n")
        if b"\n" in line or b"\r" in line:
            raise ValueError("a line of a body with a line feed or a carriage return in it")
        return line

    def _fill(self) -> None:
        if not self._waiting:
            self._waiting = self._next()

    def _next(self) -> bytes:
        data = self._receive()
        if not data:
            raise ValueError("a body that ends too early")
        return data


def _field(line: str) -> tuple[str, str]:
    """Return name and value of a line of a head."""
    field = _FIELD.fullmatch(line)
    if field is None:
        raise ValueError(f"a request with the line {line[:200]!r}")
    return field[1], field[2].rstrip(" \t")


def _host_line(host: str, port: int) -> str:
    name = f"[{host}]" if ":" in host else host
    return f"Host: {name}" if port == HTTP_PORT else f"Host: {name}:{port}"


def _tunnel(target: str) -> Request:
    authority = _AUTHORITY.fullmatch(target)
    if authority is None:
        raise ValueError(f"a tunnel to {target[:200]!r}, which is no host with a port")
    return Request("CONNECT", authority[1] or authority[2], int(authority[3]))


def _body_bytes(fields: list[tuple[str, str]], version: str) -> int | None:
    """Return the length of a body, None for one in chunks; raise ValueError if it is not clear."""
    lengths = [(name.lower(), value) for name, value in fields if name.lower() in _LENGTHS]
    match lengths:
        case []:
            return 0
        case [("content-length", value)] if value.isascii() and value.isdecimal():
            return int(value)
        case [("transfer-encoding", value)] if value.lower() == "chunked" and version[-1] == "1":
            return None
    raise ValueError(f"a request with a body of unclear length: {str(lengths)[:200]}")
