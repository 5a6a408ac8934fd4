"""Receivers of notifications: a real HTTP server on this machine, and notifiers that send to it."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from overnight_server.notifier.notifier import Notifier
from overnight_server.settings import Settings, load
from overnight_server.store.db import Db

FAST = {
    "OVERNIGHT_ALLOW_SHORT_CLOCKS": "true",
    "OVERNIGHT_NOTIFIER_POLL_INTERVAL": "0.05",
    "OVERNIGHT_DELIVERY_TIMEOUT": "0.5",
    "OVERNIGHT_SHUTDOWN_GRACE": "1",
}


@dataclass(frozen=True)
class Received:
    """One request that a receiver got."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclass
class HttpReceiver:
    """A server that answers each path as its first part says: /204, /500, /302, /hang, /close."""

    requests: list[Received] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    # Answers in place of those that paths say, first to last.
    next_answers: list[str] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    port: int = 0

    def url(self, path: str = "/204") -> str:
        """Return the address of a path."""
        return f"http://127.0.0.1:{self.port}{path}"

    def received(self, path: str = "/204") -> list[Received]:
        """Return the requests to a path, in order."""
        return [request for request in list(self.requests) if request.path == path]

    def answer(self, path: str) -> str:
        """Return what the next request to a path is answered with."""
        return (
            self.next_answers.pop(0) if self.next_answers else path.partition("?")[0].split("/")[1]
        )


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    receiver: HttpReceiver

    def do_POST(self) -> None:
        """Record a request and answer it."""
        length = int(self.headers["Content-Length"])
        body = self.rfile.read(length)
        if len(body) < length:
            # The sender was killed.
            self.close_connection = True
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.receiver.requests.append(Received(self.path, headers, body))
        answer = self.receiver.answer(self.path)
        if answer == "hang":
            self.receiver.released.wait(60)
        if not answer.isdigit():
            self.close_connection = True
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(int(answer))
        for name, value in self.receiver.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Write nothing to stderr."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, *_: object) -> None:
        """Say nothing of connections that a sender has closed."""


@contextmanager
def http_receiver() -> Iterator[HttpReceiver]:
    """Serve a receiver until the end of the block."""
    receiver = HttpReceiver()
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"receiver": receiver}))
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


def notifier_settings(**changes: object) -> Settings:
    """Return the settings of a notifier that looks often and waits shortly."""
    environment = {f"OVERNIGHT_{name.upper()}": str(value) for name, value in changes.items()}
    return load(FAST | environment)


@contextmanager
def notifying(db: Db, settings: Settings | None = None) -> Iterator[None]:
    """Run a notifier in a thread until the end of the block."""
    started = threading.Event()
    running: list[tuple[asyncio.AbstractEventLoop, Notifier]] = []

    async def serve() -> None:
        notifier = Notifier(db, settings or notifier_settings())
        running.append((asyncio.get_running_loop(), notifier))
        started.set()
        await notifier.serve()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    started.wait(10)
    try:
        yield
    finally:
        loop, notifier = running[0]
        loop.call_soon_threadsafe(notifier.stop)
        thread.join()
