"""Creating, reading, listing and cancelling tasks over HTTP."""

from collections.abc import Iterator
from typing import Any, cast

import pytest
from fastapi import FastAPI
from sqlalchemy import event

from overnight import errors
from overnight_server.domain.results import Returned
from tests.support.api_user import TASKS, ApiUser, serve_api
from tests.support.deployment import Deployment


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        yield api_user


def test_the_response_to_a_create_is_the_whole_task(api_user: ApiUser) -> None:
    answer = api_user.create(title="say hello", type="echo", payload={"hello": "world"}, tags=["a"])

    task = answer.json()
    assert answer.status_code == 201
    assert answer.headers["location"] == f"{TASKS}/{task['id']}"
    assert task["id"] == task["queue_id"]
    assert task["id"].startswith("task_")
    assert task["dag_id"].startswith("dag_")
    assert (task["status"], task["state"]) == ("pending", "ready")
    assert (task["queue_position"], task["position"]) == (1, 1)
    assert (task["priority"], task["priority_score"]) == (3, 50)
    assert task["payload"] == {"hello": "world"}
    assert task["tags"] == ["a"]


def test_a_create_of_a_known_key_takes_one_connection_once(api_user: ApiUser) -> None:
    api_user.created()
    checkouts: list[object] = []
    engine = cast("FastAPI", api_user.http.app).state.dependencies.db.engine
    event.listen(engine, "checkout", lambda *connection: checkouts.append(connection))

    task = api_user.created(title="another")

    assert task["title"] == "another"
    assert len(checkouts) == 1


def test_absent_fields_get_their_defaults(api_user: ApiUser) -> None:
    task = api_user.created()

    row = api_user.deployment.row(api_user.row_id(task["id"]))
    assert task["type"] == "echo"
    assert task["max_attempts"] == 3
    assert row["retry"]["strategy"] == "exponential"
    assert row["source"] == "api"


@pytest.mark.parametrize(
    ("fields", "priority", "score"),
    [
        ({"priority": 1}, 1, 5),
        ({"priority": 2}, 2, 20),
        ({"priority": 4}, 4, 70),
        ({"priority": 4, "priority_score": 7}, 1, 7),
        ({"priority_score": 95}, 4, 95),
    ],
)
def test_a_priority_becomes_a_score(
    api_user: ApiUser, fields: dict[str, int], priority: int, score: int
) -> None:
    task = api_user.created(**fields)

    assert (task["priority"], task["priority_score"]) == (priority, score)


def test_every_field_reaches_the_row(api_user: ApiUser) -> None:
    task = api_user.created(
        description="more",
        project_id="site",
        prompt="do it",
        spec={"model": "small"},
        max_duration_sec=60,
        max_attempts=5,
        retry={"strategy": "fixed", "initial_delay_sec": 7, "retry_on": ["crash"]},
        required_capabilities=["code"],
        deadline_at="2999-01-01T00:00:00+02:00",
        max_cost_usd=1.5,
        created_by="agent:planner",
        source="cli",
    )

    row = api_user.deployment.row(api_user.row_id(task["id"]))
    assert task["timeout_seconds"] == 60
    assert row["spec"] == {"model": "small", "prompt": "do it"}
    assert row["retry"]["strategy"] == "fixed"
    assert row["retry"]["initial_delay_sec"] == 7
    assert row["retry"]["retry_on"] == ["crash"]
    assert row["retry"]["max_delay_sec"] == 300
    assert row["required_capabilities"] == ["code"]
    assert row["deadline_at"].isoformat() == "2998-12-31T22:00:00+00:00"
    assert float(row["max_cost_usd"]) == 1.5
    assert (task["created_by"], task["source"], task["project_id"]) == (
        "agent:planner",
        "cli",
        "site",
    )


@pytest.mark.parametrize("where", ["header", "body"])
def test_a_repeated_key_returns_the_existing_task(api_user: ApiUser, where: str) -> None:
    def send(title: str) -> Any:
        if where == "body":
            return api_user.create(title=title, idempotency_key="once")
        return api_user.request(
            "POST", TASKS, json={"title": title}, headers={"Idempotency-Key": "once"}
        )

    first, second = send("one"), send("two")

    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["id"] == second.json()["id"]
    assert second.json()["title"] == "one"
    assert api_user.deployment.one("SELECT count(*) AS n FROM tasks")["n"] == 1


