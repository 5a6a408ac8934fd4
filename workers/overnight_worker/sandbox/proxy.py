"""The only way out of a sandbox: a proxy in the worker that connects to named hosts.

A sandbox has a network namespace of its own, in which nothing but its loopback exists. Process 1
opens a listener on 127.0.0.1 inside and hands it over to the worker, so that connections to it are
accepted outside. A host must be named exactly, and none of its addresses may be private: a name
that leads to the worker's own network is refused after it was resolved, and the connection is made
to the address that was checked.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Final

from overnight_server.domain.public_addresses import is_public
from overnight_worker.sandbox.http_request import Request, parse_head, pass_body
from overnight_worker.sandbox.spec import NetworkPolicy

PROXY_PORT: Final = 3128
DEFAULT_PORTS: Final = (80, 443)
MAX_CONNECTIONS: Final = 64
HEADER_BYTES: Final = 65_536
CHUNK_BYTES: Final = 65_536
HEADER_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 15.0
# A tunnel in which nothing was sent for so long is closed.
IDLE_SECONDS: Final = 600.0
# How many connections of one sandbox are reported, and how long a report is: whoever connects
# without end must not fill the log of the worker.
MAX_REPORTS: Final = 200
MAX_REPORT: Final = 500

Report = Callable[[str], None]
Connect = Callable[[str, int], socket.socket]


class HostRefused(Exception):
    """The proxy may not connect to this host; the message says why."""


def proxy_environment() -> dict[str, str]:
    """Return the variables that lead programs in a sandbox to the proxy."""
    url = f"http://127.0.0.1:{PROXY_PORT}"
    names = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
    excluded = dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1,::1")
    return {**dict.fromkeys(names, url), **excluded}


def is_allowed(policy: NetworkPolicy, host: str, port: int) -> bool:
    """Return whether a policy names a host: `example.com` for ports 80 and 443, or with a port."""
    names = {name.lower().rstrip(".") for name in policy.allow}
    host = host.lower().rstrip(".")
    return f"{host}:{port}" in names or (port in DEFAULT_PORTS and host in names)


def connect_public(host: str, port: int) -> socket.socket:
    """Connect to a host by a public address; raise HostRefused if it has any other, OSError."""
    results = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(result[4][0]) for result in results]
    private = [address for address in addresses if not is_public(address)]
    if private:
        raise HostRefused(f"{host} has the private address {private[0]}")
    failure = OSError(f"{host} has no address")
    for address in addresses:
        try:
            server = socket.create_connection((address, port), CONNECT_SECONDS)
        except OSError as error:
            failure = error
            continue
        # The kernel connects a machine to itself from the address that it connects to.
        if server.getsockname()[0] == server.getpeername()[0]:
            server.close()
            raise HostRefused(f"{host} is the machine of the worker")
        return server
    raise failure


class Proxy:
    """Serves the connections of one sandbox, each in its own thread, until `close`."""

    def __init__(
        self,
        listener: socket.socket,
        policy: NetworkPolicy,
        report: Report,
        connect: Connect | None = None,
    ) -> None:
        self._listener = listener
        self._policy = policy
        self._write_report = report
        self._reports = 0
        self._connect = connect or connect_public
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._is_closed = False
        threading.Thread(target=self._accept, name="sandbox-proxy", daemon=True).start()

    def close(self) -> None:
        """Accept no more, and end every connection."""
        with self._lock:
            self._is_closed = True
            open_sockets = [*self._open]
        for end in (self._listener, *open_sockets):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _report(self, sentence: str) -> None:
        with self._lock:
            self._reports += 1
            number = self._reports
        if number <= MAX_REPORTS:
            self._write_report(sentence[:MAX_REPORT])
        elif number == MAX_REPORTS + 1:
            self._write_report("further connections of the sandbox are not logged")

    def _accept(self) -> None:
        with self._listener:
            while not self._is_closed:
                try:
                    client, _ = self._listener.accept()
                except OSError:
                    return
                if not self._free.acquire(blocking=False):
                    client.close()
                    continue
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client, self._kept(client):
                self._answer(client)
        except (OSError, ValueError) as error:
            self._report(f"a connection of the sandbox failed: {error}")
        finally:
            self._free.release()

    def _answer(self, client: socket.socket) -> None:
        """Read one request, connect to its host, and pass on what both sides send."""
        client.settimeout(HEADER_SECONDS)
        head, rest = _read_head(client)
        try:
            request = parse_head(head)
        except ValueError as error:
            _reply(client, "400 Bad Request", f"{error}\n")
            raise
        host, port = request.host, request.port
        try:
            server = self._open_server(host, port)
        except HostRefused as refusal:
            self._report(f"refused a connection to {host}:{port}: {refusal}")
            _reply(client, "403 Forbidden", f"{refusal}\n")
            return
        except OSError as error:
            self._report(f"could not connect to {host}:{port}: {error}")
            _reply(client, "502 Bad Gateway", f"could not connect to {host}:{port}: {error}\n")
            return
        self._report(f"connected to {host}:{port}")
        with server, self._kept(server):
            if request.is_tunnel:
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                server.sendall(rest)
                _pass_on(client, server, lambda: _copy(client, server))
            else:
                server.sendall(request.head)
                _pass_on(client, server, lambda: _pass_request(request, rest, client, server))

    def _open_server(self, host: str, port: int) -> socket.socket:
        if not is_allowed(self._policy, host, port):
            allowed = ", ".join(self._policy.allow)
            raise HostRefused(f"the task allows only {allowed}")
        return self._connect(host, port)

    @contextlib.contextmanager
    def _kept(self, end: socket.socket) -> Iterator[None]:
        """Keep a socket while it is in use, so that `close` ends it."""
        with self._lock:
            if self._is_closed:
                raise OSError("the sandbox has ended")
            self._open.add(end)
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(end)


def _read_head(client: socket.socket) -> tuple[bytes, bytes]:
    """Return the head of a request, and what was received behind it."""
    received = b""
    while b"\r\n\r\n" not in received:
        chunk = client.recv(CHUNK_BYTES)
        if not chunk or len(received) > HEADER_BYTES:
            raise ValueError("a request without an end of its head")
        received += chunk
    head, _, rest = received.partition(b"\r\n\r\n")
    return head, rest


def _reply(client: socket.socket, status: str, text: str) -> None:
    body = text.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    client.sendall(head.encode() + body)


def _pass_on(client: socket.socket, server: socket.socket, forth: Callable[[], None]) -> None:
    """Copy what both sides send until they have sent everything; `forth` copies to the server."""
    back = threading.Thread(target=_copy, args=(server, client), daemon=True)
    back.start()
    try:
        forth()
    finally:
        back.join()


def _pass_request(
    request: Request, rest: bytes, client: socket.socket, server: socket.socket
) -> None:
    """Pass on the body of one request, and discard what the client sends after it.

    The end of what the client sends is passed on, as it is in a tunnel.
    """
    client.settimeout(IDLE_SECONDS)
    how = socket.SHUT_WR
    try:
        with contextlib.suppress(OSError):
            pass_body(request, rest, lambda: client.recv(CHUNK_BYTES), server.sendall)
            while client.recv(CHUNK_BYTES):
                pass
    except ValueError:
        # The server would wait for the rest of the body, and the client for an answer.
        how = socket.SHUT_RDWR
        raise
    finally:
        with contextlib.suppress(OSError):
            server.shutdown(how)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        source.settimeout(IDLE_SECONDS)
        while chunk := source.recv(CHUNK_BYTES):
            target.sendall(chunk)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
