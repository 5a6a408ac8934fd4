"""What a key or a token may be used for: a closed list of rights."""

from collections.abc import Collection, Iterable, Mapping

from overnight.errors import InvalidRequest

EVERYTHING = "*"
ADMIN = "admin"
ALL_USERS_AGENTS = "agents:all-users"
#: Every scope there is, and what it opens; docs/security.md is held to it by a test.
SCOPES: Mapping[str, str] = {
    "tasks:read": "look at one's tasks, graphs, forecasts, queue and limits",
    "tasks:write": "add, change and cancel one's tasks",
    "agents:run": "register one's agents, and have them claim one's tasks",
    ALL_USERS_AGENTS: "have an agent claim everybody's tasks, if one is an admin",
    "keys:read": "list one's API keys",
    "keys:write": "make, rotate and revoke one's API keys",
    ADMIN: "act on every user, if one is an admin",
    EVERYTHING: "all of these",
}


def checked(asked: Iterable[str]) -> tuple[str, ...]:
    """Return the scopes sorted and once each; an unknown one, or none at all, is refused.

    >>> checked(["tasks:write", "tasks:read", "tasks:read"])
    ('tasks:read', 'tasks:write')
    """
    scopes = tuple(sorted(set(asked)))
    legal = ", ".join(SCOPES)
    if not scopes:
        raise InvalidRequest("scopes", "none is named", legal=legal)
    for scope in scopes:
        if scope not in SCOPES:
            raise InvalidRequest("scopes", f"{scope!r} is no scope", legal=legal)
    return scopes


def reach(held: Collection[str], scope: str) -> bool:
    """Whether rights that are held cover one that is needed."""
    return EVERYTHING in held or scope in held


def within(asked: Collection[str], held: Collection[str]) -> bool:
    """Whether rights that are asked for go no further than those that are held."""
    return all(reach(held, scope) for scope in asked)
