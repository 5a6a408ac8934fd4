"""Runs of pull agents over HTTP, authenticated by the token of the claim."""

import base64
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from overnight_server.control.cancel import cancel
from overnight_server.maintenance.reap import reap
from tests.support.api_user import ApiUser, serve_api
from tests.support.deployment import Deployment
from tests.support.pull_agent import TASKS, PullAgent, register_agent

OVER = timedelta(seconds=91)


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        yield api_user


@pytest.fixture
def agent(api_user: ApiUser) -> PullAgent:
    api_user.created(type="echo", max_attempts=3)
    return register_agent(api_user)


def row(agent: PullAgent, work: dict[str, Any]) -> Any:
    return agent.api_user.deployment.row(agent.api_user.row_id(work["task_id"]))


def test_a_task_is_claimed_run_and_completed_over_http(agent: PullAgent) -> None:
    work = agent.work()

    started = agent.report(work, "start")
    beat = agent.report(work, "heartbeat", progress={"fraction": 0.5}, cost_usd=0.25)
    done = agent.report(
        work,
        "complete",
        output={"words": 3},
        summary="wrote it",
        files_changed=["a.py"],
        cost_usd=0.5,
        tokens={"input": 10, "output": 5},
    )

    assert started.json() == {"lease_seconds": 90, "timeout_seconds": work["timeout_seconds"]}
    assert beat.json() == {"answer": "continue", "lease_seconds": 90}
    assert (done.status_code, done.json()) == (200, {"ok": True})
    shown = agent.api_user.request("GET", f"{TASKS}/{work['task_id']}").json()
    assert (shown["status"], shown["output"]) == ("completed", {"words": 3})
    assert (shown["result_summary"], shown["files_changed"]) == ("wrote it", ["a.py"])
    assert shown["cost_usd"] == 0.5
    attempt = agent.api_user.deployment.one("SELECT * FROM attempts")
    assert attempt["tokens_used"] == {"input": 10, "output": 5}
    assert attempt["agent"] == agent.id


def test_a_repeated_start_starts_once(agent: PullAgent) -> None:
    work = agent.begin()
    began = row(agent, work)["started_at"]

    assert agent.report(work, "start").status_code == 200
    assert row(agent, work)["started_at"] == began


@pytest.mark.parametrize("what", ["complete", "fail", "heartbeat"])
def test_a_claim_must_be_started_before_it_can_end(agent: PullAgent, what: str) -> None:
    work = agent.work()

    answer = agent.report(work, what)

    assert (answer.status_code, answer.json()["code"]) == (409, "NOT_STARTED")
    assert row(agent, work)["state"] == "claimed"


@pytest.mark.parametrize(
    "what",
    ["start", "heartbeat", "complete", "fail", "release", "spawn", "artifacts", "extend", "logs"],
)
def test_a_run_route_accepts_only_the_token_of_its_claim(agent: PullAgent, what: str) -> None:
    agent.api_user.created()
    work, other = agent.begin(), agent.begin()
    bodies: dict[str, dict[str, Any]] = {
        "spawn": {"task": {"title": "x"}},
        "artifacts": {"name": "a", "content": "b"},
        "extend": {"seconds": 5},
        "logs": {"text": "a line"},
    }
    body = bodies.get(what, {})
    before = row(agent, work)

    for token in ("", agent.api_user.key, work["token"][:-1] + "x", "overnight_claim_x"):
        assert agent.report({**work, "token": token}, what, **body).status_code == 401
    assert agent.report({**work, "token": other["token"]}, what, **body).status_code == 404

    assert row(agent, work) == before


@pytest.mark.parametrize("what", ["start", "heartbeat", "complete", "fail", "release"])
def test_a_run_that_lost_its_claim_changes_nothing(agent: PullAgent, what: str) -> None:
    work = agent.begin()
    agent.api_user.deployment.move_clock(OVER)
    reap(agent.api_user.deployment.dispatcher)
    agent.api_user.deployment.run(
        "UPDATE tasks SET state = 'ready', retry_at = NULL WHERE state = 'retrying'"
    )
    again = register_agent(agent.api_user).begin()
    before = row(agent, work)

    late = agent.report(work, what)

    assert (late.status_code, late.json()["code"]) == (409, "STALE_ATTEMPT")
    assert row(agent, work) == before
    assert agent.report(again, "complete", output=2).status_code == 200


