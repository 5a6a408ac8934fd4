"""The commands for locks, plans and the whole queue, through the admin API."""

import json

import pytest

from overnight_server.cli.terminal.failures import Code
from overnight_server.domain.claims import Run
from overnight_server.domain.ids import show_task
from overnight_server.domain.results import Returned
from tests.support.command import run
from tests.support.deployment import Deployment

pytestmark = pytest.mark.usefixtures("admin_cli")


@pytest.fixture
def admin_api_settings() -> dict[str, str]:
    """Count a worker as alive long after its only heartbeat."""
    return {"OVERNIGHT_WORKER_LIVENESS": "300"}


@pytest.fixture
def held(deployment: Deployment) -> Run:
    """A run of alice's that holds a project's lock, with another task behind it."""
    deployment.agent(slots=4)
    user = deployment.user(name="alice")
    run = deployment.running(user, project_id="site")
    deployment.task(user, project_id="site", priority=20)
    return run


def read(*arguments: str) -> object:
    answer = run(*arguments, "--json")
    assert answer.exit_code == 0, answer.stderr
    return json.loads(answer.stdout)


def test_without_locks_the_lists_are_empty(deployment: Deployment) -> None:
    deployment.user(name="alice")

    assert read("locks", "list") == []
    assert read("locks", "list", "--waits") == []
    assert read("locks", "check", "alice") == {
        "user": "alice",
        "locked": False,
        "locks": [],
        "waits": [],
    }
    assert run("locks", "list").stderr == "No locks are held.\n"


def test_a_held_lock_is_listed_for_people_and_for_programs(held: Run) -> None:
    shown = show_task(held.claim.task_id)
    documents = [
        read("locks", "list"),
        read("locks", "check", "alice")["locks"],  # type: ignore[index]
        read("locks", "check-project", "site")["locks"],  # type: ignore[index]
    ]

    for [lock] in documents:  # type: ignore[misc]
        assert (lock["user"], lock["key"], lock["task_id"]) == ("alice", "project:site", shown)
        assert lock["lock_id"].startswith(f"{shown}_")
        assert lock["waiting"] == 1
    for command in (["list"], ["check", "alice"], ["check-project", "site"]):
        table = run("locks", *command).stdout
        assert "project:site" in table
        assert shown in table


def test_a_lock_is_released_by_the_end_of_its_tasks_id(held: Run, deployment: Deployment) -> None:
    shown = show_task(held.claim.task_id)

    released = read("locks", "release", "alice", shown[-6:])

    assert released == {"user": "alice", "task_id": shown, "released": ["project:site"]}
    assert deployment.state(held.claim.task_id) == "ready"
    actors = deployment.rows("SELECT actor FROM events WHERE from_state = 'running'")
    assert [row["actor"].split(":")[0] for row in actors] == ["user"]
    again = run("locks", "release", "alice", shown)
    assert again.exit_code == Code.FAILED
    assert "holds no lock" in again.stderr


@pytest.mark.parametrize(
    ("user", "task"),
    [("nobody", "task_" + "0" * 26), ("alice", "task_" + "0" * 26), ("alice", "zz")],
)
def test_a_lock_that_the_user_does_not_hold_is_not_released(
    held: Run, user: str, task: str
) -> None:
    assert run("locks", "release", user, task).exit_code == Code.FAILED
    assert held.claim.epoch == 1


def test_stale_locks_are_released_by_command(held: Run, deployment: Deployment) -> None:
    deployment.run(
        "UPDATE tasks SET expires_at = clock() + interval '10 s' WHERE state = 'running'"
    )

    none = read("locks", "cleanup-stale", "3600")
    some = read("locks", "cleanup-stale", "15")

    assert none == {"cleaned": 0, "max_age_seconds": 3600}
    assert some == {"cleaned": 1, "max_age_seconds": 15}
    assert deployment.state(held.claim.task_id) == "ready"
    assert "Released 0 stale locks" in run("locks", "cleanup-stale", "15").stdout
    assert run("locks", "cleanup-stale", "9" * 20).exit_code == Code.USAGE


def test_past_waits_for_a_lock_are_listed(held: Run, deployment: Deployment) -> None:
    deployment.settle(held, Returned())

    [wait] = read("locks", "list", "--waits")  # type: ignore[misc]

    assert (wait["key"], wait["holder_task_id"]) == (
        "project:site",
        show_task(held.claim.task_id),
    )
    assert "project:site" in run("locks", "list", "--waits").stdout
    assert "project:site" in run("locks", "check", "alice").stdout


def test_the_queue_overview_has_the_fields_of_the_design(held: Run) -> None:
    status = read("queue-status", "--all-users")

    assert isinstance(status, dict)
    assert status["pending"] == {"high": 1, "normal": 0, "total": 1}
    assert status["active"] == {
        "slots_used": 1,
        "slots_max": 4,
        "by_project": {"site": 1},
        "by_user": {"alice": 1},
    }
    assert status["user_locks"]["active"] == 1
    assert status["user_locks"]["details"][0]["task_id"] == show_task(held.claim.task_id)
    assert "1 of 4" in run("queue-status", "--all-users").stdout
    assert run("queue-status", "--all-users", "task_1").exit_code == Code.USAGE


def test_a_plan_and_its_exceptions_are_changed_by_command(deployment: Deployment) -> None:
    user = deployment.user(name="alice")

    plan = read("users", "plan", "alice", "pro")
    excepted = read(
        *("user", "limits", "alice", "--concurrency", "5", "--hours", "250"),
        *("--minutes", "90", "--max-pending", "500"),
    )
    lifted = read("user", "limits", "alice", "--hours", "unlimited", "--max-pending", "default")
    restored = read("user", "limits", "alice", "--template")

    def limits(answer: object) -> tuple[object, ...]:
        assert isinstance(answer, dict)
        return tuple(
            answer[name]
            for name in (
                "plan",
                "max_concurrent_agents",
                "max_task_duration_minutes",
                "monthly_agent_hours_limit",
                "max_pending",
            )
        )

    assert limits(plan) == ("pro", 3, 120, 100, None)
    assert limits(excepted) == ("pro", 5, 90, 250, 500)
    assert limits(lifted) == ("pro", 5, 90, None, None)
    assert limits(restored) == ("pro", 3, 120, 100, None)
    assert deployment.lane(user)["max_active"] == 3
    assert "3 tasks" in run("user", "limits", "alice").stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "alice", "gold"),
        ("limits", "alice", "--hours", "many"),
        ("limits", "alice", "--hours", "9999999"),
        ("limits", "alice", "--hours", "9" * 5000),
        ("limits", "alice", "--template", "--hours", "5"),
        ("limits", "alice", "--minutes", "0"),
    ],
)
def test_an_invalid_limit_is_a_usage_error(
    deployment: Deployment, arguments: tuple[str, ...]
) -> None:
    deployment.user(name="alice")

    assert run("user", *arguments).exit_code == Code.USAGE
    assert run("user", "plan", "nobody", "pro").exit_code == Code.FAILED
