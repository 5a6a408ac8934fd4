"""The two documents that fix the wire, followed in their order: every route, field, word and code.

The first is the design of the user limits, the second that of the work queue.
"""

import json
import os
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from overnight.models.enums import PlanTier
from overnight_server.domain.plans import PLAN_LIMITS
from overnight_server.maintenance.reap import end_overdue
from tests.support.api_user import TASKS, ApiUser, serve_api
from tests.support.command import run
from tests.support.deployment import Deployment
from tests.support.live_api import serve
from tests.support.pull_agent import register_agent

LIMITS = "/api/v1/users/me/limits"
QUEUE = "/api/queue"
INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
TASK_FIELDS = {
    *("id", "title", "status", "priority", "queue_position", "created_at", "started_at"),
    *("completed_at", "result_summary", "failure_reason"),
}
ENTRY_FIELDS = {
    *("queue_id", "state", "created_at", "prompt", "model", "timeout_seconds", "session_id"),
    *("project", "env", "thinking", "dispatched_at", "task_id", "agent_url", "attempts"),
    *("last_error", "source", "source_job"),
}


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        yield api_user


def create(api_user: ApiUser, **more: Any) -> dict[str, Any]:
    body = {"title": "Fix the login", "description": "It loops", "project_id": str(uuid4())}
    answer = api_user.request("POST", TASKS, json={**body, **more})
    assert answer.status_code == 201, answer.text
    task: dict[str, Any] = answer.json()
    return task


def read(api_user: ApiUser, task_id: str) -> dict[str, Any]:
    task: dict[str, Any] = api_user.request("GET", f"{TASKS}/{task_id}").json()
    return task


def pass_time(deployment: Deployment, by: timedelta) -> None:
    """Let time pass for runs that go on giving signs of life."""
    deployment.run("UPDATE tasks SET expires_at = expires_at + :by WHERE state = 'running'", by=by)
    deployment.move_clock(by)


