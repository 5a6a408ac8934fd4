"""The scopes of API keys and tokens: what requests with them may do."""

from collections.abc import Mapping

EVERYTHING = "*"
ADMIN = "admin"
ALL_USERS_AGENTS = "agents:all-users"
METRICS = "metrics:read"
#: Every scope and what it allows; a test compares docs/security.md with it.
SCOPES: Mapping[str, str] = {
    "tasks:read": "read your tasks, graphs, forecasts, queue and limits",
    "tasks:write": "create, change and cancel your tasks",
    "agents:run": "register your agents and claim your tasks with them",
    ALL_USERS_AGENTS: "claim the tasks of all users with an agent; only for admins",
    METRICS: "read the metrics of the deployment; only for admins",
    "keys:read": "list your API keys",
    "keys:write": "create, rotate and revoke your API keys",
    ADMIN: "manage all users and the deployment; only for admins",
    EVERYTHING: "all of these",
}
