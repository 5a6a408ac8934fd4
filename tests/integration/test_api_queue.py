"""The single queue over HTTP, with the names of its design."""

from collections.abc import Iterator
from typing import Any

import pytest
from httpx2 import Response

from overnight_server.api.routes import queue
from overnight_server.domain.ids import UserId
from overnight_server.domain.results import Raised, Returned
from overnight_server.intake import scheduler_jobs
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import NewTask
from overnight_server.intake.submit import Submitted, submit
from overnight_server.store.db import Db
from tests.support.api_user import ApiUser, serve_api
from tests.support.deployment import Deployment
from tests.support.pull_agent import register_agent

QUEUE = "/api/queue"


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        yield api_user


def put(api_user: ApiUser, prompt: str = "tidy up", **fields: Any) -> Response:
    return api_user.request("POST", f"{QUEUE}/task", json={"prompt": prompt, **fields})


def entry(api_user: ApiUser, queue_id: str) -> dict[str, Any]:
    answer = api_user.request("GET", f"{QUEUE}/{queue_id}")
    assert answer.status_code == 200, answer.text
    shown: dict[str, Any] = answer.json()
    return shown


def test_a_submitted_prompt_gets_its_position(api_user: ApiUser) -> None:
    first, second = put(api_user).json(), put(api_user)

    assert second.status_code == 201
    assert second.json()["state"] == "pending"
    assert (first["position"], second.json()["position"]) == (1, 2)
    assert second.headers["location"] == f"{QUEUE}/{second.json()['queue_id']}"


