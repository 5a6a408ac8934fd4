"""Forecasts and plans from a real database."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from overnight.errors import InvalidRequest, TaskNotFound, TooManyPending
from overnight.models.tasks import Forecast
from overnight_server.control.drain import drain, undrain
from overnight_server.control.pauses import EVERYTHING, PauseSubject, pause, resume
from overnight_server.domain.ids import UserId, parse_task
from overnight_server.domain.results import Raised, Returned, StoppedByBudget
from overnight_server.forecast import snapshot
from overnight_server.forecast.forecast import forecast_next, forecast_task
from overnight_server.forecast.plan import _draft, plan
from overnight_server.forecast.snapshot import read_forecast_input
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import Edge, NewTask
from overnight_server.intake.submit import submit, submit_graph
from overnight_worker.duration_stats import DurationStats
from tests.support.api_user import ApiUser, serve_api
from tests.support.deployment import AGENT, CLAIM_SETTINGS, LOOSE, POOL, Deployment

MINUTE = timedelta(minutes=1)
SLACK = timedelta(seconds=30)


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url, OVERNIGHT_WORKER_LIVENESS="300") as opened:
        yield opened


def add_durations(
    deployment: Deployment, type_: str = "echo", minutes: float = 10, runs: int = 100
) -> None:
    deployment.run(
        "INSERT INTO type_durations (type, seconds, recent)"
        " VALUES (:type, :s, array_fill(CAST(:s AS float8), ARRAY[CAST(:runs AS int)]))",
        type=type_,
        s=minutes * 60,
        runs=runs,
    )


def is_about(at: datetime | None, made_at: datetime, minutes: float) -> bool:
    """Whether an instant is about that many minutes after the forecast was made."""
    assert at is not None
    return abs((at - made_at) - minutes * MINUTE) <= 0.25 * minutes * MINUTE + SLACK


def forecast_queue(deployment: Deployment, user: UserId, tasks: int) -> list[Forecast]:
    deployment.agent(slots=1)
    made = [deployment.task(user, timeout_seconds=3600) for _ in range(tasks)]
    return [forecast_task(deployment.app, user, task, CLAIM_SETTINGS) for task in made]


def test_each_task_starts_after_the_tasks_ahead_of_it(deployment: Deployment) -> None:
    add_durations(deployment, minutes=10)

    first, second, third = forecast_queue(deployment, deployment.user(), 3)

    assert first.start.p10_at == first.start.p90_at == first.made_at
    assert is_about(first.finish.p50_at, first.made_at, 10)
    assert is_about(second.start.p50_at, second.made_at, 10)
    assert is_about(third.finish.p50_at, third.made_at, 30)
    assert [item.queue_position for item in (first, second, third)] == [1, 2, 3]
    assert third.observed_runs == 100
    assert third.notes == []


def test_without_observed_runs_the_timeout_is_the_duration(deployment: Deployment) -> None:
    _, second = forecast_queue(deployment, deployment.user(), 2)

    assert second.start.p10_at == second.start.p90_at == second.made_at + timedelta(hours=1)
    assert second.observed_runs == 0
    [note] = second.notes
    assert note.startswith("no run of type echo was observed yet")


def test_without_workers_no_start_is_forecast(deployment: Deployment) -> None:
    user = deployment.user()
    task = deployment.task(user)
    add_durations(deployment)

    forecast = forecast_task(deployment.app, user, task, CLAIM_SETTINGS)

    assert forecast.start.p10_at is forecast.finish.p50_at is None
    assert forecast.notes == ["no worker is alive: nothing starts before one joins"]

    deployment.agent()
    drain(deployment.dispatcher, AGENT)
    [note] = forecast_task(deployment.app, user, task, CLAIM_SETTINGS).notes
    assert note.startswith("the only worker drains: ")
    undrain(deployment.dispatcher, AGENT)
    pause(deployment.dispatcher, PauseSubject(pool=POOL), actor="human:me")
    [note] = forecast_task(deployment.app, user, task, CLAIM_SETTINGS).notes
    assert note == "the pool default is paused: nothing starts before a pool is resumed"


def test_the_end_of_a_running_task_is_forecast(deployment: Deployment) -> None:
    deployment.agent()
    add_durations(deployment, minutes=10)
    user = deployment.user()
    run = deployment.running(user, timeout_seconds=3600)
    deployment.move_clock(4 * MINUTE)

    forecast = forecast_task(deployment.app, user, run.claim.task_id, CLAIM_SETTINGS)

    assert forecast.queue_position is None
    assert is_about(forecast.finish.p50_at, forecast.made_at, 6)
    assert forecast.start.p50_at is not None
    assert forecast.start.p50_at < forecast.made_at


def test_the_forecast_of_an_ended_task_is_its_actual_times(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user()
    run = deployment.running(user)
    deployment.settle(run, Returned())

    forecast = forecast_task(deployment.app, user, run.claim.task_id, CLAIM_SETTINGS)

    assert forecast.finish.p10_at == forecast.finish.p90_at
    assert forecast.notes == ["it has ended"]


def test_a_child_waits_for_the_runs_of_all_ancestors(deployment: Deployment) -> None:
    deployment.agent()
    add_durations(deployment, minutes=10)
    user = deployment.user()
    chain = [NewTask(title="step", type="echo") for _ in range(3)]
    edges = [Edge(0, 1), Edge(1, 2)]
    *_, last = submit_graph(deployment.app, user, chain, LOOSE, edges=edges)

    waits = forecast_task(deployment.app, user, last.task_id, CLAIM_SETTINGS)

    assert is_about(waits.start.p50_at, waits.made_at, 20)
    assert waits.queue_position is None


def test_a_task_that_waits_for_approval_has_no_start(deployment: Deployment) -> None:
    add_durations(deployment)
    deployment.agent()
    user = deployment.user()
    parent, child = submit_graph(
        deployment.app,
        user,
        [NewTask("dear", "echo", max_cost_usd=1), NewTask("after it", "echo")],
        LOOSE,
        edges=[Edge(0, 1)],
    )
    [claimed] = deployment.claim().claims
    run = deployment.start(claimed)
    assert run is not None
    deployment.settle(run, StoppedByBudget(cost_usd=1.5))

    asks = forecast_task(deployment.app, user, parent.task_id, CLAIM_SETTINGS)
    waits = forecast_task(deployment.app, user, child.task_id, CLAIM_SETTINGS)

    assert (asks.start.p10_at, waits.start.p10_at) == (None, None)
    assert "approve more money" in asks.notes[-1]


def test_a_retry_starts_no_earlier_than_it_is_due(deployment: Deployment) -> None:
    deployment.agent()
    add_durations(deployment, minutes=10)
    user = deployment.user()
    run = deployment.running(user)
    deployment.settle(run, Raised("error", "no luck"))
    deployment.run("UPDATE tasks SET retry_at = clock() + interval '5 minutes'")

    forecast = forecast_task(deployment.app, user, run.claim.task_id, CLAIM_SETTINGS)

    assert forecast.state == "retrying"
    assert is_about(forecast.start.p10_at, forecast.made_at, 5)


def test_a_long_queue_of_another_user_is_counted_but_not_read(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "MAX_OTHER_TASKS", 4)
    monkeypatch.setattr(snapshot, "MIN_TASKS_PER_LANE", 2)
    add_durations(deployment, minutes=10)
    busy = deployment.user()
    for _ in range(20):
        deployment.task(busy)
    user = deployment.user()

    *_, last = forecast_queue(deployment, user, 4)

    # A task of the busy user runs between every two of the other user.
    assert is_about(last.start.p50_at, last.made_at, 70)


def test_the_next_tasks_are_forecast_in_their_order(deployment: Deployment) -> None:
    add_durations(deployment, minutes=10)
    user = deployment.user(max_concurrent_agents=1)
    forecast_queue(deployment, user, 3)
    deployment.claim()

    forecasts = forecast_next(deployment.app, user, CLAIM_SETTINGS, limit=2)

    assert [forecast.state for forecast in forecasts] == ["running", "ready"]
    assert forecasts[1].queue_position == 1


def test_a_paused_task_has_no_forecast_until_it_is_resumed(deployment: Deployment) -> None:
    add_durations(deployment)
    user = deployment.user()
    deployment.agent()
    task = deployment.task(user)
    pause(deployment.dispatcher, EVERYTHING, actor="human:test")

    held = forecast_task(deployment.app, user, task, CLAIM_SETTINGS)
    resume(deployment.dispatcher, EVERYTHING, actor="human:test")

    assert held.start.p90_at is None
    assert held.notes == ["everything is paused: nothing starts before it is resumed"]
    assert forecast_task(deployment.app, user, task, CLAIM_SETTINGS).start.p90_at is not None


def test_a_task_beyond_the_nights_budget_waits_for_the_next_night(deployment: Deployment) -> None:
    deployment.move_clock_to_hour(12)
    deployment.agent()
    add_durations(deployment, minutes=10)
    user = deployment.user(night_budget_usd=3)
    first, second = (deployment.task(user, max_cost_usd=2.0) for _ in range(2))
    third = deployment.task(user, max_cost_usd=4.0)

    views = {
        task: forecast_task(deployment.app, user, task, CLAIM_SETTINGS)
        for task in (first, second, third)
    }

    midnight = deployment.one("SELECT ends_at FROM current_night(:id)", id=user)["ends_at"]
    assert views[first].start.p50_at == views[first].made_at
    assert views[second].start.p10_at == views[second].start.p90_at == midnight
    assert views[third].start.p50_at is None
    [note] = views[third].notes
    assert note.startswith("one task needs more than the $3.00 of a whole night")


def test_runs_of_a_draining_worker_occupy_no_other_slots(deployment: Deployment) -> None:
    add_durations(deployment)
    user = deployment.user()
    deployment.agent(slots=1, agent_id="old")
    deployment.task(user)
    [claimed] = deployment.claim().claims
    deployment.start(claimed, agent="old")
    drain(deployment.dispatcher, "old")
    deployment.agent(slots=1, agent_id="new")

    forecast = forecast_task(deployment.app, user, deployment.task(user), CLAIM_SETTINGS)

    assert forecast.start.p90_at == forecast.made_at
    assert len(deployment.claim().claims) == 1


def test_a_plan_counts_tasks_done_in_time_and_stores_nothing(
    deployment: Deployment,
) -> None:
    deployment.agent(slots=1)
    add_durations(deployment, minutes=10)
    user = deployment.user()
    deployment.task(user)
    batch = [NewTask(title=f"task {n}", type="echo") for n in range(5)]
    now = deployment.one("SELECT clock() AS at")["at"]

    planned = plan(deployment.app, user, batch, LOOSE, CLAIM_SETTINGS, by_at=now + 45 * MINUTE)

    assert (planned.tasks, planned.likely) == (5, 3)
    assert planned.sure in {2, 3}
    assert is_about(planned.finish.p50_at, planned.made_at, 60)
    assert [step.title for step in planned.steps] == [task.title for task in batch]
    assert deployment.one("SELECT count(*) AS n FROM tasks")["n"] == 1


def test_a_plan_follows_edges_and_refuses_what_a_submit_refuses(deployment: Deployment) -> None:
    deployment.agent()
    add_durations(deployment, minutes=10)
    user = deployment.user()
    batch = [NewTask(title="a", type="echo"), NewTask(title="b", type="echo")]

    planned = plan(deployment.app, user, batch, LOOSE, CLAIM_SETTINGS, edges=[Edge(0, 1)])

    assert is_about(planned.steps[1].start.p50_at, planned.made_at, 10)
    with pytest.raises(TooManyPending):
        plan(deployment.app, user, batch, Caps(max_pending_per_user=1), CLAIM_SETTINGS)
    with pytest.raises(InvalidRequest, match="circular"):
        plan(deployment.app, user, batch, LOOSE, CLAIM_SETTINGS, edges=[Edge(0, 1), Edge(1, 0)])
    with pytest.raises(InvalidRequest, match="0 tasks"):
        plan(deployment.app, user, [], LOOSE, CLAIM_SETTINGS)


@pytest.mark.parametrize("priority", [5, 50])
def test_a_planned_task_has_the_position_of_a_submitted_one(
    deployment: Deployment, priority: int
) -> None:
    """The planned task is between an older and a younger task of the same priority."""
    user = deployment.user()
    task = NewTask(title="a", type="echo", priority=priority)
    older = submit(deployment.app, user, task, LOOSE).task_id
    deployment.move_clock(10 * MINUTE)
    data = deployment.app.atomically(lambda tx: read_forecast_input(tx, user, CLAIM_SETTINGS))

    draft = _draft(task, user, LOOSE, data)
    deployment.move_clock(MINUTE)
    younger = submit(deployment.app, user, task, LOOSE).task_id

    keys = [deployment.row(older)["sort_key"], draft.sort_key, deployment.row(younger)["sort_key"]]
    assert keys == sorted(keys)
    assert keys[2] - keys[0] < 2


def test_a_plan_follows_path_locks(deployment: Deployment) -> None:
    deployment.agent()
    add_durations(deployment, minutes=10)
    user = deployment.user()
    deployment.running(user, locks=["path:src"])
    paths = ["path:src/a/", "path:./src/b", "path:docs", "path:src/a"]
    batch = [NewTask(title=path, type="echo", locks=[path]) for path in paths]

    planned = plan(deployment.app, user, batch, LOOSE, CLAIM_SETTINGS)

    begin = [step.start.p50_at for step in planned.steps]
    assert is_about(begin[0], planned.made_at, 10)
    assert begin[1] == begin[0]
    assert begin[2] == planned.made_at
    assert is_about(begin[3], planned.made_at, 20)


def test_the_last_hundred_durations_of_a_type_are_kept(
    deployment: Deployment,
) -> None:
    for seconds in (30.0, 60.0):
        stats = DurationStats()
        for _ in range(15):
            stats.add("echo", seconds)
        stats.report(deployment.dispatcher)
    for _ in range(9):
        stats = DurationStats()
        for _ in range(100):
            stats.add("quick", 0.01)
        stats.report(deployment.dispatcher)

    kept = {
        row["type"]: row["recent"]
        for row in deployment.rows("SELECT type, recent FROM type_durations")
    }

    assert kept["echo"] == [30.0] * 15 + [60.0] * 15
    assert kept["quick"] == [0.01] * 100


def test_only_the_owner_gets_a_forecast(api_user: ApiUser) -> None:
    api_user.deployment.agent()
    shown = api_user.created(type="echo")["id"]
    client = api_user.client()

    forecast = client.tasks.forecast(shown)

    assert forecast.id == shown
    assert forecast.queue_position == 1
    assert [forecast.id for forecast in client.forecasts()] == [shown]
    assert api_user.new_user().request("GET", f"/api/v1/tasks/{shown}/forecast").status_code == 404
    with pytest.raises(TaskNotFound):
        forecast_task(
            api_user.deployment.app, api_user.deployment.user(), parse_task(shown), CLAIM_SETTINGS
        )


def test_the_api_plans_a_batch(api_user: ApiUser) -> None:
    api_user.deployment.agent()
    add_durations(api_user.deployment, minutes=10)

    planned = api_user.client().plan(
        [{"title": "a", "type": "echo"}, {"title": "b", "type": "echo"}],
        edges=[(0, 1)],
        by_at=datetime.now(UTC) + 40 * MINUTE,
    )

    assert (planned.tasks, planned.sure, planned.likely) == (2, 2, 2)
    assert api_user.request("GET", "/api/v1/tasks").json() == []


def test_a_wrong_plan_is_refused_with_field_and_legal_values(api_user: ApiUser) -> None:
    body = {"tasks": [{"title": "a", "priority": 9}], "by_at": "soon"}

    answer = api_user.request("POST", "/api/v1/plan", json=body)

    assert answer.status_code == 422
    wrong = {item["field"]: item["legal"] for item in answer.json()["errors"]}
    assert wrong["tasks.0.priority"] == "a whole number from 1 to 4"
    assert "2030-01-31T07:00:00Z" in wrong["by_at"]
