"""Services for desktops, phones and chats: the library Apprise, of the extra `notify`."""

from importlib import import_module
from importlib.util import find_spec
from typing import Protocol

LIBRARY = "apprise"
MISSING = "pip install 'overnight[notify]'"


class ChatService(Protocol):
    """A service at one URL."""

    def add(self, url: str) -> bool:
        """Return whether a URL is one of a service."""

    def notify(self, *, title: str, body: str) -> bool | None:
        """Return whether the service has accepted a message."""


def has_services() -> bool:
    """Return whether the library is installed."""
    return find_spec(LIBRARY) is not None


def open_service(url: str) -> ChatService | None:
    """Return the service at a URL; None if the URL is of no service. The library is installed."""
    service: ChatService = import_module(LIBRARY).Apprise()
    return service if service.add(url) else None