def test_the_task_of_a_busy_agent_goes_to_the_back_of_the_queue(agent: PullAgent) -> None:
    [first] = agent.api_user.request("GET", TASKS).json()
    agent.api_user.deployment.move_clock(timedelta(minutes=1))
    second = agent.api_user.created(type="echo", title="second")
    work = agent.work()

    assert agent.report(work, "release", reason="busy").status_code == 200
    assert agent.report(work, "release", reason="busy").status_code == 200

    assert work["task_id"] == first["id"]
    task = row(agent, work)
    assert (task["state"], task["attempts"], task["error"]) == ("ready", 0, None)
    assert agent.api_user.deployment.rows("SELECT seconds FROM usage_ledger") == []
    assert agent.work()["task_id"] == second["id"]


def test_a_busy_run_spends_nothing_however_often(agent: PullAgent) -> None:
    agent.api_user.deployment.run("UPDATE tasks SET max_attempts = 1")

    for _ in range(3):
        work = agent.begin()
        agent.report(work, "release", reason="busy")

    task = row(agent, work)
    assert (task["state"], task["attempts"], task["epoch"]) == ("ready", 0, 3)
    outcomes = agent.api_user.deployment.rows("SELECT DISTINCT outcome, spent FROM attempts")
    assert outcomes == [{"outcome": "busy", "spent": False}]


def test_the_place_at_the_back_survives_an_edit(agent: PullAgent) -> None:
    agent.api_user.deployment.move_clock(timedelta(minutes=1))
    second = agent.api_user.created(type="echo", title="second")
    work = agent.work()
    agent.report(work, "release", reason="busy")

    edited = agent.api_user.request(
        "PATCH",
        f"{TASKS}/{work['task_id']}",
        json={"deadline_at": "2100-01-01T00:00:00Z"},
        headers={"If-Match": "*"},
    )

    assert edited.status_code == 200, edited.text
    assert agent.work()["task_id"] == second["id"]


def test_a_late_result_is_stored_apart(agent: PullAgent) -> None:
    work = agent.begin()
    agent.api_user.deployment.move_clock(OVER)
    reap(agent.api_user.deployment.dispatcher)

    agent.report(work, "complete", output="late")

    [kept] = agent.api_user.deployment.rows("SELECT * FROM stale_results")
    assert (kept["agent"], kept["result"]["output"]) == (agent.id, "late")


def test_one_late_result_per_claim_is_stored(agent: PullAgent) -> None:
    for attempt in (1, 2):
        work = agent.begin()
        agent.api_user.deployment.move_clock(OVER)
        reap(agent.api_user.deployment.dispatcher)
        agent.api_user.deployment.run("UPDATE tasks SET state = 'ready', retry_at = NULL")
        statuses = [
            agent.report(work, "complete", output=[attempt, n]).status_code for n in range(5)
        ]
        assert statuses == [409] * 5
        agent = register_agent(agent.api_user)

    kept = agent.api_user.deployment.rows("SELECT epoch, result FROM stale_results ORDER BY epoch")
    assert [(item["epoch"], item["result"]["output"]) for item in kept] == [
        (1, [1, 0]),
        (2, [2, 0]),
    ]


def test_a_repeated_completion_succeeds(agent: PullAgent) -> None:
    work = agent.begin()

    first = agent.report(work, "complete", output=1)
    again = agent.report(work, "complete", output=1)
    other = agent.report(work, "fail", error="no, it failed")

    assert (first.json(), again.json()) == ({"ok": True}, {"ok": True})
    assert other.json()["code"] == "STALE_ATTEMPT"
    assert row(agent, work)["output"] == 1


