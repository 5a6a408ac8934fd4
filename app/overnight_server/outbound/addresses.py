"""Addresses that users name: their form, and the machines that they lead to.

An operator may name any machine. The addresses of other users must lead to public machines only,
else a user could let the service call machines that only it can reach.
"""

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from overnight.errors import InvalidRequest
from overnight_server.domain.public_addresses import is_public

LEGAL_BASE = (
    "http:// or https://, a host, maybe a port and a path; such as https://agent.example.com"
)
LEGAL = "http:// or https://, a host, maybe a port, a path and a query; without user and password"
PORTS = {"http": 80, "https": 443}
# What a host name consists of; an IPv6 address has colons.
HOST = re.compile(r"(?!-)[a-z0-9_-]{1,63}(\.(?!-)[a-z0-9_-]{1,63})*\.?|[0-9a-f:.]+")
MAX_HOST = 253


class AddressRefused(Exception):
    """A host has no address that the service may call."""


@dataclass(frozen=True)
class WebAddress:
    """The parts of a URL."""

    scheme: str
    host: str
    port: int
    path: str
    query: str = ""

    @property
    def url(self) -> str:
        """The whole URL."""
        return f"{self.origin}{self.path}{self._question}"

    @property
    def origin(self) -> str:
        """The beginning of the URL, up to the path."""
        return f"{self.scheme}://{self.netloc}"

    @property
    def netloc(self) -> str:
        """The host, and the port unless it is the usual one: the value of the header Host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    def at(self, machine: str) -> str:
        """Return the URL with the address of a machine instead of the host."""
        host = f"[{machine}]" if ":" in machine else machine
        return f"{self.scheme}://{host}:{self.port}{self.path}{self._question}"

    @property
    def _question(self) -> str:
        return f"?{self.query}" if self.query else ""


def parse_base(url: str) -> WebAddress:
    """Return the parts of a URL to which paths are added: without a query or a final slash.

    Raises InvalidRequest, which names the field `url`.
    """
    address = parse_address(url, field="url", legal=LEGAL_BASE)
    if address.query:
        raise _invalid(url, "url", LEGAL_BASE)
    return WebAddress(address.scheme, address.host, address.port, address.path.rstrip("/"))


def parse_address(url: str, *, field: str, legal: str = LEGAL) -> WebAddress:
    """Return the parts of a URL; raise InvalidRequest for one that no request can have."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _invalid(url, field, legal) from None
    if not _is_plain(parts) or not url.isascii() or any(char.isspace() for char in url):
        raise _invalid(url, field, legal)
    return WebAddress(
        parts.scheme,
        str(parts.hostname),
        port or PORTS[parts.scheme],
        parts.path,
        parts.query,
    )


def allowed_machines(found: Sequence[str], *, private_allowed: bool) -> list[str]:
    """Return the machines among those found that may be called; raise AddressRefused if none."""
    allowed = [
        machine
        for machine in found
        if private_allowed or (is_public(machine) and not _is_own(machine))
    ]
    if not allowed:
        raise AddressRefused(
            "the host leads to a private address, which only an operator may add"
            if found
            else "the host has no address"
        )
    return allowed


def _is_own(machine: str) -> bool:
    """Return whether an address is one of this machine, which may have a public one."""
    family = socket.AF_INET6 if ":" in machine else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            # This sends nothing: the kernel chooses the address to send from.
            probe.connect((machine, 1))
            return bool(probe.getsockname()[0] == machine)
    except OSError:
        return False


def check_reachable(address: WebAddress, *, field: str) -> None:
    """Raise InvalidRequest unless a URL of an ordinary user leads to a public machine now.

    Whoever connects checks again, because the name may lead elsewhere then.
    """
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        allowed_machines([str(entry[4][0]) for entry in found], private_allowed=False)
    except (OSError, UnicodeError):
        # UnicodeError: the host has a part that no name server could know.
        raise InvalidRequest(field, "has a host that is not known", legal=LEGAL) from None
    except AddressRefused as refused:
        raise InvalidRequest(field, str(refused), legal="the address of a public host") from None


def _is_plain(parts: SplitResult) -> bool:
    return (
        parts.scheme in PORTS
        and bool(HOST.fullmatch(parts.hostname or ""))
        and len(parts.hostname or "") <= MAX_HOST
        and parts.port != 0
        and not (parts.fragment or parts.username or parts.password)
    )


def _invalid(url: str, field: str, legal: str) -> InvalidRequest:
    return InvalidRequest(field, f"is {url[:100]!r}", legal=legal)
