"""The tests' tasks in a durable Celery app: a worker of Overnight imports this module."""

from typing import Any

from celery import Celery, current_app, shared_task

from overnight.celery import durable
from tests.support.celery_functions import define

app = define(durable(Celery("with_overnight")))


@shared_task(name="test.shared_double")
def shared_double(x: Any) -> Any:
    """Double a value, in whichever app is the current one."""
    return x + x


@shared_task(name="test.shared_parent")
def shared_parent(x: Any) -> Any:
    """Send another shared task, and return the name of the current app."""
    return [current_app.main, shared_double.delay(x).id]
