"""The life of a task: segments that tile it, each with a true cause."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from typer.testing import CliRunner

from overnight.errors import TaskNotFound
from overnight.models.nights import TaskLife
from overnight_server.cli.main import app
from overnight_server.control.pauses import PauseSubject, pause, resume
from overnight_server.domain.ids import TaskId, UserId, show_task
from overnight_server.domain.results import Raised, Returned
from overnight_server.insight.task_life import task_life
from overnight_server.intake.new_graph import Edge, NewTask
from overnight_server.intake.submit import submit_graph
from tests.support.api_user import TASKS, ApiUser
from tests.support.deployment import LIVENESS, LOOSE, Deployment

pytestmark = pytest.mark.usefixtures("template")

EVENING = datetime(2026, 11, 16, 18, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def evening(deployment: Deployment) -> Deployment:
    """A deployment whose clock stands still at six in the evening."""
    deployment.set_clock(EVENING)
    return deployment


def life_of(deployment: Deployment, user: UserId, task: TaskId) -> TaskLife:
    """Return a task's life after checking that its segments tile it."""
    life = task_life(deployment.app, user, task, liveness=LIVENESS)
    assert_tiled(life)
    return life


def assert_tiled(life: TaskLife) -> None:
    """Check M1: no gap, no overlap, exact to the microsecond."""
    bounds = [life.created_at, *(segment.until for segment in life.segments)]
    assert [segment.since for segment in life.segments] == bounds[:-1]
    assert bounds[-1] == life.until
    assert all(one.since < one.until for one in life.segments)
    whole = (life.until - life.created_at).total_seconds()
    assert sum(total.seconds for total in life.by_cause) == pytest.approx(whole, abs=1e-4)
    assert all(one != other for one, other in pairwise(told(life)))


def told(life: TaskLife) -> list[tuple[str, str, int]]:
    """Return kind, code and minutes of each segment."""
    return [(segment.kind, segment.code, round(segment.seconds / 60)) for segment in life.segments]


def at(deployment: Deployment, minute: float) -> None:
    """Stop the clock at a minute of the evening."""
    deployment.set_clock(EVENING + minute * MINUTE)


def start_all(deployment: Deployment) -> dict[TaskId, object]:
    """Claim and start what the gate lets through."""
    runs = {}
    for claimed in deployment.claim().claims:
        runs[claimed.claim.task_id] = deployment.start(claimed)
    return runs


def test_a_life_is_tiled_from_its_creation_to_its_end(evening: Deployment) -> None:
    user = evening.user()
    evening.agent()
    task = evening.task(user)
    at(evening, 5)
    [claimed] = evening.claim().claims
    at(evening, 5.75)
    run = evening.start(claimed)
    assert run is not None
    at(evening, 26)
    evening.settle(run, Returned())
    at(evening, 60)

    life = life_of(evening, user, task)

    assert told(life) == [
        ("waiting", "behind", 5),
        ("claimed", "state", 1),
        ("running", "state", 20),
    ]
    assert (life.is_over, life.until) == (True, EVENING + 26 * MINUTE)
    assert life.segments[-1].outcome == "completed"
    assert life.segments[-1].holder is not None
    assert life.segments[-1].holder.kind == "worker"


def test_a_dependency_names_the_parent_that_ended_last(evening: Deployment) -> None:
    user = evening.user()
    evening.agent()
    tasks = [NewTask(title=title, type="echo") for title in ("the parent", "the child")]
    submitted = submit_graph(evening.app, user, tasks, LOOSE, edges=[Edge(0, 1)])
    parent, child = (one.task_id for one in submitted)
    runs = start_all(evening)
    at(evening, 30)
    evening.settle(runs[parent], Returned())  # type: ignore[arg-type]
    at(evening, 31)

    life = life_of(evening, user, child)

    assert told(life) == [("waiting", "dependency", 30), ("waiting", "behind", 1)]
    assert life.segments[0].holder is not None
    assert life.segments[0].holder.id == show_task(parent)
    assert life.segments[0].text == "waited for “the parent”"


def test_a_full_plan_a_pause_and_a_closed_window_are_told_apart(evening: Deployment) -> None:
    user = evening.user(max_concurrent_agents=1)
    evening.agent()
    first = evening.task(user)
    runs = start_all(evening)
    second = evening.task(user)
    at(evening, 10)
    pause(evening.dispatcher, PauseSubject(user), actor="test", note="lunch")
    at(evening, 20)
    evening.settle(runs[first], Returned())  # type: ignore[arg-type]
    at(evening, 25)
    resume(evening.dispatcher, PauseSubject(user), actor="test")
    at(evening, 30)

    life = life_of(evening, user, second)

    assert told(life) == [
        ("waiting", "plan_concurrency", 20),
        ("waiting", "paused", 5),
        ("waiting", "behind", 5),
    ]
    assert life.segments[0].also == ["paused"]
    assert "lunch" in life.segments[1].text


