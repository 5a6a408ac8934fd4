"""Maps the options of a Celery call, and of the task's definition, to the fields of our task."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from celery import Celery
from celery.utils.saferepr import saferepr
from celery.utils.time import maybe_make_aware

from overnight.celery.values import encoded
from overnight.errors import NotFromCelery

SOURCE = "celery"
# The tag that finds a task by the id that its caller chose.
ID_TAG = "celery-id:"
MAX_ATTEMPTS = 100
# Celery's default of `max_retries`, for tasks that this program does not define.
DEFAULT_RETRIES = 3
# A worker that dies spends an attempt, so that even a task without retries survives it.
FEWEST_ATTEMPTS = 3
PRIORITIES = 9
POINTS_PER_PRIORITY = 10
MAX_TITLE = 200
# Celery never repeats a task that exceeded its time limit; a lost worker is made up for.
RETRY_POLICY = {"retry_on": ["crash", "rate_limit", "error", "invalid_output"]}

# Options that say how a message travels, or what Celery's own workers do with it.
WITHOUT_EFFECT = frozenset(
    {
        *("add_to_parent", "compression", "connection", "delivery_mode", "group_id", "group_index"),
        *("ignore_result", "immediate", "mandatory", "parent_id", "producer", "publisher"),
        *("replaced_task_nesting", "result_cls", "retries", "retry", "retry_policy", "root_id"),
        *("route_name", "router", "routing_key", "task_type", "track_started", "argsrepr"),
        *("kwargsrepr", "origin", "stamps", "exchange_type", "expiration"),
    }
)
MAPPED = frozenset(
    {
        *("countdown", "eta", "expires", "headers", "overnight", "priority", "queue"),
        *("serializer", "shadow", "soft_time_limit", "task_id", "time_limit"),
    }
)
INSTEAD = {
    "chain": "call chain(…).apply_async()",
    "chord": "call chord(…).apply_async()",
    "exchange": "name a queue, and give durable(app, queues=…) what it means",
    "link_error": "watch the task's events, or read its dead letter (`overnight dead`)",
    "reply_to": "read the result from the handle that apply_async returns",
    "stamped_headers": "put the values into headers, which the task finds in self.request.headers",
}


def task_fields(
    app: Celery,
    name: str,
    args: Any,
    kwargs: Any,
    options: Mapping[str, Any],
    *,
    queues: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the fields of the task that a call of `apply_async` submits.

    Raises NotFromCelery for an option that has no counterpart.
    """
    given = {key: value for key, value in options.items() if value is not None}
    _check(given)
    args, kwargs = tuple(args or ()), dict(kwargs or {})
    # `app.tasks` would finalise the app, maybe before all its tasks are defined.
    task = given.get("task_type") or vars(app)["_tasks"].get(name)
    fields: dict[str, Any] = {
        "title": _title(given.get("shadow") or name, args, kwargs),
        "type": name,
        "source": SOURCE,
        "payload": _payload(args, kwargs, given),
        "max_attempts": _attempts(task),
        "retry": RETRY_POLICY,
        "tags": [],
        **_times(app, given),
        **_limits(given),
    }
    if "priority" in given:
        fields["priority_score"] = _score(app, given["priority"])
    if "task_id" in given:
        fields["idempotency_key"] = f"celery:{given['task_id']}"
        fields["tags"].append(f"{ID_TAG}{given['task_id']}")
    queue = _queue(app, name, args, kwargs, given)
    if queue is not None and queue not in queues:
        fields["tags"].append(f"queue:{queue}")
    fields.update(queues.get(queue or "", {}))
    fields.update(getattr(task, "overnight", None) or {})
    fields.update(given.get("overnight") or {})
    return fields


def _check(given: Mapping[str, Any]) -> None:
    for option, value in given.items():
        if option in INSTEAD and value not in ("", [], ()):
            raise NotFromCelery(f"the option {option!r}", INSTEAD[option])
        if option not in MAPPED | WITHOUT_EFFECT | INSTEAD.keys():
            raise NotFromCelery(f"the option {option!r}", "leave it out; nothing reads it")
    if given.get("serializer", "json") != "json":
        raise NotFromCelery(
            f"the serializer {given['serializer']!r}", "use json; arguments and results are JSON"
        )


def _title(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    words = [saferepr(each, maxlen=60) for each in args]
    words += [f"{key}={saferepr(each, maxlen=60)}" for key, each in kwargs.items()]
    return f"{name}({', '.join(words)})"[:MAX_TITLE]


def _payload(
    args: tuple[Any, ...], kwargs: dict[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    payload = {"args": encoded(list(args), "arguments"), "kwargs": encoded(kwargs, "arguments")}
    if given.get("headers"):
        payload["headers"] = encoded(given["headers"], "a header")
    if given.get("soft_time_limit"):
        payload["soft_time_limit"] = float(given["soft_time_limit"])
    return payload


def _attempts(task: Any) -> int:
    """Return how many attempts hold all retries that a task may ask for."""
    if task is None:
        return DEFAULT_RETRIES + 1
    named = getattr(task, "retry_kwargs", None) or {}
    retries = named.get("max_retries", task.max_retries)
    if retries is None:
        return MAX_ATTEMPTS
    return min(max(int(retries) + 1, FEWEST_ATTEMPTS), MAX_ATTEMPTS)


def _times(app: Celery, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the earliest start and the deadline of the start."""
    now = datetime.now(UTC)
    times: dict[str, Any] = {}
    if given.get("countdown"):
        times["start_at"] = now + timedelta(seconds=float(given["countdown"]))
    elif "eta" in given:
        times["start_at"] = _instant(app, given["eta"])
    if "expires" in given:
        expires = given["expires"]
        is_wait = isinstance(expires, (int, float))
        times["deadline_at"] = (
            now + timedelta(seconds=expires) if is_wait else _instant(app, expires)
        )
    return times


def _instant(app: Celery, value: Any) -> datetime:
    instant: datetime = datetime.fromisoformat(value) if isinstance(value, str) else value
    aware: datetime = maybe_make_aware(instant, app.timezone)
    return aware


def _limits(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the time limit of one run, in whole seconds."""
    limit = given.get("time_limit")
    return {} if not limit else {"timeout_seconds": max(1, math.ceil(limit))}


def _score(app: Celery, priority: int) -> int:
    """Return our priority, of which 0 is the most urgent.

    Celery's 0 is the most urgent with Redis, and its 9 with RabbitMQ, as the broker's address says.
    """
    broker = str(app.conf.broker_url or "")
    lower_first = broker.startswith(("redis", "sentinel", "rediss", "valkey", "socket"))
    rank = min(max(int(priority), 0), PRIORITIES)
    return POINTS_PER_PRIORITY * (rank if lower_first else PRIORITIES - rank)


def _queue(
    app: Celery,
    name: str,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    given: Mapping[str, Any],
) -> str | None:
    """Return the queue that the call or Celery's routes name; None for the default queue."""
    named = {"queue": given["queue"]} if "queue" in given else {}
    route = app.amqp.router.route(named, name, args, dict(kwargs))
    queue = route.get("queue")
    text = str(getattr(queue, "name", queue))
    return None if queue is None or text == app.conf.task_default_queue else text
