"""Choose TCP ports on this machine that nobody else will take."""

import secrets
import socket

LOOPBACK = "127.0.0.1"
#: Below the range from which systems lend ports to outgoing connections: a client that keeps
#: trying a lent port while its server is away may end up connected to itself.
LOWEST, HIGHEST = 20_000, 32_000
TRIES = 200


def free_port(*, taken: frozenset[int] = frozenset()) -> int:
    """Pick a port of the loopback address that is free now and not among `taken`."""
    for _ in range(TRIES):
        port = LOWEST + secrets.randbelow(HIGHEST - LOWEST)
        if port not in taken and is_free(port):
            return port
    raise OSError(f"no free port found between {LOWEST} and {HIGHEST}")


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Say whether a server could listen on this port now."""
    with socket.socket() as probe:
        # As servers do: connections that ended a moment ago do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
