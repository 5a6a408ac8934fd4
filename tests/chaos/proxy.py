"""A TCP proxy between one process and one server that injects connection faults.

A link passes bytes until a fault is set. All links run in one thread of the proxy; other threads
may call `set_fault`.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from enum import StrEnum
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from overnight_server.local.ports import LOOPBACK, free_port

CHUNK: Final = 65_536
TRICKLE_SECONDS: Final = 1.0
# On close the kernel then sends a reset and drops undelivered bytes.
RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
# Statements that commit a transaction; some commit in the same round trip that starts them.
COMMITS: Final = (
    b"COMMIT",
    b"EXECUTE prepare_idle_claim",
    b"EXECUTE insert_tasks_if_within_limits",
    b"EXECUTE start (",
)
T = TypeVar("T")


class LinkFault(StrEnum):
    """The fault of a link; PASS is none."""

    PASS = "pass"
    DELAY = "delay"
    # One byte a second, in both directions.
    TRICKLE = "trickle"
    # Connections are accepted, but bytes are dropped; the connection is reset afterwards.
    HALF_OPEN = "half-open"
    # One direction is blocked; its bytes arrive when the fault ends.
    DEAF_SERVER = "deaf-server"
    DEAF_CLIENT = "deaf-client"
    # A COMMIT reaches the server, but its answer never reaches the client.
    FORGET_COMMIT = "forget-commit"
    FORGET_ONE_COMMIT = "forget-one-commit"
    REFUSE = "refuse"


class ProxyLink:
    """One listening port in front of one server's port; `fault` may be changed at any time."""

    def __init__(self, proxy: "FaultProxy", target: int) -> None:
        self._proxy = proxy
        self._target = target
        self.port = free_port()
        self.fault = LinkFault.PASS
        self.delay_seconds = 0.0
        self.commits_to_pass = 0
        # How often the fault affected bytes or a connection.
        self.hits = 0
        self._pairs: set[_Pair] = set()
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None

    @property
    def open_connections(self) -> int:
        """The number of open connections."""
        return len(self._pairs)

    def set_fault(self, fault: LinkFault, *, delay_seconds: float = 0.0) -> None:
        """Set the fault of the link."""
        self._proxy.call(self._set_fault(fault, delay_seconds))

    def forget_next_commit(self, *, after: int = 0) -> None:
        """Drop the response to one COMMIT after `after` others, then pass everything again."""
        self.commits_to_pass = after
        self.set_fault(LinkFault.FORGET_ONE_COMMIT)

    def heal(self) -> None:
        """End the fault; connections that lost bytes are reset."""
        self.set_fault(LinkFault.PASS)

    def cut(self) -> int:
        """Reset every open connection and return their number; new ones are accepted."""
        return self._proxy.call(self._cut())

    async def _set_fault(self, fault: LinkFault, delay_seconds: float) -> None:
        self.fault, self.delay_seconds = fault, delay_seconds
        self._changed.set()
        self._changed = asyncio.Event()
        if fault is not LinkFault.HALF_OPEN:
            for pair in [pair for pair in self._pairs if pair.lost_bytes]:
                pair.reset()

    async def _cut(self) -> int:
        pairs = list(self._pairs)
        for pair in pairs:
            pair.reset()
        return len(pairs)

    async def listen(self) -> None:
        """Begin to accept connections."""
        self._server = await asyncio.start_server(self._carry, LOOPBACK, self.port)

    async def close(self) -> None:
        """Reset every connection and accept no more."""
        await self._cut()
        if self._server is not None:
            self._server.close()

    async def changed(self, seconds: float | None = None) -> None:
        """Wait until the fault changes, at most this long."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pair = _Pair(self, writer)
        self._pairs.add(pair)
        try:
            await pair.carry(reader, self._target)
        except (OSError, asyncio.CancelledError):
            pass  # one end closed, or the proxy ends; `finally` resets the other end
        finally:
            pair.reset()
            self._pairs.discard(pair)


class _Pair:
    """One connection and its counterpart to the server."""

    def __init__(self, link: ProxyLink, client: asyncio.StreamWriter) -> None:
        self.link = link
        self.lost_bytes = False
        self.mute = False
        self._writers = [client]

    async def carry(self, reader: asyncio.StreamReader, target: int) -> None:
        """Carry bytes both ways until either end closes."""
        if self.link.fault is LinkFault.REFUSE:
            self.link.hits += 1
            return
        while self.link.fault is LinkFault.HALF_OPEN:
            self.link.hits += 1
            self.lost_bytes = True
            await self.link.changed()
        if self.lost_bytes:
            return
        from_server, to_server = await asyncio.open_connection(LOOPBACK, target)
        self._writers.append(to_server)
        ways = [
            asyncio.ensure_future(self._pump(reader, to_server, LinkFault.DEAF_SERVER)),
            asyncio.ensure_future(self._pump(from_server, self._writers[0], LinkFault.DEAF_CLIENT)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    def reset(self) -> None:
        """End both connections at once, as if the other side had crashed."""
        for writer in self._writers:
            line = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            writer.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, deaf: LinkFault
    ) -> None:
        while data := await reader.read(CHUNK):
            await self._pass_on(data, writer, deaf)

    async def _pass_on(self, data: bytes, writer: asyncio.StreamWriter, deaf: LinkFault) -> None:
        while self.link.fault is deaf:
            self.link.hits += 1
            await self.link.changed()
        match self.link.fault:
            case LinkFault.HALF_OPEN:
                self.link.hits += 1
                self.lost_bytes = True
                return
            case LinkFault.DELAY:
                self.link.hits += 1
                await self.link.changed(self.link.delay_seconds)
            case LinkFault.TRICKLE:
                self.link.hits += 1
                data = await self._trickle(data, writer)
            case LinkFault.FORGET_COMMIT | LinkFault.FORGET_ONE_COMMIT if self._is_to_forget(
                data, deaf
            ):
                self.link.hits += 1
                self.mute = True
                writer.write(data)
                await writer.drain()
                return
            case _ if self.mute:
                # The response to the COMMIT is dropped together with the connection.
                self.reset()
                return
        writer.write(data)
        await writer.drain()

    def _is_to_forget(self, data: bytes, deaf: LinkFault) -> bool:
        if deaf is not LinkFault.DEAF_SERVER or not any(word in data for word in COMMITS):
            return False
        if self.link.fault is LinkFault.FORGET_ONE_COMMIT:
            self.link.commits_to_pass -= 1
            if self.link.commits_to_pass >= 0:
                return False
            self.link.fault = LinkFault.PASS
        return True

    async def _trickle(self, data: bytes, writer: asyncio.StreamWriter) -> bytes:
        while data and self.link.fault is LinkFault.TRICKLE:
            writer.write(data[:1])
            await writer.drain()
            data = data[1:]
            await self.link.changed(TRICKLE_SECONDS)
        return data


class FaultProxy:
    """Links, and the thread that serves them all; used as a context."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._links: list[ProxyLink] = []

    def link(self, target: int) -> ProxyLink:
        """Open a link to a server's port on this machine."""
        link = self.call(self._open(target))
        self._links.append(link)
        return link

    @property
    def open_connections(self) -> int:
        """The number of open connections of all links."""
        return sum(link.open_connections for link in self._links)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the proxy's thread and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _open(self, target: int) -> ProxyLink:
        link = ProxyLink(self, target)
        await link.listen()
        return link

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for link in self._links:
            self.call(link.close())
        self.call(self._finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _finish(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
