"""The names that producers and handler authors import; the service is never imported.

A name is loaded when it is first used, so that `import overnight.errors` needs neither httpx2
nor pydantic and `overnight --help` starts fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from overnight import errors
from overnight.errors import OvernightError

if TYPE_CHECKING:
    from overnight.client.client import AsyncClient, Client
    from overnight.graphs.builder import dag
    from overnight.handlers.context import Context
    from overnight.handlers.control_exceptions import (
        Cancel,
        Fail,
        InvalidInput,
        InvalidOutput,
        RateLimited,
        Retry,
        Snooze,
        Stopped,
    )
    from overnight.handlers.registry import handler
    from overnight.models.tasks import Task

__all__ = [
    "AsyncClient",
    "Cancel",
    "Client",
    "Context",
    "Fail",
    "InvalidInput",
    "InvalidOutput",
    "OvernightError",
    "RateLimited",
    "Retry",
    "Snooze",
    "Stopped",
    "Task",
    "dag",
    "errors",
    "handler",
]

_CONTROL = "overnight.handlers.control_exceptions"
_MODULE_OF = {
    "AsyncClient": "overnight.client.client",
    "Cancel": _CONTROL,
    "Client": "overnight.client.client",
    "Context": "overnight.handlers.context",
    "Fail": _CONTROL,
    "InvalidInput": _CONTROL,
    "InvalidOutput": _CONTROL,
    "RateLimited": _CONTROL,
    "Retry": _CONTROL,
    "Snooze": _CONTROL,
    "Stopped": _CONTROL,
    "Task": "overnight.models.tasks",
    "dag": "overnight.graphs.builder",
    "handler": "overnight.handlers.registry",
}


def __getattr__(name: str) -> object:
    """Load a public name from its module on first use; raise AttributeError for any other."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'overnight' has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
