"""What producers and handler authors import; it never imports the service."""

from overnight import errors
from overnight.building import dag
from overnight.client import Client
from overnight.context import Context
from overnight.errors import OvernightError
from overnight.growth import Child
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
    Suspended,
)

__all__ = [
    "Cancel",
    "Child",
    "Client",
    "Context",
    "Fail",
    "InvalidOutput",
    "OvernightError",
    "RateLimited",
    "Retry",
    "Snooze",
    "Stopped",
    "Suspended",
    "Task",
    "dag",
    "errors",
    "handler",
]
