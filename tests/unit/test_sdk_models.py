"""Request models: a producer's fields are checked before they are sent."""

from datetime import UTC, datetime

import pytest
from pydantic import BaseModel, ValidationError

from overnight.models.json_values import LARGEST, MAX_BYTES, MAX_DEPTH, SMALLEST
from overnight.models.tasks import QueueStatus, RetryPolicy, TaskCreate, TaskFields, TaskResponse

NESTED_32 = {"a": 0}
for _ in range(MAX_DEPTH - 1):
    NESTED_32 = {"a": NESTED_32}  # type: ignore[dict-item]


def test_only_a_title_is_needed() -> None:
    task = TaskCreate(title="say hello")

    assert task.priority == 3
    assert task.payload == {}
    assert task.type is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("title", ""),
        ("title", "x" * 501),
        ("title", "a\x00b"),
        ("title", "\ud800"),
        ("title", 7),
        ("title", None),
        ("description", "x" * 100_001),
        ("description", "\x00"),
        ("project_id", ""),
        ("project_id", "x" * 101),
        ("priority", 0),
        ("priority", 5),
        ("priority", "3"),
        ("priority", 3.5),
        ("priority", True),
        ("priority", 10**30),
        ("priority_score", -1),
        ("priority_score", 101),
        ("priority_boost_per_minute", float("nan")),
        ("priority_boost_per_minute", -0.1),
        ("type", ""),
        ("type", "x" * 101),
        ("payload", []),
        ("payload", "text"),
        ("payload", {"a": "\x00"}),
        ("payload", {"\x00": 1}),
        ("payload", {"a": ["\udfff"]}),
        ("payload", {"a": LARGEST + 1}),
        ("payload", {"a": SMALLEST - 1}),
        ("payload", {"a": float("inf")}),
        ("payload", {"a": {1, 2}}),
        ("payload", {"a": {1: 2}}),
        ("payload", {"a": NESTED_32}),
        ("payload", {"a": "x" * MAX_BYTES}),
        ("prompt", "x" * 200_001),
        ("spec", {"env": {"A": "\x00"}}),
        ("timeout_seconds", 0),
        ("timeout_seconds", 604_801),
        ("timeout_seconds", 1.5),
        ("max_attempts", 0),
        ("max_attempts", 101),
        ("retry", {"strategy": "hopeful"}),
        ("retry", {"max_delay_sec": -1}),
        ("retry", {"backoff_multiplier": 0.5}),
        ("retry", {"jitter": "yes"}),
        ("retry", {"attempts": 3}),
        ("required_capabilities", ["x"] * 21),
        ("required_capabilities", [""]),
        ("locks", [""]),
        ("locks", ["x"] * 21),
        ("locks", "repo:site"),
        ("idempotency_key", ""),
        ("idempotency_key", "x" * 256),
        ("deadline_at", "tomorrow"),
        ("deadline_at", "2030-01-01T00:00:00"),
        ("deadline_at", "0001-01-01T00:00:00+14:00"),
        ("deadline_at", 10**15),
        ("tags", ["x"] * 51),
        ("tags", "one"),
        ("max_cost_usd", 1_000_000),
        ("max_cost_usd", -1),
        ("created_by", "somebody"),
        ("created_by", "human:a b"),
        ("source", "Web Page"),
        ("plan_tier", "enterprise"),
        ("user_id", "7b0e"),
    ],
)
def test_a_wrong_field_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValidationError) as refusal:
        TaskCreate.model_validate({"title": "a task", field: value})

    assert {fault["loc"][0] for fault in refusal.value.errors()} == {field}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("title", "x" * 500),
        ("title", "naïve 日本 🌙"),
        ("payload", NESTED_32),
        ("payload", {"a": LARGEST, "b": SMALLEST, "c": [None, True, 1e308, "\x1f"]}),
        ("payload", {"a": "x" * (MAX_BYTES - len('{"a":""}'))}),
        ("timeout_seconds", 604_800),
        ("deadline_at", "2030-01-01T00:00:00+05:00"),
        ("created_by", "agent:planner"),
        ("priority_score", 0),
        ("max_cost_usd", 1),
    ],
)
def test_a_value_at_a_limit_is_accepted(field: str, value: object) -> None:
    task = TaskCreate.model_validate({"title": "a task", field: value})

    assert field in task.model_fields_set


@pytest.mark.parametrize(
    ("alias", "field", "value"),
    [("max_duration_sec", "timeout_seconds", 60), ("task_type", "type", "code")],
)
def test_the_alternative_field_names_are_accepted(alias: str, field: str, value: object) -> None:
    task = TaskCreate.model_validate({"title": "a task", alias: value})

    assert getattr(task, field) == value


def test_both_names_of_one_field_together_are_refused() -> None:
    with pytest.raises(ValidationError):
        TaskCreate.model_validate({"title": "a", "timeout_seconds": 1, "max_duration_sec": 2})


def test_a_prompt_given_twice_is_refused() -> None:
    with pytest.raises(ValidationError, match="given twice"):
        TaskCreate(title="a", prompt="do it", spec={"prompt": "do that"})


def test_the_typed_dict_has_the_fields_of_task_create() -> None:
    assert set(TaskFields.__annotations__) == set(TaskCreate.model_fields) - {"title"}


@pytest.mark.parametrize("model", [TaskCreate, TaskResponse, RetryPolicy, QueueStatus])
def test_every_field_has_a_description(model: type[BaseModel]) -> None:
    assert [name for name, field in model.model_fields.items() if not field.description] == []


def test_unknown_fields_of_a_response_are_ignored() -> None:
    task = TaskResponse.model_validate(
        {
            "id": "task_1",
            "queue_id": "task_1",
            "dag_id": "dag_1",
            "title": "a",
            "type": "echo",
            "status": "pending",
            "state": "ready",
            "priority": 3,
            "priority_score": 50,
            "created_at": datetime(2030, 1, 1, tzinfo=UTC),
            "max_attempts": 3,
            "mood": "sunny",
        }
    )

    assert task.state == "ready"
    assert not task.is_final
