"""Choose free TCP ports on this machine."""

import secrets
import socket

LOOPBACK = "127.0.0.1"
#: Below the range that systems use for outgoing connections: a client that retries such a port
#: while its server is down may end up connected to itself.
LOWEST, HIGHEST = 20_000, 32_000
TRIES = 200


def free_port(*, taken: frozenset[int] = frozenset()) -> int:
    """Return a loopback port that is free now and not among `taken`; raise OSError if none is."""
    for _ in range(TRIES):
        port = LOWEST + secrets.randbelow(HIGHEST - LOWEST)
        if port not in taken and is_free(port):
            return port
    raise OSError(f"no free port found between {LOWEST} and {HIGHEST}")


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Return whether a server could listen on this port now."""
    with socket.socket() as probe:
        # Servers set it too: a connection that was closed a moment ago does not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
