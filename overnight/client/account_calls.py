"""What looking after tasks says over HTTP and how its answers are read; nothing is sent here."""

from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import httpx2
from pydantic import BaseModel

from overnight.client.task_calls import Call, Page, validated

M = TypeVar("M", bound=BaseModel)
API = "/api/v1"


def path(*parts: str) -> str:
    """Put a path together; ids are quoted, so that none of them leads elsewhere."""
    return "/".join([API, *(quote(part, safe="") for part in parts)])


def read(model: type[M], at: str, **params: str | int | None) -> Call[M]:
    """Read one thing."""
    return Call("GET", at, lambda answer: model.model_validate(answer.json()), _given(params))


def read_list(model: type[M], at: str, **params: str | int | None) -> Call[list[M]]:
    """Read a list that is whole."""
    return Call("GET", at, lambda answer: _items(model, answer), _given(params))


def read_page(model: type[M], at: str, **params: str | int | None) -> Call[Page[M]]:
    """Read one page of a list."""
    return Call(
        "GET",
        at,
        lambda answer: Page(_items(model, answer), answer.headers.get("X-Next-Cursor")),
        _given(params),
    )


def send(
    model: type[M],
    method: str,
    at: str,
    body: BaseModel | None = None,
    headers: Mapping[str, str] | None = None,
) -> Call[M]:
    """Ask for a change, and read what came of it."""
    json = None if body is None else body.model_dump(mode="json", exclude_unset=True)
    return Call(
        method,
        at,
        lambda answer: model.model_validate(answer.json()),
        json=json,
        headers=headers or {},
    )


def asked(model: type[M], fields: Mapping[str, Any]) -> M:
    """Judge a body before it travels, with the words the service would use."""
    return validated(model, fields)


def _items(model: type[M], answer: httpx2.Response) -> list[M]:
    return [model.model_validate(item) for item in answer.json()]


def _given(params: Mapping[str, str | int | None]) -> dict[str, str | int]:
    return {name: value for name, value in params.items() if value is not None}