def test_an_entry_is_accepted_as_pending_however_quick_a_worker_is(
    api_user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit_and_claim(db: Db, user_id: UserId, task: NewTask, caps: Caps) -> Submitted:
        submitted = submit(db, user_id, task, caps)
        assert len(api_user.deployment.claim().claims) == 1
        return submitted

    api_user.deployment.agent()
    monkeypatch.setattr(queue, "submit", submit_and_claim)

    accepted = put(api_user).json()

    assert (accepted["state"], accepted["position"]) == ("pending", 1)
    assert entry(api_user, accepted["queue_id"])["state"] == "dispatching"


def test_every_field_of_a_prompt_reaches_the_runner_and_is_returned(api_user: ApiUser) -> None:
    fields = {
        "model": "sonnet",
        "timeout_seconds": 1800,
        "session_id": "s-1",
        "project": {"name": "site", "root": "/srv/site"},
        "env": {"CI": "1"},
        "thinking": False,
        "source": "scheduler",
        "source_job": "nightly-maintenance",
    }

    queue_id = put(api_user, "Perform nightly maintenance\nwith care", **fields).json()["queue_id"]

    row = api_user.deployment.row(api_user.row_id(queue_id))
    told = {
        name: value for name, value in fields.items() if name not in ("timeout_seconds", "source")
    }
    assert row["spec"] == {"prompt": "Perform nightly maintenance\nwith care", **told}
    assert row["title"] == "Perform nightly maintenance"
    assert (row["project_id"], row["timeout_seconds"]) == ("site", 1800)
    assert (row["source"], row["created_by"]) == ("scheduler", "cron:nightly-maintenance")
    shown = entry(api_user, queue_id)
    assert fields.items() <= shown.items()
    assert shown["attempts"] == 0


def test_secrets_of_an_entry_reach_only_the_runner(api_user: ApiUser) -> None:
    env = {"API_KEY": "hunter2-key", "DB": "postgres://a:hunter2-url@db/x", "CI": "1"}
    project = {"name": "site", "token": "hunter2-token"}

    queue_id = put(api_user, env=env, project=project).json()["queue_id"]

    for path in (f"/api/queue/{queue_id}", "/api/queue"):
        assert "hunter2" not in api_user.request("GET", path).text
    shown = entry(api_user, queue_id)
    assert shown["env"] == {"API_KEY": "***", "DB": "postgres://a:***@db/x", "CI": "1"}
    assert shown["project"] == {"name": "site", "token": "***"}
    assert register_agent(api_user).work()["spec"]["env"] == env


def test_a_dispatched_entry_names_its_agent(api_user: ApiUser) -> None:
    deployment = api_user.deployment
    queue_id = put(api_user).json()["queue_id"]
    waiting = entry(api_user, queue_id)
    deployment.agent(agent_id="https://localhost:9000")
    [claimed] = deployment.claim().claims
    sent = entry(api_user, queue_id)
    run = deployment.start(claimed)
    assert run is not None
    works = entry(api_user, queue_id)
    deployment.settle(run, Returned("done"))

    assert (waiting["state"], waiting["task_id"], waiting["agent_url"]) == ("pending", None, None)
    assert (sent["state"], sent["task_id"], sent["position"]) == ("dispatching", queue_id, None)
    assert sent["dispatched_at"] is not None
    assert sent["agent_url"]
    assert (works["state"], works["attempts"]) == ("working", 1)
    assert entry(api_user, queue_id)["state"] == "completed"


def test_a_failed_entry_keeps_its_error(api_user: ApiUser) -> None:
    deployment = api_user.deployment
    deployment.agent()
    queue_id = put(api_user).json()["queue_id"]
    [claimed] = deployment.claim().claims
    run = deployment.start(claimed)
    assert run is not None
    deployment.settle(run, Raised("auth_failure", "no such key"))

    shown = entry(api_user, queue_id)

    assert (shown["state"], shown["last_error"]) == ("failed", "no such key")


def test_the_queue_lists_open_tasks_in_their_order(api_user: ApiUser) -> None:
    deployment = api_user.deployment
    deployment.agent(slots=1)
    ids = [put(api_user, f"prompt {n}").json()["queue_id"] for n in range(4)]
    deployment.claim(limit=1)
    api_user.request("POST", f"{QUEUE}/{ids[3]}/cancel")
    put(api_user.new_user())

    shown = api_user.request("GET", QUEUE).json()

    assert [task["queue_id"] for task in shown["tasks"]] == ids[:3]
    assert [task["state"] for task in shown["tasks"]] == ["dispatching", "pending", "pending"]
    assert [task["position"] for task in shown["tasks"]] == [None, 1, 2]
    assert (shown["depth"], shown["dispatched_count"], shown["max_size"]) == (3, 1, 1_000_000)


def test_a_task_that_waits_for_another_is_listed_last(api_user: ApiUser) -> None:
    graph = {
        "title": "two",
        "tasks": [
            {"name": "a", "title": "a"},
            {"name": "b", "title": "b", "depends_on": ["a"]},
        ],
    }
    assert api_user.request("POST", "/api/v1/dags", json=graph).status_code == 201
    put(api_user)

    shown = api_user.request("GET", QUEUE).json()["tasks"]

    assert [item["prompt"] for item in shown] == ["a", "tidy up", "b"]
    assert shown[2]["position"] is None


def test_a_queued_entry_is_cancelled_at_once(api_user: ApiUser) -> None:
    queue_id = put(api_user).json()["queue_id"]

    answer = api_user.request("POST", f"{QUEUE}/{queue_id}/cancel")

    assert answer.json() == {"queue_id": queue_id, "state": "cancelled", "cancelled": True}
    again = api_user.request("POST", f"{QUEUE}/{queue_id}/cancel")
    assert (again.status_code, again.json()["code"]) == (400, "TASK_ALREADY_COMPLETED")


def test_a_prompt_from_a_page_has_the_source_web(api_user: ApiUser) -> None:
    answer = api_user.request("POST", "/api/task", json={"prompt": "hello", "source": "cli"})

    assert answer.status_code == 201
    assert set(answer.json()) == {"queue_id", "position", "state"}
    assert entry(api_user, answer.json()["queue_id"])["source"] == "web"


def test_a_full_queue_responds_503(deployment: Deployment, database_url: str) -> None:
    with serve_api(deployment, database_url, AG_QUEUE_MAX_SIZE="2") as api_user:
        put(api_user), put(api_user)

        answer = put(api_user)

        assert (answer.status_code, answer.json()["code"]) == (503, "QUEUE_FULL")
        assert answer.headers["retry-after"]
        assert api_user.request("GET", "/status").json()["queue"]["depth"] == 2


def test_the_status_reports_how_full_the_queue_is(api_user: ApiUser) -> None:
    put(api_user)
    api_user.deployment.run("UPDATE tasks SET created_at = created_at - interval '5 minutes'")

    shown = api_user.request("GET", "/status").json()

    assert shown["type"] == "view"
    assert shown["interfaces"] == ["statusable", "observable", "taskable"]
    assert shown["version"]
    queue = shown["queue"]
    assert (queue["depth"], queue["max_size"], queue["dispatched_count"]) == (1, 1_000_000, 0)
    assert 300 <= queue["oldest_age_seconds"] < 400


def test_the_status_lists_the_jobs_of_a_scheduler(
    deployment: Deployment, database_url: str
) -> None:
    job = {"source": "scheduler", "source_job": "nightly-maintenance"}
    with serve_api(deployment, database_url, AG_QUEUE_MAX_SIZE="1") as api_user:
        queue_id = put(api_user, **job).json()["queue_id"]
        [first] = api_user.request("GET", "/status").json()["jobs"]
        refused = put(api_user, **job)
        put(api_user, source_job="report")
        put(api_user, "", source_job="wrong")
        latest, second = api_user.request("GET", "/status").json()["jobs"]

        assert refused.status_code == 503
        assert first.pop("last_run_at")
        assert first == {
            "name": "nightly-maintenance",
            "last_status": "queued",
            "last_queue_id": queue_id,
            "is_running": True,
            "next_run_at": None,
        }
        assert (second["last_status"], second["last_queue_id"]) == ("skipped_queue_full", None)
        assert (latest["name"], second["is_running"]) == ("report", False)
        assert api_user.new_user().request("GET", "/status").json()["jobs"] == []
        api_user.request("POST", f"{QUEUE}/{queue_id}/cancel")
        again = put(api_user, **job).json()["queue_id"]
        api_user.deployment.run("UPDATE tasks SET state = 'cancelled', finished_at = clock()")
        [over, _] = api_user.request("GET", "/status").json()["jobs"]
        assert (over["last_queue_id"], over["is_running"]) == (again, False)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"max_pending": 0}, "skipped_queue_full"),
        ({"monthly_agent_hours_limit": 0}, "skipped_monthly_limit"),
    ],
)
def test_a_job_that_a_limit_refuses_is_skipped(
    api_user: ApiUser, columns: dict[str, int], expected: str
) -> None:
    poor = api_user.new_user(**columns)

    assert put(poor, source_job="nightly").status_code in (400, 403)

    [job] = poor.request("GET", "/status").json()["jobs"]
    assert (job["last_status"], job["last_queue_id"]) == (expected, None)