def test_a_key_belongs_to_its_user_alone(api_user: ApiUser) -> None:
    mine = api_user.created(idempotency_key="once")
    theirs = api_user.new_user().created(idempotency_key="once")

    assert mine["id"] != theirs["id"]


def test_a_repeated_create_succeeds_even_at_a_limit(api_user: ApiUser) -> None:
    other_user = api_user.new_user(max_pending=1)
    first = other_user.created(idempotency_key="once")

    assert other_user.create(idempotency_key="once").json()["id"] == first["id"]
    assert other_user.create().status_code == 400


def test_two_keys_that_differ_are_refused(api_user: ApiUser) -> None:
    answer = api_user.request(
        "POST",
        TASKS,
        json={"title": "a", "idempotency_key": "one"},
        headers={"Idempotency-Key": "two"},
    )

    assert answer.status_code == 400
    assert answer.json()["errors"][0]["field"] == "idempotency_key"


@pytest.mark.parametrize("key", [b"", b"x" * 256, "naïve".encode(), b"a\tb"])
def test_a_key_that_a_header_cannot_carry_is_refused(api_user: ApiUser, key: bytes) -> None:
    answer = api_user.request("POST", TASKS, json={"title": "a"}, headers={"Idempotency-Key": key})

    assert answer.status_code == 400
    assert answer.json()["errors"][0]["field"] == "Idempotency-Key"


def test_a_task_is_read(api_user: ApiUser) -> None:
    task = api_user.created()

    assert api_user.request("GET", f"{TASKS}/{task['id']}").json() == task
    assert api_user.request("GET", f"{TASKS}/{task['id'].lower()}").json() == task


def test_a_finished_task_shows_its_output(api_user: ApiUser) -> None:
    api_user.deployment.agent()
    run = api_user.deployment.running(api_user.user)
    api_user.deployment.settle(run, Returned({"a": [1, None]}, summary="done", cost_usd=0.25))

    [task] = api_user.request("GET", TASKS).json()
    assert (task["status"], task["state"]) == ("completed", "completed")
    assert task["output"] == {"a": [1, None]}
    assert task["result_summary"] == "done"
    assert task["cost_usd"] == 0.25
    assert task["queue_position"] is None
    assert task["completed_at"] is not None


def test_pages_follow_each_other_newest_first_without_gaps(api_user: ApiUser) -> None:
    made = [api_user.created(title=f"task {n}")["id"] for n in range(5)]

    seen: list[str] = []
    path: str | None = f"{TASKS}?limit=2&status=pending"
    pages = 0
    while path is not None:
        page = api_user.request("GET", path)
        assert isinstance(page.json(), list)
        seen += [task["id"] for task in page.json()]
        cursor = page.headers.get("x-next-cursor")
        assert cursor in (None, seen[-1])
        path = page.links["next"]["url"] if "next" in page.links else None
        pages += 1

    assert pages == 3
    assert seen == made[::-1]


@pytest.mark.parametrize(
    ("status", "count"),
    [
        ("pending", 2),
        ("queued", 2),
        ("ready", 2),
        ("READY", 2),
        ("cancelled", 1),
        ("failed", 0),
        ("dead", 0),
        ("leased", 0),
        ("validating", 0),
    ],
)
def test_a_list_accepts_statuses_states_and_aliases(
    api_user: ApiUser, status: str, count: int
) -> None:
    tasks = [api_user.created() for _ in range(3)]
    api_user.request("DELETE", f"{TASKS}/{tasks[0]['id']}")

    assert len(api_user.request("GET", f"{TASKS}?status={status}").json()) == count


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("status=finished", "status"),
        ("status=", "status"),
        ("status=%00", "status"),
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=ten", "limit"),
        ("limit=99999999999999999999", "limit"),
        ("before=yesterday", "before"),
        ("before=task_%00", "before"),
        ("before=" + "x" * 300, "before"),
    ],
)
def test_a_wrong_query_is_refused_by_name(api_user: ApiUser, query: str, field: str) -> None:
    answer = api_user.request("GET", f"{TASKS}?{query}")

    assert answer.status_code == 400
    assert answer.json()["code"] == "INVALID_REQUEST"
    assert [wrong["field"] for wrong in answer.json()["errors"]] == [field]


