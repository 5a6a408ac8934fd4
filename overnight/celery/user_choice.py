"""Which user a task belongs to: a name, a function or a header, and the API key of that user."""

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from overnight.client.client import Client
from overnight.errors import NotConfigured

# The header of `apply_async(headers=…)` that names the user of one task.
HEADER = "overnight-user"


@dataclass(frozen=True)
class Submission:
    """A call of `delay` or `apply_async`, for the function that chooses its user."""

    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, Any] = field(default_factory=dict)


User = str | Callable[[Submission], str | None] | None
Keys = Mapping[str, str] | Callable[[str], str | None] | None


class Users:
    """Chooses the user of a task, and has a client for each user.

    Without a user, `OVERNIGHT_API_KEY` or the local stack decides, as for `Client()`.
    """

    def __init__(self, client: Client | None, user: User, keys: Keys) -> None:
        self._client = client
        self._user = user
        self._keys = keys
        self._clients: dict[tuple[int, str | None], Client] = {}
        self._lock = threading.Lock()

    def of(self, submission: Submission) -> str | None:
        """Return the name of the user to whom a task belongs; None for the default one."""
        named = submission.headers.get(HEADER)
        if named is not None:
            return str(named)
        return self._user(submission) if callable(self._user) else self._user

    def key(self, user: str | None) -> str | None:
        """Return the API key of a user; raise NotConfigured if there is none."""
        if user is None:
            return None
        key = self._keys(user) if callable(self._keys) else (self._keys or {}).get(user)
        if not key:
            raise NotConfigured(f"no API key for the user {user!r}: add it to durable(app, keys=…)")
        return key

    def inbox_key(self, user: str | None) -> str | None:
        """Return the key for the inbox; None for OVERNIGHT_API_KEY."""
        if user is None and self._client is not None:
            return str(self._client.transport.http.headers["Authorization"]).split()[-1]
        return self.key(user)

    def client(self, user: str | None = None) -> Client:
        """Return the client that submits for a user; a forked process opens its own."""
        if user is None and self._client is not None:
            return self._client
        key = self.key(user)
        with self._lock:
            place = (os.getpid(), key)
            if place not in self._clients:
                self._clients[place] = Client(api_key=key)
            return self._clients[place]
