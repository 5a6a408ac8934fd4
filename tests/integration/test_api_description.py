"""What the API says of itself, held to what it does."""

from collections.abc import Iterator
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from tests.support.door import Door, open_door
from tests.support.house import House
from tests.support.operations import operations

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def door(house: House, database_url: str) -> Iterator[Door]:
    with open_door(house, database_url) as door:
        yield door


@pytest.fixture
def described(door: Door) -> dict[str, Any]:
    found: dict[str, Any] = door.http.get("/api/v1/openapi.json").json()
    return found


def _resolved(schema: dict[str, Any], described: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "components": described["components"]}


def test_every_operation_says_who_may_call_it_and_how_it_refuses(described: dict[str, Any]) -> None:
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            name = f"{method} {path}"
            assert {"4XX", "5XX"} <= set(operation["responses"]), name
            assert "422" not in operation["responses"], name
            assert bool(operation["security"]) == (path not in {"/health", "/ready"}), name


def test_refusals_are_what_they_are_said_to_be(door: Door, described: dict[str, Any]) -> None:
    problem = _resolved(described["components"]["schemas"]["Problem"], described)
    answers = [
        door.http.get("/api/v1/tasks"),
        door.ask("GET", "/nowhere"),
        door.ask("PUT", "/api/v1/tasks"),
        door.ask("POST", "/api/v1/tasks", json={}),
        door.ask("POST", "/api/v1/tasks", content=b"{", headers=JSON),
        door.ask("GET", "/api/v1/tasks/task_00000000000000000000000000"),
        door.ask("GET", "/api/v1/tasks", params={"limit": 101}),
    ]

    for answer in answers:
        assert answer.headers["content-type"] == "application/problem+json"
        jsonschema.validate(answer.json(), problem)
    assert [answer.status_code for answer in answers] == [401, 404, 405, 422, 400, 404, 400]


def test_every_example_fits_its_schema(described: dict[str, Any]) -> None:
    schemas = described["components"]["schemas"]
    shown = {name: one["examples"] for name, one in schemas.items() if "examples" in one}

    assert len(shown) >= 8
    for name, examples in shown.items():
        for example in examples:
            jsonschema.validate(example, _resolved(schemas[name], described))


def test_examples_are_taken_by_the_operations_they_stand_for(
    door: Door, described: dict[str, Any]
) -> None:
    boss = door.guest(is_admin=True)
    sent = 0
    for operation in operations(door):
        if operation.ids or operation.body is None:
            continue
        content = described["paths"][operation.path][operation.method.lower()]["requestBody"]
        reference = content["content"]["application/json"]["schema"].get("$ref", "")
        schema = described["components"]["schemas"].get(reference.rpartition("/")[2], {})
        for example in schema.get("examples", ()):
            answer = boss.ask(operation.method, operation.path, json=example)
            assert answer.is_success, f"{operation}: {answer.text}"
            sent += 1

    assert sent >= 5