def test_the_number_of_stored_jobs_is_limited(
    api_user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_jobs, "MAX_JOBS", 2)

    for name in ("a", "b", "c", "a"):
        assert put(api_user, source_job=name).status_code == 201

    assert [job["name"] for job in api_user.request("GET", "/status").json()["jobs"]] == ["a", "b"]


def test_an_agent_url_is_accepted_and_ignored(api_user: ApiUser) -> None:
    answer = put(api_user, agent_url="https://localhost:9000")

    assert answer.status_code == 201
    assert (
        "agent_url"
        not in api_user.deployment.row(api_user.row_id(answer.json()["queue_id"]))["spec"]
    )


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "x", "modle": "sonnet"}, "modle"),
        ({"prompt": "x", "timeout_seconds": 0}, "timeout_seconds"),
        ({"prompt": "x", "thinking": "yes"}, "thinking"),
        ({"prompt": "x", "env": {"A": 1}}, "env.A"),
        ({"prompt": "x", "source": "The Web"}, "source"),
    ],
)
def test_a_wrong_field_is_named(api_user: ApiUser, body: dict[str, Any], field: str) -> None:
    answer = api_user.request("POST", f"{QUEUE}/task", json=body)

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == field


def test_workflow_field_names_are_accepted_and_returned(api_user: ApiUser) -> None:
    answer = api_user.request(
        "POST",
        "/api/v1/tasks",
        json={
            "agent_name": "FitmentAgent",
            "task_type": "generate_fitment",
            "payload": {"sku": 1},
            "max_attempts": 3,
        },
    )

    task = answer.json()
    assert answer.status_code == 201
    assert (task["title"], task["type"]) == ("generate_fitment", "generate_fitment")
    assert task["task_type"] == task["type"]
    assert task["workflow_id"] == task["dag_id"]
    assert task["agent_name"] == "FitmentAgent"
    assert (task["error_info"], task["lease_owner"], task["lease_expires_at"]) == (None, None, None)


def test_holder_and_failure_are_returned_under_workflow_names(api_user: ApiUser) -> None:
    deployment = api_user.deployment
    deployment.agent()
    task_id = api_user.created()["id"]
    [claimed] = deployment.claim().claims
    held = api_user.request("GET", f"/api/v1/tasks/{task_id}").json()
    run = deployment.start(claimed)
    assert run is not None
    deployment.settle(run, Raised("auth_failure", "no"))
    ended = api_user.request("GET", f"/api/v1/tasks/{task_id}").json()

    assert held["lease_owner"]
    assert held["lease_expires_at"]
    assert ended["error_info"] == {"reason": "auth_failure", "message": "no", "attempts": 1}
