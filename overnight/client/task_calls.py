"""What each operation says over HTTP and how its answer is read; nothing is sent here."""

import math
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import httpx2
from pydantic import BaseModel, ValidationError

from overnight import errors
from overnight.models import value_errors
from overnight.models.allowed_values import allowed, schema_of
from overnight.models.explain import Explanation
from overnight.models.tasks import (
    CancelResult,
    Forecast,
    Plan,
    PlanRequest,
    QueueStatus,
    Task,
    TaskCreate,
    UserLimits,
)

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
TASKS = "/api/v1/tasks"
# As long as one answer is asked to be held back: proxies end what is silent for a minute.
LONGEST_HOLD_SECONDS = 30
# A stream that has nothing to tell says so this often.
HEARTBEAT_SECONDS = 15


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request to make, and the function that reads its successful answer.

    A script makes it by `yield from`. The service may hold the answer back for `holds` seconds.
    """

    method: str
    path: str
    read: Callable[[httpx2.Response], T]
    params: Mapping[str, str | int] = field(default_factory=dict)
    json: object = None
    headers: Mapping[str, str] = field(default_factory=dict)
    holds: float = 0.0

    def __iter__(self) -> Generator["Call[T]", Any, T]:
        answer: T = yield self
        return answer


@dataclass(frozen=True)
class Page(Generic[T]):
    """Some of a list, and where the next of it begin."""

    items: list[T]
    cursor: str | None


def create_task(fields: Mapping[str, Any]) -> Call[Task]:
    """Queue a task; the idempotency key, made up if missing, makes a repeated send one task."""
    given = {name: value for name, value in fields.items() if value is not None}
    task = validated(TaskCreate, {"idempotency_key": f"auto-{uuid.uuid4()}"} | given)
    return Call("POST", TASKS, _task, json=task.model_dump(mode="json", exclude_unset=True))


def get_task(task_id: str) -> Call[Task]:
    """Read one task."""
    return Call("GET", _of(task_id), _task)


def wait_task(task_id: str, *, seconds: float) -> Call[Task]:
    """Read one task once it has ended, or as it stands after so many seconds."""
    held = held_for(seconds)
    return Call("GET", f"{_of(task_id)}/wait", _task, params={"timeout": held}, holds=held)


def held_for(seconds: float) -> int:
    """Return for how many whole seconds an answer may be held back when so many are left."""
    return max(0, min(math.ceil(seconds), LONGEST_HOLD_SECONDS))


def events(*, task_id: str | None, dag_id: str | None, after: int | None) -> Call[None]:
    """Listen to what happens to your tasks, from after an event on; the answer never ends."""
    asked = {"task_id": task_id, "dag_id": dag_id}
    return Call(
        "GET",
        "/api/v1/events",
        lambda _answer: None,
        params={name: value for name, value in asked.items() if value is not None},
        headers={} if after is None else {"Last-Event-ID": str(after)},
        holds=HEARTBEAT_SECONDS,
    )


def list_tasks(chosen: Mapping[str, Any], *, limit: int, before: str | None) -> Call[Page[Task]]:
    """Read one page of the tasks that are chosen, newest first."""
    asked = {**chosen, "limit": limit, "before": before}
    params = {name: _said(value) for name, value in asked.items() if value is not None}
    return Call("GET", TASKS, _page, params=params)


def cancel_task(task_id: str) -> Call[CancelResult]:
    """Ask that a task be ended."""
    return Call("DELETE", _of(task_id), lambda answer: CancelResult.model_validate(answer.json()))


def queue_status() -> Call[QueueStatus]:
    """Read how much of yours runs and waits."""
    return Call(
        "GET", f"{TASKS}/queue-status", lambda answer: QueueStatus.model_validate(answer.json())
    )


def limits() -> Call[UserLimits]:
    """Read what your plan allows."""
    return Call(
        "GET", "/api/v1/users/me/limits", lambda answer: UserLimits.model_validate(answer.json())
    )


def explain_task(task_id: str) -> Call[Explanation]:
    """Read why one task is not running."""
    path = f"{_of(task_id)}/explain"
    return Call("GET", path, lambda answer: Explanation.model_validate(answer.json()))


def forecast_task(task_id: str) -> Call[Forecast]:
    """Read when one task is expected to start and to end."""
    path = f"{_of(task_id)}/forecast"
    return Call("GET", path, lambda answer: Forecast.model_validate(answer.json()))


def forecast_next(*, limit: int) -> Call[list[Forecast]]:
    """Read what is expected of the tasks that run and of those that come next."""
    return Call(
        "GET",
        f"{TASKS}/forecast",
        lambda answer: [Forecast.model_validate(item) for item in answer.json()],
        params={"limit": limit},
    )


def plan(request: PlanRequest) -> Call[Plan]:
    """Ask what a batch would come to; nothing is queued."""
    return Call(
        "POST",
        "/api/v1/plan",
        lambda answer: Plan.model_validate(answer.json()),
        json=request.model_dump(mode="json", exclude_unset=True),
    )


def plan_request(fields: Mapping[str, Any]) -> PlanRequest:
    """Judge a batch before it travels, with the words the service would use."""
    return validated(PlanRequest, fields)


def refusal(response: httpx2.Response) -> errors.Refused:
    """Return the error that an unsuccessful response describes."""
    return errors.from_problem(_object(response), response.status_code, retry_after(response))


def retry_after(answer: httpx2.Response) -> float | None:
    """Return the seconds the service asks to wait; only the plain number is understood."""
    text = answer.headers.get("Retry-After", "")
    return float(text) if text.isdigit() else None


def _said(value: Any) -> str | int:  # noqa: ANN401 - whatever a query may say
    return value.isoformat() if isinstance(value, datetime) else value


def _of(task_id: str) -> str:
    return f"{TASKS}/{quote(task_id, safe='')}"


def _task(answer: httpx2.Response) -> Task:
    return Task.model_validate(answer.json())


def _page(answer: httpx2.Response) -> Page[Task]:
    tasks = [Task.model_validate(item) for item in answer.json()]
    return Page(tasks, answer.headers.get("X-Next-Cursor"))


def validated(model: type[M], fields: Mapping[str, Any]) -> M:
    """Judge what is to travel, with the words the service would use."""
    try:
        return model.model_validate(dict(fields))
    except ValidationError as error:
        wrong = [
            _wrong(model, item)
            for item in causes(error.errors(include_url=False, include_input=False))
        ]
        raise errors.InvalidRequest.of_fields(wrong) from None


def _wrong(model: type[BaseModel], fault: Mapping[str, Any]) -> errors.FieldError:
    """Word one fault as the service would."""
    *place, name = fault["loc"] or ("body",)
    field = ".".join(map(str, fault["loc"]))
    if fault["type"] == "extra_forbidden":
        known = value_errors.fields_at(model, place)
        return errors.FieldError(
            field, value_errors.unknown(name, known), f"one of {', '.join(known)}"
        )
    legal = allowed(fault["loc"], schema_of(model)) or value_errors.legal(fault)
    return errors.FieldError(field, value_errors.said(fault), legal)


def causes(faults: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Leave out what only follows: a list is not too short because its items are wrong."""
    return [
        fault
        for fault in faults
        if fault["type"] != "too_short"
        or not any(_is_below(fault["loc"], other["loc"]) for other in faults)
    ]


def _is_below(place: Sequence[str | int], other: Sequence[str | int]) -> bool:
    return len(other) > len(place) and tuple(other[: len(place)]) == tuple(place)


def _object(answer: httpx2.Response) -> dict[str, Any]:
    try:
        body = answer.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