def test_the_error_for_a_wrong_status_lists_legal_values(api_user: ApiUser) -> None:
    answer = api_user.request("GET", f"{TASKS}?status=finished")

    legal = answer.json()["errors"][0]["legal"].split(", ")
    assert {"pending", "dead_lettered", "leased"} <= set(legal)


def test_a_waiting_task_is_cancelled_at_once_and_only_once(api_user: ApiUser) -> None:
    task = api_user.created()

    first = api_user.request("DELETE", f"{TASKS}/{task['id']}")
    second = api_user.request("DELETE", f"{TASKS}/{task['id']}")

    assert (first.status_code, first.json()) == (200, {"cancelled": True, "state": "cancelled"})
    assert (second.status_code, second.json()["code"]) == (400, "TASK_ALREADY_COMPLETED")
    assert second.json()["state"] == "cancelled"


def test_a_running_task_is_asked_to_stop(api_user: ApiUser) -> None:
    api_user.deployment.agent()
    run = api_user.deployment.running(api_user.user)
    [task] = api_user.request("GET", TASKS).json()

    answer = api_user.request("DELETE", f"{TASKS}/{task['id']}")

    assert answer.json() == {"cancelled": True, "state": "running"}
    assert api_user.deployment.row(run.claim.task_id)["cancel_requested_at"] is not None


def test_queue_status_counts_running_and_waiting_tasks(api_user: ApiUser) -> None:
    api_user.deployment.agent()
    api_user.deployment.running(api_user.user)
    api_user.created()

    assert api_user.request("GET", f"{TASKS}/queue-status").json() == {
        "running": 1,
        "pending": 1,
        "max_concurrent": 10,
        "can_start_more": True,
        "monthly_hours_used": 0.0,
        "monthly_hours_limit": None,
        "held_by": [],
    }


def test_limits_are_those_of_the_plan(api_user: ApiUser) -> None:
    limits = api_user.request("GET", "/api/v1/users/me/limits").json()

    assert limits["plan"] == "team"
    assert limits["max_concurrent_agents"] == 10
    assert limits["max_task_duration_minutes"] == 240
    assert limits["monthly_agent_hours_limit"] is None
    assert limits["monthly_agent_hours_used"] == 0
    assert limits["billing_cycle_resets_at"] is not None


def test_too_much_waiting_work_is_refused(api_user: ApiUser) -> None:
    other_user = api_user.new_user(max_pending=2)
    other_user.created()
    other_user.created()

    answer = other_user.create()

    assert answer.status_code == 400
    assert answer.json()["code"] == "TOO_MANY_PENDING"
    assert (answer.json()["pending"], answer.json()["limit"]) == (2, 2)
    assert len(other_user.request("GET", TASKS).json()) == 2


def test_a_month_without_hours_left_is_refused(api_user: ApiUser) -> None:
    answer = api_user.new_user(monthly_agent_hours_limit=0).create()

    assert (answer.status_code, answer.json()["code"]) == (403, "MONTHLY_LIMIT_REACHED")


def test_a_full_deployment_responds_with_retry_after(
    deployment: Deployment, database_url: str
) -> None:
    with serve_api(deployment, database_url, OVERNIGHT_QUEUE_MAX_SIZE="1") as api_user:
        api_user.created()
        answer = api_user.create()

    assert (answer.status_code, answer.json()["code"]) == (503, "QUEUE_FULL")
    assert int(answer.headers["retry-after"]) > 0
    assert answer.json()["detail"] == "queue is at capacity (1 tasks)"


def test_the_client_works_with_the_service(api_user: ApiUser) -> None:
    client = api_user.client()
    task = client.tasks.create("say hello", payload={"hello": "world"}, type="echo")

    assert client.tasks.get(task.id) == task
    assert [each.id for each in client.tasks.list(status="pending")] == [task.id]
    assert client.queue_status().pending == 1
    assert client.limits().plan == "team"
    assert client.tasks.cancel(task.id).state == "cancelled"
    with pytest.raises(errors.TaskAlreadyCompleted):
        client.tasks.cancel(task.id)
    with pytest.raises(errors.TaskFailed):
        client.tasks.wait(task.id)
    with pytest.raises(errors.TaskNotFound):
        client.tasks.get("task_nobody")
    with pytest.raises(errors.InvalidRequest, match="status"):
        list(client.tasks.list(status="finished"))