def code(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def test_a_task_is_created_read_listed_and_completed(api_user: ApiUser) -> None:
    agent = register_agent(api_user)
    task = create(api_user)

    assert set(task) >= TASK_FIELDS
    assert (task["status"], task["priority"], task["queue_position"]) == ("pending", 3, 1)
    assert INSTANT.fullmatch(task["created_at"])
    none = ("started_at", "completed_at", "result_summary", "failure_reason")
    assert [task[name] for name in none] == [None] * 4
    assert read(api_user, task["id"]) == task

    work = agent.work()
    assert [item["id"] for item in api_user.request("GET", f"{TASKS}?status=claimed").json()] == [
        task["id"]
    ]
    agent.report(work, "start")
    running = read(api_user, task["id"])
    assert (running["status"], running["queue_position"]) == ("running", None)
    assert INSTANT.fullmatch(running["started_at"])

    result = {"summary": "Fixed", "files_changed": ["login.py"], "error": None}
    done = agent.report(work, "complete", status="completed", **result)
    assert (done.status_code, done.json()) == (200, {"ok": True})
    ended = read(api_user, task["id"])
    assert (ended["status"], ended["result_summary"]) == ("completed", "Fixed")
    assert ended["files_changed"] == ["login.py"]
    assert INSTANT.fullmatch(ended["completed_at"])
    assert api_user.new_user().request("GET", TASKS).json() == []
    for status in ("pending", "claimed", "running", "failed", "cancelled"):
        assert api_user.request("GET", f"{TASKS}?status={status}").json() == []


def test_every_field_of_a_result_may_be_null(api_user: ApiUser) -> None:
    agent = register_agent(api_user)
    task = create(api_user)
    work = agent.begin()

    nothing = dict.fromkeys(("summary", "files_changed", "error"))
    done = agent.report(work, "complete", status="completed", **nothing)

    assert (done.status_code, done.json()) == (200, {"ok": True}), done.text
    assert read(api_user, task["id"])["status"] == "completed"


def test_a_failed_result_fails_the_task_and_says_why(api_user: ApiUser) -> None:
    agent = register_agent(api_user)
    task = create(api_user, max_attempts=1)

    reported = agent.report(agent.begin(), "complete", status="failed", error="no network")

    assert (reported.status_code, reported.json()) == (200, {"ok": True})
    failed = read(api_user, task["id"])
    assert (failed["status"], failed["failure_reason"]) == ("failed", "error")
    assert failed["error"] == "no network"
    assert len(api_user.request("GET", f"{TASKS}?status=failed").json()) == 1


def test_a_task_that_outlasts_the_plan_fails_as_a_timeout(api_user: ApiUser) -> None:
    agent = register_agent(api_user)
    task = create(api_user)
    work = agent.begin()
    assert work["timeout_seconds"] == 240 * 60

    pass_time(api_user.deployment, timedelta(minutes=241))
    end_overdue(api_user.deployment.dispatcher, grace=timedelta(0), kill=lambda _claim: None)

    failed = read(api_user, task["id"])
    assert (failed["status"], failed["failure_reason"], failed["error"]) == (
        "failed",
        "plan_timeout",
        "Timeout",
    )
    late = agent.report(work, "complete", status="completed")
    assert code(late) == (409, "STALE_ATTEMPT")


@pytest.mark.parametrize("priority", [0, 5, "3", 2.5])
def test_a_priority_is_one_to_four(api_user: ApiUser, priority: object) -> None:
    body = {"title": "x", "description": "x", "project_id": "x", "priority": priority}

    answer = api_user.request("POST", TASKS, json=body)

    assert code(answer) == (422, "INVALID_REQUEST")
    assert answer.json()["errors"][0]["field"] == "priority"


def test_a_task_is_cancelled_once(api_user: ApiUser) -> None:
    task = create(api_user)

    answer = api_user.request("DELETE", f"{TASKS}/{task['id']}")

    assert answer.json()["cancelled"] is True
    assert read(api_user, task["id"])["status"] == "cancelled"
    again = api_user.request("DELETE", f"{TASKS}/{task['id']}")
    assert code(again) == (400, "TASK_ALREADY_COMPLETED")


@pytest.mark.parametrize("tier", list(PlanTier))
def test_queue_and_limits_are_reported_for_every_plan(api_user: ApiUser, tier: PlanTier) -> None:
    plan = PLAN_LIMITS[tier]
    user = api_user.new_user(
        plan_tier=tier.value,
        max_concurrent_agents=plan.max_concurrent_agents,
        max_task_duration_minutes=plan.max_task_duration_minutes,
        monthly_agent_hours_limit=plan.monthly_agent_hours,
    )
    agent = register_agent(user, slots=50)
    create(user)
    create(user)
    agent.begin()

    status = user.request("GET", f"{TASKS}/queue-status").json()
    limits = user.request("GET", LIMITS).json()

    most = plan.max_concurrent_agents
    assert (
        status.items()
        >= {
            "running": 1,
            "pending": 1,
            "max_concurrent": most,
            "can_start_more": most > 1,
            "monthly_hours_used": 0.0,
            "monthly_hours_limit": plan.monthly_agent_hours,
        }.items()
    )
    assert INSTANT.fullmatch(limits.pop("billing_cycle_resets_at"))
    assert (
        limits.items()
        >= {
            "plan": tier.value,
            "max_concurrent_agents": most,
            "max_task_duration_minutes": plan.max_task_duration_minutes,
            "monthly_agent_hours_limit": plan.monthly_agent_hours,
            "monthly_agent_hours_used": 0.0,
        }.items()
    )
    # A user at the concurrency limit may still submit; the gate delays the task.
    assert create(user)["status"] == "pending"
    assert (agent.claim().status_code == 204) == (most == 1)


def test_hours_are_charged_and_used_up(api_user: ApiUser) -> None:
    user = api_user.new_user(monthly_agent_hours_limit=1, max_task_duration_minutes=60)
    agent = register_agent(user)
    create(user)
    work = agent.begin()
    pass_time(api_user.deployment, timedelta(minutes=59))
    agent.report(work, "complete", status="completed")
    assert user.request("GET", LIMITS).json()["monthly_agent_hours_used"] == 0.98
    api_user.deployment.run("UPDATE lanes SET used_seconds = 3600 WHERE user_id = :u", u=user.user)

    refused = user.create()

    assert code(refused) == (403, "MONTHLY_LIMIT_REACHED")


def test_fifty_tasks_may_wait_and_no_more(api_user: ApiUser) -> None:
    for _ in range(50):
        api_user.created()

    assert code(api_user.create()) == (400, "TOO_MANY_PENDING")
    assert api_user.request("GET", f"{TASKS}/queue-status").json()["pending"] == 50


def test_tasks_of_other_users_are_not_accessible(api_user: ApiUser) -> None:
    task_id = create(api_user)["id"]
    other = api_user.new_user()

    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/explain"), ("POST", "/retry")):
        assert code(other.request(method, f"{TASKS}/{task_id}{path}")) == (404, "TASK_NOT_FOUND")
    for method, path in (("GET", ""), ("POST", "/cancel")):
        assert code(other.request(method, f"{QUEUE}/{task_id}{path}")) == (404, "TASK_NOT_FOUND")
    # Only the token of the claim may report a result; a user's key may not.
    reported = api_user.request("POST", f"{TASKS}/{task_id}/complete", json={"status": "completed"})
    assert reported.status_code == 401
    for path in (TASKS, f"{TASKS}/queue-status", LIMITS, QUEUE, "/status"):
        assert api_user.http.get(path).status_code == 401


def test_a_prompt_goes_through_the_queue(api_user: ApiUser) -> None:
    agent = register_agent(api_user)
    request = {
        "prompt": "Perform nightly maintenance...",
        "model": "sonnet",
        "timeout_seconds": 1800,
        "session_id": "session-1",
        "project": {"name": "site"},
        "env": {"CI": "1"},
        "thinking": True,
        "source": "scheduler",
        "source_job": "nightly-maintenance",
    }

    answer = api_user.request("POST", f"{QUEUE}/task", json=request)

    assert answer.status_code == 201
    accepted = answer.json()
    queue_id = accepted["queue_id"]
    assert accepted == {"queue_id": queue_id, "position": 1, "state": "pending"}
    entry = api_user.request("GET", f"{QUEUE}/{queue_id}").json()
    assert set(entry) >= ENTRY_FIELDS
    assert request.items() <= entry.items()
    assert (entry["state"], entry["position"], entry["attempts"]) == ("pending", 1, 0)
    assert (entry["task_id"], entry["agent_url"], entry["dispatched_at"]) == (None, None, None)

    work = agent.work()
    sent = api_user.request("GET", f"{QUEUE}/{queue_id}").json()
    assert (sent["state"], sent["position"]) == ("dispatching", None)
    assert (sent["task_id"], sent["attempts"]) == (queue_id, 1)
    assert INSTANT.fullmatch(sent["dispatched_at"])
    assert sent["agent_url"]
    agent.report(work, "start")
    assert api_user.request("GET", f"{QUEUE}/{queue_id}").json()["state"] == "working"
    agent.report(work, "complete", status="completed")
    ended = api_user.request("GET", f"{QUEUE}/{queue_id}").json()
    assert (ended["state"], ended["task_id"]) == ("completed", queue_id)
    assert api_user.request("GET", QUEUE).json()["tasks"] == []


def test_a_busy_agent_sends_the_task_to_the_end_of_the_queue(api_user: ApiUser) -> None:
    agent = register_agent(api_user)
    first = api_user.request("POST", f"{QUEUE}/task", json={"prompt": "first"}).json()["queue_id"]
    work = agent.work()

    assert agent.report(work, "release", reason="shutdown").status_code == 200

    back = api_user.request("GET", f"{QUEUE}/{first}").json()
    assert (back["state"], back["task_id"], back["agent_url"]) == ("pending", None, None)
    assert api_user.request("GET", f"{TASKS}/{first}").json()["attempts"] == 0


def test_the_queue_is_first_in_first_out_and_outlives_the_process(
    deployment: Deployment, database_url: str
) -> None:
    with serve_api(deployment, database_url) as before:
        ids = [
            before.request("POST", f"{QUEUE}/task", json={"prompt": prompt}).json()["queue_id"]
            for prompt in ("first", "second", "third")
        ]
    with serve_api(deployment, database_url) as after:
        after.headers = before.headers
        shown = after.request("GET", QUEUE).json()

        assert shown["depth"] == 3
        assert [task["queue_id"] for task in shown["tasks"]] == ids
        assert [task["position"] for task in shown["tasks"]] == [1, 2, 3]


def test_a_full_queue_is_refused_with_the_message_of_the_design(
    deployment: Deployment, database_url: str
) -> None:
    with serve_api(deployment, database_url, AG_QUEUE_MAX_SIZE="2") as api_user:
        for route in (f"{QUEUE}/task", "/api/task"):
            api_user.request("POST", route, json={"prompt": "x"})

        refused = api_user.request("POST", "/api/task", json={"prompt": "x"})

        assert code(refused) == (503, "QUEUE_FULL")
        assert refused.json()["title"] == "Queue is full. Please try again later."
        assert refused.json()["detail"] == "queue is at capacity (2 tasks)"
        assert refused.headers["retry-after"]
        status = api_user.request("GET", "/status").json()
        assert status["queue"]["depth"] == status["queue"]["max_size"] == 2
        web = api_user.request("GET", QUEUE).json()["tasks"][1]
        assert web["source"] == "web"


def test_the_queue_settings_are_read_under_their_old_names(
    deployment: Deployment, database_url: str
) -> None:
    old = {
        "AG_QUEUE_MAX_SIZE": "50",
        "AG_QUEUE_MAX_ATTEMPTS": "5",
        "AG_QUEUE_DISPATCH_TIMEOUT": "30s",
        "AG_QUEUE_DIR": "~/.agency/queue",
    }
    with serve_api(deployment, database_url, **old) as api_user:
        queue_id = api_user.request("POST", f"{QUEUE}/task", json={"prompt": "x"}).json()[
            "queue_id"
        ]

        assert api_user.request("GET", "/status").json()["queue"]["max_size"] == 50
        assert read(api_user, queue_id)["max_attempts"] == 5


def test_the_queue_commands_submit_show_and_cancel(
    deployment: Deployment, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(deployment, database_url, AG_QUEUE_MAX_SIZE="1") as served:
        monkeypatch.chdir(tmp_path)
        for name in [name for name in os.environ if name.startswith("OVERNIGHT_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("OVERNIGHT_URL", served.url)
        monkeypatch.setenv("OVERNIGHT_API_KEY", served.key)

        queued = run("queue", "Task prompt here", "--model", "sonnet", "--timeout", "30m")
        queue_id = queued.stdout.strip()
        entry = json.loads(run("queue-status", queue_id, "--json").stdout)
        whole = json.loads(run("queue-status", "--json").stdout)
        full = run("queue", "one too many")
        cancelled = run("queue-cancel", queue_id)

    assert (entry["queue_id"], entry["status"], entry["timeout_seconds"]) == (
        queue_id,
        "pending",
        1800,
    )
    assert entry["source"] == "cli"
    assert whole["pending"] == 1
    assert full.exit_code != 0
    assert full.stderr.splitlines()[0] == "Error: queue is at capacity (1 tasks)"
    assert cancelled.stdout == f"{queue_id} cancelled\n"


def test_limits_of_hours_are_whole_numbers(api_user: ApiUser) -> None:
    limited = api_user.new_user(monthly_agent_hours_limit=10)

    limits = limited.request("GET", LIMITS).text
    queue = limited.request("GET", f"{TASKS}/queue-status").text

    assert '"monthly_agent_hours_limit":10,' in limits
    assert '"monthly_hours_limit":10,' in queue
