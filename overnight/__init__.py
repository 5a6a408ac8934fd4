"""What producers and handler authors import; it never imports the service."""

from overnight import errors
from overnight.building import dag
from overnight.client import AsyncClient, Client
from overnight.context import Context
from overnight.errors import OvernightError
from overnight.handlers import handler
from overnight.models import Task
from overnight.steering import (
    Cancel,
    Fail,
    InvalidOutput,
    RateLimited,
    Retry,
    Snooze,
    Stopped,
)

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