def test_the_clients_list_walks_all_pages(
    api_user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overnight.client.request_plan.PAGE_SIZE", 2)
    made = [api_user.created()["id"] for _ in range(5)]

    assert [task.id for task in api_user.client().tasks.list()] == made[::-1]
    assert [task.id for task in api_user.client().tasks.list(limit=3)] == made[:1:-1]


def test_submits_and_refusals_are_logged(
    api_user: ApiUser, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="overnight")
    other_user = api_user.new_user(max_pending=1)
    task = other_user.created(source="cli")
    other_user.create()

    assert f"queue=task_added queue_id={task['id']} depth=1 source=cli" in caplog.text
    assert "queue=submit_rejected reason=too_many_pending depth=1" in caplog.text


@pytest.mark.parametrize("inside_spec", [False, True])
def test_a_task_reads_its_references(api_user: ApiUser, *, inside_spec: bool) -> None:
    api_user.deployment.agent()
    first = api_user.created()
    [run] = [api_user.deployment.start(claimed) for claimed in api_user.deployment.claim().claims]
    assert run is not None
    api_user.deployment.settle(run, Returned({"n": 1}))
    refs = {"context_refs": [f"task:{first['id']}:output"]}

    made = api_user.created(**({"spec": refs} if inside_spec else refs), role="orchestrator")

    row = api_user.deployment.row(api_user.row_id(made["id"]))
    assert row["context_refs"] == {f"task:{first['id']}:output": first["id"]}
    assert row["role"] == "orchestrator"
    assert made["parent_id"] is None


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"context_refs": ["task:nobody:output"]}, "context_refs"),
        ({"context_refs": ["artifact:nothing"]}, "context_refs"),
        ({"spec": {"context_refs": "task:a:output"}}, "spec.context_refs"),
    ],
)
def test_an_unknown_reference_names_its_field(
    api_user: ApiUser, body: dict[str, Any], field: str
) -> None:
    answer = api_user.create(**body)

    assert answer.status_code == 400
    assert [error["field"] for error in answer.json()["errors"]] == [field]


def test_a_type_that_nobody_handles_is_accepted_with_a_warning(api_user: ApiUser) -> None:
    deployment = api_user.deployment
    assert api_user.created(type="film")["warnings"] == [], "nothing is known without workers"

    deployment.agent(types=["echo", "sleep"])
    api_user.http.app.state.dependencies.known_types.forget()  # type: ignore[attr-defined]
    [warning] = api_user.created(type="ecko")["warnings"]

    assert "no worker has a handler for the type 'ecko'" in warning
    assert "the nearest known type is 'echo'" in warning
    assert api_user.created(type="echo")["warnings"] == []
    deployment.agent(agent_id="any", pool="other")
    api_user.http.app.state.dependencies.known_types.forget()  # type: ignore[attr-defined]
    assert api_user.created(type="ecko")["warnings"] == []


def test_the_limit_of_the_whole_queue_comes_before_the_users_own(
    deployment: Deployment, database_url: str
) -> None:
    full = {"OVERNIGHT_QUEUE_MAX_SIZE": "10", "OVERNIGHT_MAX_PENDING_PER_USER": "10"}
    with serve_api(deployment, database_url, **full) as api_user:
        for _ in range(10):
            api_user.created()

        prompt = api_user.request("POST", "/api/queue/task", json={"prompt": "one more"})

    assert (prompt.status_code, prompt.json()["code"]) == (503, "QUEUE_FULL")
    assert prompt.json()["detail"] == "queue is at capacity (10 tasks)"


def test_the_users_own_limit_says_how_to_send_a_larger_batch(
    deployment: Deployment, database_url: str
) -> None:
    with serve_api(deployment, database_url, OVERNIGHT_MAX_PENDING_PER_USER="10") as api_user:
        tasks = [{"name": f"t{n}", "title": "t"} for n in range(11)]
        refused = api_user.request("POST", "/api/v1/dags", json={"title": "g", "tasks": tasks})

    assert refused.json()["code"] == "TOO_MANY_PENDING"
    assert "Nothing was added" in refused.json()["detail"]
    assert "`overnight user limits NAME --max-pending 11`" in refused.json()["detail"]
