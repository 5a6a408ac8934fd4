"""The task of each design document, posted as the document writes it.

Every field has its effect, or it is refused by its name; none is ignored.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from overnight.testing import MemoryContext
from overnight_server.domain.ids import parse_task
from tests.support.api_user import TASKS, ApiUser, serve_api
from tests.support.deployment import Deployment

# S003 writes the fields that the service fills in, too; these are what a producer sends.
CONSTRAINTS = {
    "max_cost_usd": 0.50,
    "max_duration_sec": 300,
    "required_capabilities": ["code-execution", "web-search"],
    "model_preferences": ["claude-sonnet-4", "gpt-4o"],
    "fallback_models": ["claude-haiku"],
}
GRAPH_TASK = {
    "idempotency_key": "pr-123-lint",
    "type": "code",
    "title": "Fix auth middleware CORS handling",
    "spec": {"prompt": "fix it", "constraints": CONSTRAINTS},
    "priority_score": 50,
    "priority_boost_per_minute": 0.1,
    "deadline": "2036-02-09T12:00:00Z",
    "max_attempts": 3,
    "retry": {
        "strategy": "exponential",
        "initial_delay_sec": 10,
        "backoff_multiplier": 2.0,
        "max_delay_sec": 300,
        "jitter": True,
        "retry_on": ["timeout", "crash", "rate_limit", "invalid_output"],
        "no_retry_on": ["auth_failure", "budget_exceeded", "cancelled"],
    },
    "created_by": "cron:nightly-audit",
    "tags": ["repo:myapp", "sprint:12"],
}
# What only the service sets, and what it does not offer.
REFUSED = {
    "id": "task_01J8K2M",
    "parent_id": "task_01J8K2M",
    "blocked_by": [],
    "status": "pending",
    "claim": {"agent_id": None, "heartbeat_interval_sec": 30},
    "attempts": 0,
    "output": {"type": "code", "validation": "json-schema"},
    "created_at": "2026-02-08T09:00:00Z",
    "started_at": None,
    "completed_at": None,
    "cost_usd": 0.00,
    "tokens_used": {"input": 0, "output": 0},
    # The document's scale is that of priority_score.
    "priority": 50,
}


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        yield api_user


def row_of(api_user: ApiUser, task: dict[str, Any]) -> dict[str, Any]:
    return dict(api_user.deployment.row(parse_task(task["id"])))


def refusal(api_user: ApiUser, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = api_user.request("POST", TASKS, json=body)
    assert answer.json()["code"] == "INVALID_REQUEST", answer.text
    errors: list[dict[str, Any]] = answer.json()["errors"]
    return errors


def test_the_task_of_the_user_limits(api_user: ApiUser) -> None:
    body = {"title": "Fix the login", "description": "It loops", "project_id": "p1", "priority": 1}

    task = api_user.created(**body)

    assert {name: task[name] for name in body} == body
    row = row_of(api_user, task)
    assert (row["priority"], row["locks"]) == (5, ["project:p1"])


def test_the_prompt_of_the_work_queue(api_user: ApiUser) -> None:
    body = {
        "prompt": "Perform nightly maintenance",
        "model": "sonnet",
        "timeout_seconds": 1800,
        "session_id": "session-1",
        "project": "agency",
        "env": {"DEBUG": "1"},
        "thinking": True,
        "source": "scheduler",
        "source_job": "nightly-maintenance",
    }

    answer = api_user.request("POST", "/api/queue/task", json=body)

    assert (answer.status_code, answer.json()["state"]) == (201, "pending")
    row = row_of(api_user, {"id": answer.json()["queue_id"]})
    in_spec = ("prompt", "model", "session_id", "project", "env", "thinking", "source_job")
    assert row["spec"] == {name: body[name] for name in in_spec}
    assert (row["timeout_seconds"], row["source"]) == (1800, "scheduler")
    assert (row["project_id"], row["created_by"]) == ("agency", "cron:nightly-maintenance")
    entry = api_user.request("GET", f"/api/queue/{answer.json()['queue_id']}").json()
    assert {name: entry[name] for name in body} == body


def test_the_task_of_the_work_distribution(api_user: ApiUser) -> None:
    first = api_user.created(title="before")

    task = api_user.created(**GRAPH_TASK, depends_on=[first["id"]])

    row = row_of(api_user, task)
    assert float(row["max_cost_usd"]) == 0.5
    assert float(row["estimated_cost_usd"]) == 0.5
    assert row["timeout_seconds"] == 300
    assert row["required_capabilities"] == CONSTRAINTS["required_capabilities"]
    assert row["spec"] == GRAPH_TASK["spec"]
    assert (row["priority"], row["priority_boost_per_minute"]) == (50, 0.1)
    assert row["deadline_at"] == datetime.fromisoformat("2036-02-09T12:00:00+00:00")
    assert row["retry"].items() >= GRAPH_TASK["retry"].items()  # type: ignore[attr-defined]
    assert (row["max_attempts"], row["tags"]) == (3, GRAPH_TASK["tags"])
    assert row["created_by"] == "cron:nightly-audit"
    assert row["idempotency_key"] == "pr-123-lint"
    assert (row["state"], row["unmet"], task["dag_id"]) == ("pending", 1, read_dag(api_user, first))


def read_dag(api_user: ApiUser, task: dict[str, Any]) -> str:
    dag_id: str = api_user.request("GET", f"{TASKS}/{task['id']}").json()["dag_id"]
    return dag_id


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_field_that_a_producer_cannot_set_is_refused_by_its_name(
    api_user: ApiUser, name: str
) -> None:
    [error] = refusal(api_user, {"title": "x", name: REFUSED[name]})

    assert error["field"] == name


@pytest.mark.parametrize(
    ("constraints", "field"),
    [
        ({"max_cost": 1}, "spec.constraints.max_cost"),
        ({"max_cost_usd": "much"}, "spec.constraints.max_cost_usd"),
        ({"max_duration_sec": 0}, "spec.constraints.max_duration_sec"),
        ([], "spec.constraints"),
    ],
)
def test_a_wrong_constraint_is_refused_by_its_name(
    api_user: ApiUser, constraints: object, field: str
) -> None:
    [error] = refusal(api_user, {"title": "x", "spec": {"constraints": constraints}})

    assert error["field"] == field


def test_a_constraint_that_contradicts_its_field_is_refused(api_user: ApiUser) -> None:
    spec = {"constraints": {"max_duration_sec": 300}}

    [error] = refusal(api_user, {"title": "x", "timeout_seconds": 60, "spec": spec})

    assert error["field"] == "spec.constraints.max_duration_sec"
    assert api_user.created(timeout_seconds=300, spec=spec)["timeout_seconds"] == 300


@pytest.mark.parametrize(
    ("attempt", "model"), [(1, "claude-sonnet-4"), (2, "claude-haiku"), (3, "claude-haiku")]
)
def test_a_run_uses_the_preferred_model_and_then_the_fallback(attempt: int, model: str) -> None:
    assert MemoryContext(spec={"constraints": CONSTRAINTS}, attempt=attempt).model == model


def test_the_task_of_the_agents_queue(api_user: ApiUser) -> None:
    workflow = api_user.created(title="workflow")["dag_id"]
    body = {
        "workflow_id": workflow,
        "agent_name": "FitmentAgent",
        "task_type": "generate_fitment",
        "payload": {"vehicle": "v1"},
        "priority": 1,
        "max_attempts": 3,
        "available_at": "2036-01-01T00:00:00Z",
    }

    answer = api_user.request("POST", TASKS, json=body)

    assert answer.status_code == 201, answer.text
    task = answer.json()
    assert (task["workflow_id"], task["dag_id"]) == (workflow, workflow)
    assert (task["type"], task["task_type"], task["title"]) == ("generate_fitment",) * 3
    assert (task["payload"], task["priority"], task["max_attempts"]) == ({"vehicle": "v1"}, 1, 3)
    assert (task["agent_name"], task["start_at"]) == ("FitmentAgent", "2036-01-01T00:00:00Z")
    assert row_of(api_user, task)["required_capabilities"] == ["agent:FitmentAgent"]


def test_a_task_depends_only_on_own_tasks_of_one_graph(api_user: ApiUser) -> None:
    first, other = api_user.created(title="a"), api_user.created(title="b")
    foreign = api_user.new_user().created(title="c")

    apart = refusal(api_user, {"title": "x", "depends_on": [first["id"], other["id"]]})
    hidden = api_user.request("POST", TASKS, json={"title": "x", "depends_on": [foreign["id"]]})
    malformed = refusal(api_user, {"title": "x", "depends_on": ["task-1"]})

    assert [error["field"] for error in (*apart, *malformed)] == ["depends_on"] * 2
    assert (hidden.status_code, hidden.json()["code"]) == (404, "TASK_NOT_FOUND")


def test_the_creator_is_the_caller(api_user: ApiUser) -> None:
    other = api_user.new_user()

    for caller in (api_user, other):
        [name] = caller.deployment.rows("SELECT name FROM users WHERE id = :u", u=caller.user)
        graph = {"title": "g", "tasks": [{"name": "a", "title": "t"}]}
        dag_id = caller.request("POST", "/api/v1/dags", json=graph).json()["id"]
        dag = caller.request("GET", f"/api/v1/dags/{dag_id}").json()

        assert caller.created(title="t")["created_by"] == f"human:{name['name']}"
        assert dag["created_by"] == f"human:{name['name']}"
