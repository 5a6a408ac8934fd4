"""The socket that the API is served on."""

import socket

from overnight_server.cli.commands.processes import _listen


def test_served_connections_have_tcp_nodelay() -> None:
    with (
        _listen("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
    ):
        served, _ = listener.accept()
        with served:
            assert served.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
