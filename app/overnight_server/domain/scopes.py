"""Scopes: what an API key or a token may be used for."""

from collections.abc import Collection, Iterable, Mapping

from overnight.errors import InvalidRequest

EVERYTHING = "*"
ADMIN = "admin"
ALL_USERS_AGENTS = "agents:all-users"
#: Every scope and what it allows; a test compares docs/security.md with it.
SCOPES: Mapping[str, str] = {
    "tasks:read": "read your tasks, graphs, forecasts, queue and limits",
    "tasks:write": "create, change and cancel your tasks",
    "agents:run": "register your agents and claim your tasks with them",
    ALL_USERS_AGENTS: "claim the tasks of all users with an agent; only for admins",
    "keys:read": "list your API keys",
    "keys:write": "create, rotate and revoke your API keys",
    ADMIN: "manage all users and the deployment; only for admins",
    EVERYTHING: "all of these",
}


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
