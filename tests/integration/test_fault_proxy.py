"""The fault proxy of the chaos tests produces each fault as configured."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.chaos.proxy import FaultProxy, LinkFault, ProxyLink

TIMEOUT_SECONDS = 5.0
MOMENT = 0.2


@pytest.fixture
def echo() -> Iterator[int]:
    """An echo server."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    line, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(line,), daemon=True).start()

        def answer(line: socket.socket) -> None:
            with line:
                try:
                    while received := line.recv(1024):
                        line.sendall(received)
                except OSError:
                    return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(TIMEOUT_SECONDS)


@pytest.fixture
def link(echo: int) -> Iterator[ProxyLink]:
    with FaultProxy() as proxy:
        yield proxy.link(echo)


@pytest.fixture
def line(link: ProxyLink) -> Iterator[socket.socket]:
    """A connection through the link that works."""
    with connect(link) as made:
        assert exchange(made, b"hello") == b"hello"
        yield made


def connect(link: ProxyLink) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", link.port), timeout=TIMEOUT_SECONDS)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def exchange(line: socket.socket, sent: bytes) -> bytes:
    line.sendall(sent)
    return line.recv(1024)


def receives_nothing(line: socket.socket) -> bool:
    line.settimeout(MOMENT)
    try:
        line.recv(1024)
    except TimeoutError:
        return True
    finally:
        line.settimeout(TIMEOUT_SECONDS)
    return False


def test_a_cut_resets_open_connections_and_accepts_new_ones(
    link: ProxyLink, line: socket.socket
) -> None:
    link.cut()

    with pytest.raises(ConnectionResetError):
        line.recv(1024)
    with connect(link) as another:
        assert exchange(another, b"again") == b"again"


def test_a_delay_slows_down_the_response(link: ProxyLink, line: socket.socket) -> None:
    link.set_fault(LinkFault.DELAY, delay_seconds=0.1)
    began = time.monotonic()

    assert exchange(line, b"slow") == b"slow"

    assert time.monotonic() - began >= 0.2  # there and back


def test_a_half_open_link_drops_data_and_is_reset_when_it_heals(
    link: ProxyLink, line: socket.socket
) -> None:
    link.set_fault(LinkFault.HALF_OPEN)
    line.sendall(b"lost")
    silent = receives_nothing(line)
    with connect(link) as accepted:
        accepted.sendall(b"lost too")
        silent_too = receives_nothing(accepted)
        link.heal()

        assert silent
        assert silent_too
        with pytest.raises(ConnectionResetError):
            accepted.recv(1024)
    with pytest.raises(ConnectionResetError):
        line.recv(1024)


@pytest.mark.parametrize("fault", [LinkFault.DEAF_SERVER, LinkFault.DEAF_CLIENT])
def test_a_partition_delivers_withheld_data_when_it_heals(
    link: ProxyLink, line: socket.socket, fault: LinkFault
) -> None:
    link.set_fault(fault)
    line.sendall(b"late")
    silent = receives_nothing(line)

    link.heal()

    assert silent
    assert line.recv(1024) == b"late"


def test_a_trickle_delivers_one_byte_and_the_rest_when_it_heals(
    link: ProxyLink, line: socket.socket
) -> None:
    link.set_fault(LinkFault.TRICKLE)
    line.sendall(b"drop")
    first = line.recv(1024)

    link.heal()
    rest = b""
    while len(rest) < 3:
        rest += line.recv(1024)

    assert first + rest == b"drop"
    assert len(first) == 1


def test_a_refusing_link_accepts_no_connection(link: ProxyLink) -> None:
    link.set_fault(LinkFault.REFUSE)

    with pytest.raises(ConnectionResetError), connect(link) as refused:
        refused.recv(1024)


def test_a_lost_commit_reaches_the_server_without_a_confirmation(
    link: ProxyLink, line: socket.socket
) -> None:
    link.forget_next_commit(after=1)

    assert exchange(line, b"COMMIT 1") == b"COMMIT 1"
    line.sendall(b"COMMIT 2")
    with pytest.raises(ConnectionResetError):
        line.recv(1024)
    with connect(link) as another:
        assert exchange(another, b"COMMIT 3") == b"COMMIT 3"
