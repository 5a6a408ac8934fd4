"""Refuses settings of a Celery app that have no counterpart, by name, before anything is sent."""

from collections.abc import Collection
from typing import Any

from overnight.errors import NotFromCelery

JSON_ONLY = "leave it out: arguments and results are JSON"
NO_EVENTS = "leave it out: client.stream() and client.tasks.stream(id) yield the events of tasks"
# Setting: the values that change nothing, and what to do about the others.
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "result_backend": (
        (None, "disabled", "disabled://"),
        "leave it out: the result is stored with its task, in Postgres",
    ),
    "task_serializer": (("json",), JSON_ONLY),
    "result_serializer": (("json",), JSON_ONLY),
    "task_send_sent_event": ((False, None), NO_EVENTS),
    "worker_send_task_events": ((False, None), NO_EVENTS),
    "task_default_rate_limit": (
        (None,),
        "raise overnight.RateLimited(reset_after=…) in the task, or give it a lock",
    ),
}
RATE_LIMIT = "raise overnight.RateLimited(reset_after=…) in the task, or give it a lock"


def check_settings(conf: Any, ignore: Collection[str]) -> None:
    """Raise NotFromCelery for the first setting that cannot be kept and is not in `ignore`."""
    for name, (harmless, instead) in REFUSED.items():
        value = conf.get(name)
        if name not in ignore and value not in harmless:
            raise NotFromCelery(
                f"the setting {name}={value!r}",
                f'{instead}; or durable(app, ignore=["{name}"]) to leave it without effect',
            )


def check_task(task: Any, ignore: Collection[str]) -> None:
    """Raise NotFromCelery for an option of a task's definition that cannot be kept."""
    if task.rate_limit and "rate_limit" not in ignore:
        raise NotFromCelery(
            f"rate_limit={task.rate_limit!r} of {task.name}",
            f'{RATE_LIMIT}; or durable(app, ignore=["rate_limit"])',
        )
    if task.serializer not in {None, "json"} and "task_serializer" not in ignore:
        raise NotFromCelery(f"serializer={task.serializer!r} of {task.name}", JSON_ONLY)
