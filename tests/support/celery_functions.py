"""Celery tasks for tests: the same functions in one app with Celery's worker, in one with ours."""

import time
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from celery import Celery, chain, group


class Incomplete(Exception):
    """An exception of a program's own."""


def add(x: Any, y: Any) -> Any:
    """Add two values."""
    return x + y


def double(x: Any) -> Any:
    """Double a value."""
    return x + x


def total(numbers: list[Any]) -> Any:
    """Add all numbers of a list."""
    return sum(numbers)


def same(*args: Any, **kwargs: Any) -> Any:
    """Return the arguments."""
    return [list(args), kwargs]


def fail(*_: Any, **__: Any) -> None:
    """Raise an exception of the program's own."""
    raise Incomplete("half", 2)


def values(day: date, amount: Decimal) -> Any:
    """Return values for which JSON has no type."""
    return {"next": datetime(day.year, day.month, day.day, tzinfo=UTC), "twice": amount * 2}


def about_me(self: Any) -> Any:
    """Return what the request says."""
    request = self.request
    return [request.id, request.retries, request.task, request.headers]


def retried(self: Any, times: int) -> int:
    """Ask for a number of retries."""
    if self.request.retries < times:
        raise self.retry(countdown=0, exc=ValueError("too early"))
    return int(self.request.retries)


def gives_up(self: Any) -> None:
    """Ask for more retries than there may be."""
    raise self.retry(countdown=0, exc=ValueError("never"))


def automatic(place: str) -> int:
    """Fail twice with an exception that is retried."""
    file = Path(place)
    count = len(file.read_text()) if file.exists() else 0
    file.write_text("x" * (count + 1))
    if count < 2:
        raise OSError("not yet")
    return count


def slow() -> str:
    """Take longer than the soft time limit."""
    time.sleep(20)
    return "late"


def parent(self: Any, number: int) -> str:
    """Send another task."""
    return str(self.app.tasks["test.add"].delay(number, 1).id)


def resends(self: Any) -> list[str]:
    """Send one task that is the same in both runs, and one that is not; then ask for a retry."""
    send = self.app.tasks["test.add"].delay
    ids = [send(1, 1).id, send(1, 1).id, send(self.request.retries, 100).id]
    if self.request.retries == 0:
        raise self.retry(countdown=0)
    return ids


def canvas(self: Any, number: int) -> str:
    """Send a chain with a group in it, and return the id of its last task."""
    add_task, total_task = self.app.tasks["test.add"], self.app.tasks["test.total"]
    members = group(add_task.s(1), add_task.s(2))
    return str(chain(add_task.s(number, 2.5), members, total_task.s()).apply_async().id)


def replaced(self: Any) -> Any:
    """Replace itself with another task."""
    return self.replace(self.app.tasks["test.add"].s(1, 2))


def reports(self: Any, seen: str) -> None:
    """Report a state of its own, and end when somebody has seen it."""
    self.update_state(state="HALF", meta={"current": 1, "total": 2})
    while not Path(seen).exists():
        time.sleep(0.05)


def record(folder: str, number: int) -> None:
    """Note that a task has run: one line in its own file for each run."""
    time.sleep(0.05)
    with (Path(folder) / str(number)).open("a") as file:
        file.write("run\n")


FUNCTIONS: dict[Callable[..., Any], dict[str, Any]] = {
    add: {},
    double: {},
    total: {},
    same: {},
    fail: {},
    values: {},
    about_me: {"bind": True},
    retried: {"bind": True, "max_retries": 5},
    gives_up: {"bind": True, "max_retries": 1},
    automatic: {
        "autoretry_for": (OSError,),
        "retry_kwargs": {"max_retries": 2},
        "default_retry_delay": 0,
    },
    record: {},
    slow: {"soft_time_limit": 1},
    parent: {"bind": True},
    canvas: {"bind": True},
    resends: {"bind": True},
    replaced: {"bind": True},
    reports: {"bind": True},
}


def define(app: Celery) -> Celery:
    """Register the functions as tasks of an app, and return it."""
    for function, options in FUNCTIONS.items():
        register: Any = app.task(name=f"test.{function.__name__}", shared=False, **options)
        register(function)
    return app
