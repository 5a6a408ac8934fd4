"""Callers of the API that send one request after the other and take little time themselves."""

import selectors
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

CHUNK_BYTES = 256 * 1024


class RequestFailed(Exception):
    """A response was not a success; the message holds it."""


@dataclass(frozen=True)
class HttpCalls:
    """How long each request of all callers took, in milliseconds, and how many a second ended."""

    milliseconds: Sequence[float]
    per_second: float


def call_api(requests: Sequence[bytes], port: int, *, calls: int) -> HttpCalls:
    """Send each request again and again over a connection of its own, `calls` times in all.

    A client library would take longer than the API itself, on the same cores.
    """
    waits: list[float] = []
    sent_at: dict[int, float] = {}
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        callers = [
            (stack.enter_context(socket.create_connection(("127.0.0.1", port))), request)
            for request in requests
        ]
        began = time.perf_counter()
        for connection, request in callers:
            selector.register(connection, selectors.EVENT_READ, (connection, request))
            sent_at[connection.fileno()] = time.perf_counter()
            connection.sendall(request)
        while len(waits) < calls:
            for ready, _ in selector.select():
                connection, request = ready.data
                read_response(connection)
                now = time.perf_counter()
                waits.append((now - sent_at[ready.fd]) * 1000)
                sent_at[ready.fd] = now
                connection.sendall(request)
        seconds = time.perf_counter() - began
        # The last requests are answered before the connections close.
        for connection, _ in callers:
            read_response(connection)
    return HttpCalls(waits, len(waits) / seconds)


def as_request(method: str, path: str, key: str, body: bytes = b"") -> bytes:
    """Return a request over HTTP/1.1 with an API key."""
    head = [
        f"{method} {path} HTTP/1.1",
        "Host: 127.0.0.1",
        f"X-API-Key: {key}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join([*head, "", ""]).encode() + body


def read_response(connection: socket.socket) -> bytes:
    """Read one response and return its body; raise RequestFailed unless it is a success."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += _read_some(connection)
    head, _, body = received.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += _read_some(connection)
    if not head.startswith(b"HTTP/1.1 2"):
        raise RequestFailed(head.decode() + "\n\n" + body.decode())
    return body


def _read_some(connection: socket.socket) -> bytes:
    if chunk := connection.recv(CHUNK_BYTES):
        return chunk
    raise RequestFailed("the API closed the connection")
