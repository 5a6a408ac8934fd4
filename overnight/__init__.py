"""What producers and handler authors import; it never imports the service."""

from overnight import errors
from overnight.client.client import AsyncClient, Client
from overnight.errors import OvernightError
from overnight.graphs.builder import dag
from overnight.handlers.context import Context
from overnight.handlers.control_exceptions import (
    Cancel,
    Fail,
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
