"""Connections of an API process: how many there are, and how long one may wait for a request.

A connection waits while no complete header of a request has arrived. It is closed after a time, and
earlier if a new connection finds no room: the connection that has waited longest is closed, so that
half-sent requests keep nobody out. If all connections have requests in progress, a few more are
accepted for health checks; other requests on these get 503.
"""

import asyncio
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

from fastapi import Request
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from overnight.errors import Overloaded
from overnight_server.api.http.openapi import PUBLIC_PATHS
from overnight_server.api.http.problems import refused
from overnight_server.settings import Settings

#: Connections above the limit, on which only health checks are served.
HEALTH_CONNECTIONS: Final = 16
#: Descriptors for everything but connections of clients: files, Redis, streams; Postgres is extra.
OTHER_DESCRIPTORS: Final = 48
MAX_HEADER_BYTES: Final = 64 * 1024
#: How long a client may leave a response unread.
MAX_UNREAD_SECONDS: Final = 60.0


@dataclass(frozen=True)
class ConnectionLimits:
    """How many connections may be open, and how long one may wait for a header."""

    max_connections: int
    header_seconds: float

    @classmethod
    def of(cls, settings: Settings) -> "ConnectionLimits":
        """Return the limits of the settings, with room for them among the file descriptors."""
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # More than all its connections to Postgres.
        others = OTHER_DESCRIPTORS + HEALTH_CONNECTIONS + 6 * settings.database_pool_size
        return cls(
            max(1, min(settings.max_connections, descriptors - others)),
            settings.request_header_timeout,
        )


class Connections:
    """All connections of a process; used by the event loop's thread only.

    `report` is called with the reason for each connection that is closed.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        report: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._report = report
        self._clock = clock
        self._open: set[GuardedProtocol] = set()
        # The connections that wait for a header, and those whose client does not read, each with
        # the time since when; the longest comes first.
        self._waiting: dict[GuardedProtocol, float] = {}
        self._unread: dict[GuardedProtocol, float] = {}

    def add(self, connection: "GuardedProtocol") -> None:
        """Add a new connection, and close another one or this one if there are too many."""
        self._open.add(connection)
        self.wait_for_header(connection)
        if not self.is_above_limit():
            return
        longest = next(iter(self._waiting))
        if longest is not connection:
            self._close(longest, "too many connections, and this one sent no complete header")
        elif len(self._open) <= self._limits.max_connections + HEALTH_CONNECTIONS:
            connection.serves_health_only = True
        else:
            self._close(connection, "too many connections with requests in progress")

    def is_above_limit(self) -> bool:
        """Whether more connections are open than serve all requests."""
        return len(self._open) > self._limits.max_connections

    def remove(self, connection: "GuardedProtocol") -> None:
        """Forget a connection that was closed."""
        self._open.discard(connection)
        self._waiting.pop(connection, None)
        self._unread.pop(connection, None)

    def wait_for_header(self, connection: "GuardedProtocol") -> None:
        """Limit the time until the header of the next request is complete."""
        self._waiting[connection] = self._clock()

    def end_wait(self, connection: "GuardedProtocol") -> None:
        """End that limit: the header is complete."""
        self._waiting.pop(connection, None)

    def wait_for_reader(self, connection: "GuardedProtocol", *, is_waiting: bool) -> None:
        """Limit the time until the client reads what was sent, or end that limit."""
        if is_waiting:
            self._unread.setdefault(connection, self._clock())
        else:
            self._unread.pop(connection, None)

    def refuse_header(self, connection: "GuardedProtocol") -> None:
        """Abort a connection whose header is too long, without a response."""
        self._close(connection, f"the header of a request has more than {MAX_HEADER_BYTES} bytes")

    def close_overdue(self) -> None:
        """Close the connections that have waited too long; called every second."""
        for waiting, seconds, reason in (
            (self._waiting, self._limits.header_seconds, "no complete header in time"),
            (self._unread, MAX_UNREAD_SECONDS, "the client did not read the response in time"),
        ):
            oldest = self._clock() - seconds
            overdue = [connection for connection, since in waiting.items() if since <= oldest]
            for connection in overdue:
                self._close(connection, reason)

    def _close(self, connection: "GuardedProtocol", reason: str) -> None:
        self.remove(connection)
        self._report(reason)
        connection.transport.abort()


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's connection, which tells `Connections` what it waits for."""

    def __init__(self, *args: Any, connections: Connections, **options: Any) -> None:  # noqa: ANN401 - uvicorn's arguments
        super().__init__(*args, **options)
        self._connections = connections
        self._is_in_body = False
        self._has_ended_header = False
        self._header_bytes = 0
        self.serves_health_only = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection."""
        super().connection_made(cast("asyncio.Transport", transport))
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self._connections.remove(self)

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived; close the connection if a header becomes too long."""
        was_in_body = self._is_in_body
        self._has_ended_header = False
        super().data_received(data)
        if was_in_body:
            self._header_bytes = 0
            return
        if not self._has_ended_header:
            self._header_bytes += len(data)
        if self._header_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            self._connections.refuse_header(self)
        if self._has_ended_header:
            self._header_bytes = 0

    def on_headers_complete(self) -> None:
        """Serve the request; on a connection above the limit, only a health check."""
        self._is_in_body = self._has_ended_header = True
        # The body may have arrived with the header.
        self._header_bytes = len(self.url) + sum(
            len(name) + len(value) for name, value in self.headers
        )
        self._connections.end_wait(self)
        self.serves_health_only &= self._connections.is_above_limit()
        path = self.url.partition(b"?")[0].decode("latin-1")
        if self.serves_health_only and path not in PUBLIC_PATHS:
            self.app = cast("Any", respond_overloaded)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Note that a header follows."""
        self._is_in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, unless it has arrived already."""
        is_waiting = not self.pipeline
        super().on_response_complete()
        if is_waiting and not self.transport.is_closing():
            self._connections.wait_for_header(self)

    def pause_writing(self) -> None:
        """Limit how long the client may leave the response unread."""
        super().pause_writing()
        self._connections.wait_for_reader(self, is_waiting=True)

    def resume_writing(self) -> None:
        """End that limit."""
        super().resume_writing()
        self._connections.wait_for_reader(self, is_waiting=False)


async def respond_overloaded(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond 503 to a request on a connection above the limit, and close the connection."""
    response = refused(
        Request(scope), Overloaded("all connections of the service have requests in progress")
    )
    response.headers["Connection"] = "close"
    await response(scope, receive, send)


def protocol_class(connections: Connections) -> type[asyncio.Protocol]:
    """Return the class of connections for uvicorn, bound to these connections."""
    return cast("type[asyncio.Protocol]", partial(GuardedProtocol, connections=connections))
