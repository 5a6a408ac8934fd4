"""A pooler in transaction mode: every transaction runs on another session of Postgres.

PgBouncer does the same if it has the choice. Here the sessions take turns, so that a transaction
that needs anything from an earlier one always fails. It speaks as much of the protocol as psycopg2
uses: the simple query, without passwords and without TLS.
"""

import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psycopg2
from sqlalchemy.engine import make_url

SESSIONS = 3
SSL_REQUEST, GSS_REQUEST = 80877103, 80877104
QUERY, TERMINATE, READY = b"Q", b"X", b"Z"
IDLE = b"I"
PARAMETERS = {
    "server_version": "16.0",
    "client_encoding": "UTF8",
    "DateStyle": "ISO, MDY",
    "TimeZone": "Etc/UTC",
    "integer_datetimes": "on",
    "standard_conforming_strings": "on",
}


@dataclass
class TransactionPooler:
    """A pooler for one login of one database; `url` is its address."""

    target: str
    #: The names of the startup parameters that clients sent.
    startup_parameters: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Listen on a free port and open the sessions."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sessions = [psycopg2.connect(self.target) for _ in range(SESSIONS)]
        free = [socket.socket(fileno=os.dup(session.fileno())) for session in self._sessions]
        for server in free:
            server.settimeout(None)
        self._free = free
        self._changed = threading.Condition()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """The address of the database behind the pooler, as a process gets it."""
        port = self._listener.getsockname()[1]
        url = make_url(self.target).set(host="127.0.0.1", port=port)
        pooled = url.update_query_dict({"pooler": "transaction"})
        return pooled.render_as_string(hide_password=False)

    def close(self) -> None:
        """End the sessions and stop listening."""
        self._listener.close()
        for server in self._free:
            server.close()
        for session in self._sessions:
            session.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(ConnectionError, OSError):
            self._greet(client)
            while (message := _read_message(client))[:1] != TERMINATE:
                server = self._take()
                try:
                    while _relay(client, server, message) != IDLE:
                        message = _read_message(client)
                finally:
                    self._give_back(server)

    def _take(self) -> socket.socket:
        with self._changed:
            self._changed.wait_for(lambda: self._free)
            return self._free.pop(0)

    def _give_back(self, server: socket.socket) -> None:
        with self._changed:
            self._free.append(server)
            self._changed.notify()

    def _greet(self, client: socket.socket) -> None:
        while True:
            [length] = struct.unpack("!i", _read(client, 4))
            startup = _read(client, length - 4)
            if struct.unpack("!i", startup[:4])[0] not in {SSL_REQUEST, GSS_REQUEST}:
                break
            client.sendall(b"N")
        texts = startup[4:].split(b"\0")
        self.startup_parameters |= {name.decode() for name in texts[::2] if name}
        statuses = b"".join(
            _message(b"S", f"{name}\0{value}\0".encode()) for name, value in PARAMETERS.items()
        )
        authenticated, key = _message(b"R", bytes(4)), _message(b"K", bytes(8))
        client.sendall(authenticated + statuses + key + _message(READY, IDLE))


@contextmanager
def transaction_pooler(target: str) -> Iterator[TransactionPooler]:
    """Run a pooler before a database until the context ends."""
    pooler = TransactionPooler(target)
    try:
        yield pooler
    finally:
        pooler.close()


def _relay(client: socket.socket, server: socket.socket, message: bytes) -> bytes:
    """Send a query to a session and its response to the client; return the transaction's status."""
    assert message[:1] == QUERY, f"the pooler cannot pass on {message[:1]!r}"
    server.sendall(message)
    while True:
        response = _read_message(server)
        client.sendall(response)
        if response[:1] == READY:
            return response[-1:]


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def _read_message(source: socket.socket) -> bytes:
    head = _read(source, 5)
    return head + _read(source, struct.unpack("!i", head[1:])[0] - 4)


def _read(source: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        chunk = source.recv(size - len(received))
        if not chunk:
            raise ConnectionError
        received += chunk
    return received
