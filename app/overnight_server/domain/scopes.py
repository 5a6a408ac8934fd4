"""Check the scopes of API keys and tokens: what a request may do."""

from collections.abc import Collection, Iterable

from overnight.errors import InvalidRequest
from overnight.models.scopes import EVERYTHING, SCOPES


def checked(requested: Iterable[str]) -> tuple[str, ...]:
    """Return the scopes sorted, without duplicates; raise InvalidRequest for none or unknown ones.

    >>> checked(["tasks:write", "tasks:read", "tasks:read"])
    ('tasks:read', 'tasks:write')
    """
    scopes = tuple(sorted(set(requested)))
    legal = ", ".join(SCOPES)
    if not scopes:
        raise InvalidRequest("scopes", "none is named", legal=legal)
    for scope in scopes:
        if scope not in SCOPES:
            raise InvalidRequest("scopes", f"{scope!r} is no scope", legal=legal)
    return scopes


def reach(held: Collection[str], scope: str) -> bool:
    """Whether the scopes `held` include a scope."""
    return EVERYTHING in held or scope in held


def within(requested: Collection[str], held: Collection[str]) -> bool:
    """Whether all requested scopes are included in the scopes `held`."""
    return all(reach(held, scope) for scope in requested)