def test_a_failure_follows_the_policy_or_the_report(agent: PullAgent) -> None:
    work = agent.begin()

    assert agent.report(work, "fail", error="boom", retry_after=30).status_code == 200

    failed = row(agent, work)
    assert (failed["state"], failed["attempts"], failed["error"]) == ("retrying", 1, "boom")
    agent.api_user.deployment.run("UPDATE tasks SET state = 'ready', retry_at = NULL")
    work = agent.begin()
    agent.report(work, "fail", error="never", error_class="auth_failure", retryable=False)
    assert row(agent, work)["state"] == "dead_lettered"


def test_a_rate_limit_spends_no_attempt(agent: PullAgent) -> None:
    work = agent.begin()

    agent.report(work, "fail", error_class="rate_limit", retry_after=60)

    waiting = row(agent, work)
    assert (waiting["state"], waiting["attempts"]) == ("retrying", 0)


def test_a_completion_with_the_state_failed_is_a_failure(agent: PullAgent) -> None:
    work = agent.begin()

    agent.report(work, "complete", status="failed", error="no luck")

    assert (row(agent, work)["state"], row(agent, work)["error"]) == ("retrying", "no luck")


@pytest.mark.parametrize("starts", [True, False])
def test_a_released_run_is_claimable_and_spends_no_attempt(
    agent: PullAgent, *, starts: bool
) -> None:
    work = agent.begin() if starts else agent.work()

    assert agent.report(work, "release").status_code == 200

    back = row(agent, work)
    assert (back["state"], back["attempts"]) == ("ready", 0)
    assert agent.report(work, "release").status_code == 200, "no answer was heard"
    assert agent.work()["epoch"] == work["epoch"] + 1


def test_a_pull_agents_heartbeat_reports_a_cancel(agent: PullAgent) -> None:
    work = agent.begin()
    cancel(
        agent.api_user.deployment.app, agent.api_user.user, row(agent, work)["id"], actor="user:x"
    )

    assert agent.report(work, "heartbeat").json()["answer"] == "cancel"

    assert agent.report(work, "release", reason="cancelled").status_code == 200
    assert row(agent, work)["state"] == "cancelled"


def test_a_pull_agents_heartbeat_reports_a_used_up_budget(api_user: ApiUser) -> None:
    api_user.created(max_cost_usd=1)
    agent = register_agent(api_user)
    work = agent.begin()

    assert agent.report(work, "heartbeat", cost_usd=1.5).json()["answer"] == "budget"

    assert agent.report(work, "release", reason="budget", cost_usd=1.5).status_code == 200
    assert row(agent, work)["awaits_budget"] == "task"


def test_heartbeats_and_extensions_extend_the_lease(agent: PullAgent) -> None:
    work = agent.begin()
    for _ in range(3):
        agent.api_user.deployment.move_clock(timedelta(seconds=80))
        assert agent.report(work, "heartbeat").status_code == 200

    assert agent.report(work, "extend", seconds=600).json()["lease_seconds"] == 600

    agent.api_user.deployment.move_clock(timedelta(seconds=500))
    assert reap(agent.api_user.deployment.dispatcher) == 0
    assert agent.report(work, "complete").status_code == 200


def test_a_run_spawns_waits_and_reads_the_outputs(agent: PullAgent) -> None:
    work = agent.begin()

    child = agent.report(work, "spawn", task={"title": "part", "type": "echo"}, key="part")
    again = agent.report(work, "spawn", task={"title": "other"}, key="part")
    assert (child.status_code, again.status_code) == (201, 200)
    assert child.json()["id"] == again.json()["id"]
    assert agent.report(work, "suspend", tasks=[child.json()["id"]]).status_code == 200
    assert row(agent, work)["state"] == "pending"

    part = agent.begin()
    assert part["task_id"] == child.json()["id"]
    agent.report(part, "complete", output="made")
    parent = agent.begin()

    assert parent["task_id"] == work["task_id"]
    assert parent["inputs"] == {"part": "made"}
    headers = {"Authorization": f"Bearer {parent['token']}"}
    answer = agent.api_user.http.get(f"{TASKS}/{work['task_id']}/children", headers=headers)
    [seen] = answer.json()
    assert (seen["key"], seen["state"], seen["output"]) == ("part", "completed", "made")


