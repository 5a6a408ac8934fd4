"""Which process needs which secret; the environment of a process has no others.

A handler, and every program that it starts, can read the environment of its worker.
"""

from collections.abc import Mapping
from typing import Final

from overnight_server.settings.field_types import aliases, env_of
from overnight_server.settings.model import Settings

#: The processes of the Procfile, and the migration that precedes them.
PROCESSES: Final = frozenset(
    {
        "api",
        "dispatcher",
        "worker",
        "maintenance",
        "beat",
        "agent-driver",
        "notifier",
        "flower",
        "migrate",
    }
)
_API: Final = frozenset({"api"})
#: The processes that need a secret setting. The settings of tokens are checked together, so they
#: are also dropped together.
NEEDED_BY: Final[Mapping[str, frozenset[str]]] = {
    "database_url": PROCESSES - {"flower"},
    "redis_url": PROCESSES - {"migrate"},
    "flower_password": frozenset({"flower"}),
    "smtp_password": frozenset({"notifier"}),
    # Handlers may call the API.
    "api_key": frozenset({"worker"}),
    "claim_token": frozenset(),
    **dict.fromkeys(
        ("jwt_algorithms", "jwt_audience", "jwt_issuer", "jwt_keys", "jwt_secret"), _API
    ),
}
#: Variables with this beginning are the secrets that payloads name; only workers replace them.
HANDLER_SECRETS: Final = "SECRET_"


def own_environment(process: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the secrets that a process does not need.

    >>> own_environment("beat", {"OVERNIGHT_FLOWER_PASSWORD": "x", "PATH": "/bin"})
    {'PATH': '/bin'}
    """
    foreign = {
        name
        for setting, processes in NEEDED_BY.items()
        if process not in processes
        for env in (env_of(setting), *aliases(Settings.model_fields[setting]))
        for name in (env, f"{env}_FILE")
    }
    return {
        name: value
        for name, value in environ.items()
        if name not in foreign and (process == "worker" or not name.startswith(HANDLER_SECRETS))
    }
