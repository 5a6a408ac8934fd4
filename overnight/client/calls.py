"""HTTP requests as values: what to send, and how to read a successful response."""

import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import httpx2
from pydantic import BaseModel

from overnight import errors

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
Param = str | int | float | datetime | None
API = "/api/v1"
# The longest long poll: proxies close a connection that is silent for a minute.
MAX_HOLD_SECONDS = 30
# An event stream without events sends a comment line this often.
HEARTBEAT_SECONDS = 15


@dataclass(frozen=True)
class Call(Generic[T]):
    """One HTTP request, and the function that reads its successful response.

    A request plan makes the call with `yield from`. The service may delay the response for
    `hold_seconds`, which is added to the read timeout.
    """

    method: str
    path: str
    read: Callable[[httpx2.Response], T]
    params: Mapping[str, str | int | float] = field(default_factory=dict)
    json: object = None
    headers: Mapping[str, str] = field(default_factory=dict)
    hold_seconds: float = 0.0

    def __iter__(self) -> Generator["Call[T]", Any, T]:
        result: T = yield self
        return result


@dataclass(frozen=True)
class Page(Generic[T]):
    """One page of a list, and the cursor of the next page; None on the last page."""

    items: list[T]
    cursor: str | None


def path(*parts: str) -> str:
    """Return the path of a resource; each part is quoted, so that no id can change the route."""
    return "/".join([API, *(quote(part, safe="") for part in parts)])


def read(model: type[M], url: str, **params: Param) -> Call[M]:
    """Return the call that reads one resource (GET)."""
    return Call("GET", url, model_reader(model), _query(params))


def read_list(model: type[M], url: str, **params: Param) -> Call[list[M]]:
    """Return the call that reads a list which the service returns whole (GET)."""
    return Call("GET", url, lambda response: _items(model, response), _query(params))


def read_page(model: type[M], url: str, **params: Param) -> Call[Page[M]]:
    """Return the call that reads one page of a list (GET)."""
    return Call(
        "GET",
        url,
        lambda response: Page(_items(model, response), response.headers.get("X-Next-Cursor")),
        _query(params),
    )


def long_poll(model: type[M], url: str, *, seconds: float) -> Call[M]:
    """Return the call that reads one resource when it has ended, or after at most `seconds`."""
    hold = max(0, min(math.ceil(seconds), MAX_HOLD_SECONDS))
    return Call("GET", url, model_reader(model), {"timeout": hold}, hold_seconds=hold)


def send(
    model: type[M],
    method: str,
    url: str,
    body: BaseModel | Mapping[str, object] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Call[M]:
    """Return the call that requests a change; fields of the body that were not set are left out."""
    json = body.model_dump(mode="json", exclude_unset=True) if isinstance(body, BaseModel) else body
    return Call(method, url, model_reader(model), json=json, headers=headers or {})


def model_reader(model: type[M]) -> Callable[[httpx2.Response], M]:
    """Return a function that reads the body of a response as a model."""
    return lambda response: model.model_validate(response.json())


def without_none(fields: Mapping[str, T | None]) -> dict[str, T]:
    """Return the fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def error_of(response: httpx2.Response) -> errors.Refused:
    """Return the error that an unsuccessful response describes."""
    try:
        body = response.json()
    except ValueError:
        body = {}
    problem = body if isinstance(body, dict) else {}
    return errors.from_problem(problem, response.status_code, retry_after(response))


def retry_after(response: httpx2.Response) -> float | None:
    """Return the seconds in the header Retry-After; a date is not supported and gives None."""
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isdigit() else None


def _items(model: type[M], response: httpx2.Response) -> list[M]:
    return [model.model_validate(item) for item in response.json()]


def _query(params: Mapping[str, Param]) -> dict[str, str | int | float]:
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in params.items()
        if value is not None
    }