def test_a_run_stores_artifacts(agent: PullAgent) -> None:
    work = agent.begin()
    content = base64.b64encode(b"\x00\x01").decode()

    kept = agent.report(work, "artifacts", name="raw", kind="bytes", content=content)
    wrong = agent.report(work, "artifacts", name="bad", kind="json", content="{")

    assert kept.status_code == 201
    [stored] = agent.api_user.deployment.rows("SELECT * FROM staged_artifacts")
    assert (stored["name"], bytes(stored["content"])) == ("raw", b"\x00\x01")
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (400, "content")


def test_a_wrong_report_names_its_field(agent: PullAgent) -> None:
    work = agent.begin()

    answer = agent.report(work, "complete", result=1)

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "result"
    assert row(agent, work)["state"] == "running"


def test_progress_fields_with_secret_names_are_masked(agent: PullAgent) -> None:
    work = agent.begin()
    progress = {"step": 1, "login": [{"password": "hunter2"}]}

    assert agent.report(work, "heartbeat", progress=progress).status_code == 200

    paths = [f"{TASKS}/{work['task_id']}", TASKS, f"/api/v1/dags/{work['dag_id']}"]
    for path in paths:
        shown = agent.api_user.request("GET", path)
        assert shown.status_code == 200, shown.text
        assert '"login":[{"password":"***"}]' in shown.text, path


def read_by_another(agent: PullAgent, kind: str, content: str) -> str:
    """Keep an artifact, and have a task read it; return the reference."""
    work = agent.begin()
    kept = agent.report(work, "artifacts", name="a", kind=kind, content=content)
    assert kept.status_code == 201, kept.text
    agent.report(work, "complete", output=1)
    reference = f"artifact:{kept.json()['id']}"
    agent.api_user.created(type="echo", title="reader", max_attempts=2, context_refs=[reference])
    return reference


def test_a_task_that_reads_bytes_gets_them_in_base64(agent: PullAgent) -> None:
    content = base64.b64encode(b"\x89PNG\xff").decode()
    reference = read_by_another(agent, "bytes", content)

    work = agent.work()

    assert work["inputs"] == {reference: content}
    assert work["base64_inputs"] == [reference]


@pytest.mark.parametrize(
    "content",
    [
        "NaN",
        '{"a": -Infinity}',
        '{"a": 1e400}',
        "[" * 33 + "]" * 33,
        "[" * 480 + "]" * 480,
        '"\\ud800"',
        '{"a": "\\u0000"}',
        "9" * 4200,
        "\ufeff{}",
    ],
)
def test_json_that_cannot_be_returned_is_refused(agent: PullAgent, content: str) -> None:
    work = agent.begin()

    answer = agent.report(work, "artifacts", name="a", kind="json", content=content)

    assert answer.status_code == 400, answer.text
    assert [error["field"] for error in answer.json()["errors"]] == ["content"]
    assert not agent.api_user.deployment.rows("SELECT 1 FROM staged_artifacts")


@pytest.mark.parametrize(
    "content", [b'"\\ud800"', b"[" * 480 + b"]" * 480, b"[" * 9000 + b"]" * 9000, b"{"]
)
def test_a_task_that_cannot_be_serialized_fails_and_the_next_is_claimed(
    agent: PullAgent, content: bytes
) -> None:
    read_by_another(agent, "json", "[]")
    agent.api_user.deployment.run("UPDATE artifacts SET content = :content", content=content)
    agent.api_user.created(type="echo", title="behind")

    work = agent.work()

    assert work["title"] == "behind"
    failed = agent.api_user.deployment.one("SELECT * FROM tasks WHERE title = 'reader'")
    assert (failed["state"], failed["failure_reason"]) == ("dead_lettered", "invalid_input")
    assert agent.claim().status_code == 204