def test_a_retry_waits_and_is_told_with_its_run(evening: Deployment) -> None:
    user = evening.user()
    evening.agent()
    run = evening.running(user)
    at(evening, 10)
    evening.settle(run, Raised("error", "no luck", "ValueError", "traceback"))
    at(evening, 10.01)

    life = life_of(evening, user, run.claim.task_id)

    assert told(life)[-2:] == [("running", "state", 10), ("waiting", "retry_at", 0)]
    assert life.segments[-1].is_open
    assert life.segments[-1].clears_at is not None


def test_no_worker_and_no_free_slot_are_told_apart(evening: Deployment) -> None:
    user, other = evening.user(), evening.user()
    task = evening.task(user)
    at(evening, 10)
    evening.agent(slots=1)
    blocker = evening.task(other, priority=0)
    evening.run("UPDATE tasks SET sort_key = -1e10 WHERE id = :id", id=blocker)
    evening.run("UPDATE lanes SET last_served_at = clock() WHERE user_id = :id", id=user)
    runs = start_all(evening)
    assert set(runs) == {blocker}
    at(evening, 30)
    evening.settle(runs[blocker], Returned())  # type: ignore[arg-type]
    at(evening, 31)

    life = life_of(evening, user, task)

    assert told(life) == [
        ("waiting", "no_worker", 10),
        ("waiting", "slots", 20),
        ("waiting", "behind", 1),
    ]


def test_a_lock_names_its_holder(evening: Deployment) -> None:
    user = evening.user()
    evening.agent()
    holder = evening.running(user, title="the holder", locks=("repo:web",))
    waiter = evening.task(user, locks=("repo:web",))
    at(evening, 15)
    evening.settle(holder, Returned())
    at(evening, 16)

    life = life_of(evening, user, waiter)

    assert told(life) == [("waiting", "lock", 15), ("waiting", "behind", 1)]
    assert life.segments[0].text == "the lock repo:web was held by “the holder”"


def test_hours_that_are_too_few_are_told_with_figures(evening: Deployment) -> None:
    user = evening.user(monthly_agent_hours_limit=1, max_task_duration_minutes=60)
    evening.agent()
    run = evening.running(user, timeout_seconds=1800)
    task = evening.task(user, timeout_seconds=3000)
    at(evening, 10)
    evening.settle(run, Returned())
    at(evening, 20)

    life = life_of(evening, user, task)

    assert told(life) == [("waiting", "monthly_hours", 10), ("waiting", "behind", 10)]
    assert life.segments[0].details["needs_seconds"] == 3000


def test_a_closed_window_holds_until_it_opens(evening: Deployment) -> None:
    user = evening.user(window_zone="UTC", window_from="22:00", window_to="06:00")
    evening.agent()
    task = evening.task(user)
    evening.claim()
    at(evening, 240)
    evening.claim()
    at(evening, 260)

    life = life_of(evening, user, task)

    assert codes(life) == ["window"]
    assert told(life) == [("waiting", "window", 240), ("claimed", "state", 20)]


def codes(life: TaskLife) -> Sequence[str]:
    """Return the codes of the waits."""
    return [segment.code for segment in life.segments if segment.kind == "waiting"]


def test_another_users_task_has_no_history(evening: Deployment) -> None:
    task = evening.task(evening.user())

    with pytest.raises(TaskNotFound):
        task_life(evening.app, evening.user(), task, liveness=LIVENESS)


def test_the_history_is_printed_and_only_for_its_owner(
    admin_cli: ApiUser, deployment: Deployment
) -> None:
    task = admin_cli.created(title="the report")
    path = f"{TASKS}/{task['id']}/history"

    answer = admin_cli.request("GET", path)
    refused = admin_cli.new_user().request("GET", path)
    printed = CliRunner().invoke(app, ["explain", task["id"], "--history"])
    document = CliRunner().invoke(app, ["explain", task["id"], "--history", "--json"])

    assert (answer.status_code, refused.status_code) == (200, 404)
    life = TaskLife.model_validate(answer.json())
    assert_tiled(life)
    assert [segment.code for segment in life.segments] == ["no_worker"]
    assert life.segments[0].act == "overnight worker"
    assert "no worker was alive" in printed.stdout
    assert json.loads(document.stdout)["segments"][0]["code"] == "no_worker"
