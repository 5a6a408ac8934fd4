"""Services for desktops, phones and chats: the library Apprise, of the extra `notify`.

One text may name several services for the library, and options of a URL make it read addresses and
files: what somebody who is no operator names is checked here, when it is added and when it is used.
"""

import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

LIBRARY = "apprise"
MISSING = "pip install 'overnight[notify]'"
# Services at hosts of their own, which everybody may use. Others could name a private machine, and
# some act on the machine of the notifier: only an operator adds them.
PUBLIC_SERVICES = frozenset(
    {"discord", "gchat", "pagerduty", "pbul", "pover", "slack", "tgram", "twilio"}
)
SERVICE = re.compile(r"([a-z][a-z0-9+]{1,30})://\S+", re.IGNORECASE)
# The library splits a text at these, or reads options after them.
SEPARATORS = re.compile(r"[\s,;?&]")
LEGAL_PUBLIC = (
    f"one URL without options of {', '.join(sorted(PUBLIC_SERVICES))}; an operator may add others"
)


class ServiceRefused(Exception):
    """A URL names what only an operator may use."""


class ChatService(Protocol):
    """What one URL names."""

    def add(self, url: str) -> bool:
        """Return whether a URL is one of a service."""

    def notify(self, *, title: str, body: str) -> bool | None:
        """Return whether the service has accepted a message."""

    def __iter__(self) -> Iterator[Any]:
        """Return the services one by one."""


def has_services() -> bool:
    """Return whether the library is installed."""
    return find_spec(LIBRARY) is not None


def scheme_of(url: str) -> str | None:
    """Return the name of the service that a URL begins with; None if it is no such URL."""
    match = SERVICE.fullmatch(url)
    return match[1].lower() if match else None


def open_service(url: str, *, any_allowed: bool) -> ChatService | None:
    """Return the service at a URL; None if the URL is of no service. The library is installed.

    Raises ServiceRefused for what not everybody may use, unless `any_allowed`. Redirects are not
    followed: a public service could else lead to a private machine.
    """
    if not any_allowed:
        _check_text(url)
    library = import_module(LIBRARY)
    service: ChatService = library.Apprise(asset=library.AppriseAsset(http_redirects=False))
    if not service.add(url):
        return None
    if not any_allowed:
        _check_parsed(service)
    return service


def _check_text(url: str) -> None:
    separator = SEPARATORS.search(url)
    if separator is not None:
        raise ServiceRefused(f"has {separator[0]!r}, after which the URL could name something else")
    scheme = scheme_of(url)
    if scheme is not None and scheme not in PUBLIC_SERVICES:
        raise ServiceRefused(f"has the service {scheme}")


def _check_parsed(service: ChatService) -> None:
    """Check what the library has understood, whatever the text looked like."""
    parts = list(service)
    if len(parts) != 1:
        raise ServiceRefused(f"names {len(parts)} services")
    [part] = parts
    if part.secure_protocol not in PUBLIC_SERVICES or part.protocol:
        raise ServiceRefused(f"has the service {part.service_name}")
    if getattr(part, "template", None):
        raise ServiceRefused("has a template, which the notifier would read")
