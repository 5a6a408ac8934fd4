"""Forecasts of a real house: what was read of it, what is promised, what is admitted."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from overnight_server.control.drain import drain, undrain
from overnight_server.control.pauses import EVERYTHING, Target, pause, resume
from overnight_server.domain.errors import InvalidRequest, TaskNotFound, TooManyPending
from overnight_server.domain.ids import UserId, parse_task
from overnight_server.domain.results import Raised, Returned, Suspended
from overnight_server.forecast import snapshot
from overnight_server.forecast.forecast import ForecastView, forecast_next, forecast_task
from overnight_server.forecast.plan import _draft, plan
from overnight_server.forecast.snapshot import Workers, look
from overnight_server.intake.submit import Caps, Edge, NewTask, submit, submit_graph
from overnight_worker.duration_stats import Pace
from tests.support.door import Door, open_door
from tests.support.house import AGENT, LIVENESS, LOOSE, POOL, House

WORKERS = Workers(LIVENESS)
MINUTE = timedelta(minutes=1)
SLACK = timedelta(seconds=30)


@pytest.fixture
def door(house: House, database_url: str) -> Iterator[Door]:
    with open_door(house, database_url, OVERNIGHT_WORKER_LIVENESS="300") as opened:
        yield opened


def seen(house: House, type_: str = "echo", minutes: float = 10, runs: int = 100) -> None:
    house.run(
        "INSERT INTO paces (type, seconds, recent)"
        " VALUES (:type, :s, array_fill(CAST(:s AS float8), ARRAY[CAST(:runs AS int)]))",
        type=type_,
        s=minutes * 60,
        runs=runs,
    )


def is_about(at: datetime | None, made_at: datetime, minutes: float) -> bool:
    """Whether an instant lies that far ahead, give or take how much a night may drift."""
    assert at is not None
    return abs((at - made_at) - minutes * MINUTE) <= 0.25 * minutes * MINUTE + SLACK


def in_a_queue(house: House, user: UserId, tasks: int) -> list[ForecastView]:
    house.agent(slots=1)
    made = [house.task(user, timeout_seconds=3600) for _ in range(tasks)]
    return [forecast_task(house.app, user, task, WORKERS) for task in made]


def test_each_task_starts_when_those_ahead_of_it_are_done(house: House) -> None:
    seen(house, minutes=10)

    first, second, third = in_a_queue(house, house.user(), 3)

    assert first.start.p10_at == first.start.p90_at == first.made_at
    assert is_about(first.finish.p50_at, first.made_at, 10)
    assert is_about(second.start.p50_at, second.made_at, 10)
    assert is_about(third.finish.p50_at, third.made_at, 30)
    assert [one.queue_position for one in (first, second, third)] == [1, 2, 3]
    assert third.observed_runs == 100
    assert third.notes == []


def test_without_history_the_timeout_stands_in_and_is_said_to(house: House) -> None:
    _, second = in_a_queue(house, house.user(), 2)

    assert second.start.p10_at == second.start.p90_at == second.made_at + timedelta(hours=1)
    assert second.observed_runs == 0
    [note] = second.notes
    assert note.startswith("no run of type echo was seen yet")


def test_without_workers_nothing_is_promised(house: House) -> None:
    user = house.user()
    task = house.task(user)
    seen(house)

    found = forecast_task(house.app, user, task, WORKERS)

    assert found.start.p10_at is found.finish.p50_at is None
    assert found.notes == ["no worker is alive: nothing starts before one joins"]

    house.agent()
    drain(house.dispatcher, AGENT)
    [note] = forecast_task(house.app, user, task, WORKERS).notes
    assert note.startswith("the only worker drains: ")
    undrain(house.dispatcher, AGENT)
    pause(house.dispatcher, Target(pool=POOL), actor="human:me")
    [note] = forecast_task(house.app, user, task, WORKERS).notes
    assert note == "the pool default is paused: nothing starts before that ends"


def test_a_run_under_way_is_foretold_to_its_end(house: House) -> None:
    house.agent()
    seen(house, minutes=10)
    user = house.user()
    run = house.running(user, timeout_seconds=3600)
    house.move_clock(4 * MINUTE)

    found = forecast_task(house.app, user, run.claim.task_id, WORKERS)

    assert found.queue_position is None
    assert is_about(found.finish.p50_at, found.made_at, 6)
    assert found.start.p50_at is not None
    assert found.start.p50_at < found.made_at


def test_what_has_ended_is_told_as_it_was(house: House) -> None:
    house.agent()
    user = house.user()
    run = house.running(user)
    house.settle(run, Returned())

    found = forecast_task(house.app, user, run.claim.task_id, WORKERS)

    assert found.finish.p10_at == found.finish.p90_at
    assert found.notes == ["it has ended"]


def test_a_child_waits_for_the_runs_of_all_before_it(house: House) -> None:
    house.agent()
    seen(house, minutes=10)
    user = house.user()
    chain = [NewTask(title="step", type="echo") for _ in range(3)]
    edges = [Edge(0, 1), Edge(1, 2)]
    *_, last = submit_graph(house.app, user, chain, LOOSE, edges=edges)

    waits = forecast_task(house.app, user, last.task_id, WORKERS)

    assert is_about(waits.start.p50_at, waits.made_at, 20)
    assert waits.queue_position is None


def test_what_asks_for_money_is_promised_to_nobody(house: House) -> None:
    seen(house)
    house.agent()
    user = house.user()
    parent, child = submit_graph(
        house.app,
        user,
        [NewTask("dear", "echo", max_cost_usd=1), NewTask("after it", "echo")],
        LOOSE,
        edges=[Edge(0, 1)],
    )
    [claimed] = house.claim().claims
    run = house.start(claimed)
    assert run is not None
    house.settle(run, Suspended(cost_usd=1.5))

    asks = forecast_task(house.app, user, parent.task_id, WORKERS)
    waits = forecast_task(house.app, user, child.task_id, WORKERS)

    assert (asks.start.p10_at, waits.start.p10_at) == (None, None)
    assert "asks for more" in asks.notes[-1]


def test_a_retry_waits_for_its_moment(house: House) -> None:
    house.agent()
    seen(house, minutes=10)
    user = house.user()
    run = house.running(user)
    house.settle(run, Raised("error", "no luck"))
    house.run("UPDATE tasks SET retry_at = clock() + interval '5 minutes'")

    found = forecast_task(house.app, user, run.claim.task_id, WORKERS)

    assert found.state == "retrying"
    assert is_about(found.start.p10_at, found.made_at, 5)


def test_a_long_queue_of_another_user_is_weighed_without_being_read(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "OTHERS", 4)
    monkeypatch.setattr(snapshot, "LEAST_PER_LANE", 2)
    seen(house, minutes=10)
    busy = house.user()
    for _ in range(20):
        house.task(busy)
    user = house.user()

    *_, last = in_a_queue(house, user, 4)

    # One of theirs runs between every two of ours.
    assert is_about(last.start.p50_at, last.made_at, 70)


def test_the_next_tasks_are_foretold_together_in_their_order(house: House) -> None:
    seen(house, minutes=10)
    user = house.user(max_concurrent_agents=1)
    in_a_queue(house, user, 3)
    house.claim()

    found = forecast_next(house.app, user, WORKERS, limit=2)

    assert [one.state for one in found] == ["running", "ready"]
    assert found[1].queue_position == 1


def test_what_is_paused_is_not_expected_until_it_is_resumed(house: House) -> None:
    seen(house)
    user = house.user()
    house.agent()
    task = house.task(user)
    pause(house.dispatcher, EVERYTHING, actor="human:test")

    held = forecast_task(house.app, user, task, WORKERS)
    resume(house.dispatcher, EVERYTHING, actor="human:test")

    assert held.start.p90_at is None
    assert held.notes == ["everything is paused: nothing starts before that ends"]
    assert forecast_task(house.app, user, task, WORKERS).start.p90_at is not None


def test_what_the_night_cannot_pay_waits_for_the_next(house: House) -> None:
    house.agent()
    seen(house, minutes=10)
    user = house.user(night_budget_usd=3)
    first, second = (house.task(user, max_cost_usd=2.0) for _ in range(2))
    third = house.task(user, max_cost_usd=4.0)

    views = {task: forecast_task(house.app, user, task, WORKERS) for task in (first, second, third)}

    midnight = house.one("SELECT ends_at FROM night_now(:id)", id=user)["ends_at"]
    assert views[first].start.p50_at == views[first].made_at
    assert views[second].start.p10_at == views[second].start.p90_at == midnight
    assert views[third].start.p50_at is None
    [note] = views[third].notes
    assert note.startswith("one needs more than the $3.00 of a whole night")


def test_what_a_draining_worker_runs_is_in_nobodys_way(house: House) -> None:
    seen(house)
    user = house.user()
    house.agent(slots=1, agent_id="old")
    house.task(user)
    [claimed] = house.claim().claims
    house.start(claimed, agent="old")
    drain(house.dispatcher, "old")
    house.agent(slots=1, agent_id="new")

    found = forecast_task(house.app, user, house.task(user), WORKERS)

    assert found.start.p90_at == found.made_at
    assert len(house.claim().claims) == 1


def test_a_plan_says_how_many_will_be_done_in_time_and_keeps_nothing(house: House) -> None:
    house.agent(slots=1)
    seen(house, minutes=10)
    user = house.user()
    house.task(user)
    batch = [NewTask(title=f"task {n}", type="echo") for n in range(5)]
    now = house.one("SELECT clock() AS at")["at"]

    found = plan(house.app, user, batch, LOOSE, WORKERS, by_at=now + 45 * MINUTE)

    assert (found.tasks, found.likely) == (5, 3)
    assert found.sure in {2, 3}
    assert is_about(found.finish.p50_at, found.made_at, 60)
    assert [step.title for step in found.steps] == [task.title for task in batch]
    assert house.one("SELECT count(*) AS n FROM tasks")["n"] == 1


def test_a_plan_heeds_edges_and_refuses_what_a_submit_would(house: House) -> None:
    house.agent()
    seen(house, minutes=10)
    user = house.user()
    batch = [NewTask(title="a", type="echo"), NewTask(title="b", type="echo")]

    found = plan(house.app, user, batch, LOOSE, WORKERS, edges=[Edge(0, 1)])

    assert is_about(found.steps[1].start.p50_at, found.made_at, 10)
    with pytest.raises(TooManyPending):
        plan(house.app, user, batch, Caps(max_pending_per_user=1), WORKERS)
    with pytest.raises(InvalidRequest, match="circular"):
        plan(house.app, user, batch, LOOSE, WORKERS, edges=[Edge(0, 1), Edge(1, 0)])
    with pytest.raises(InvalidRequest, match="0 tasks"):
        plan(house.app, user, [], LOOSE, WORKERS)


@pytest.mark.parametrize("priority", [5, 50])
def test_a_planned_task_stands_where_a_submitted_one_would(house: House, priority: int) -> None:
    """Between two of the same urgency, one older and one that comes while we look."""
    user = house.user()
    task = NewTask(title="a", type="echo", priority=priority)
    older = submit(house.app, user, task, LOOSE).task_id
    house.move_clock(10 * MINUTE)
    sight = house.app.atomically(lambda tx: look(tx, user, WORKERS))

    draft = _draft(task, user, LOOSE, sight)
    house.move_clock(MINUTE)
    younger = submit(house.app, user, task, LOOSE).task_id

    keys = [house.row(older)["sort_key"], draft.sort_key, house.row(younger)["sort_key"]]
    assert keys == sorted(keys)
    assert keys[2] - keys[0] < 2


def test_a_plan_knows_which_paths_lie_in_each_others_way(house: House) -> None:
    house.agent()
    seen(house, minutes=10)
    user = house.user()
    house.running(user, locks=["path:src"])
    paths = ["path:src/a/", "path:./src/b", "path:docs", "path:src/a"]
    batch = [NewTask(title=path, type="echo", locks=[path]) for path in paths]

    found = plan(house.app, user, batch, LOOSE, WORKERS)

    begin = [step.start.p50_at for step in found.steps]
    assert is_about(begin[0], found.made_at, 10)
    assert begin[1] == begin[0]
    assert begin[2] == found.made_at
    assert is_about(begin[3], found.made_at, 20)


def test_workers_report_what_runs_took_and_the_last_hundred_are_kept(house: House) -> None:
    for seconds in (30.0, 60.0):
        pace = Pace()
        for _ in range(15):
            pace.note("echo", seconds)
        pace.report(house.dispatcher)
    for _ in range(9):
        pace = Pace()
        for _ in range(100):
            pace.note("quick", 0.01)
        pace.report(house.dispatcher)

    kept = {row["type"]: row["recent"] for row in house.rows("SELECT type, recent FROM paces")}

    assert kept["echo"] == [30.0] * 15 + [60.0] * 15
    assert kept["quick"] == [0.01] * 100


def test_the_api_foretells_to_the_owner_only(door: Door) -> None:
    door.house.agent()
    shown = door.created(type="echo")["id"]
    client = door.client()

    found = client.tasks.forecast(shown)

    assert found.id == shown
    assert found.queue_position == 1
    assert [one.id for one in client.forecasts()] == [shown]
    assert door.guest().ask("GET", f"/api/v1/tasks/{shown}/forecast").status_code == 404
    with pytest.raises(TaskNotFound):
        forecast_task(door.house.app, door.house.user(), parse_task(shown), WORKERS)


def test_the_api_plans_a_batch(door: Door) -> None:
    door.house.agent()
    seen(door.house, minutes=10)

    found = door.client().plan(
        [{"title": "a", "type": "echo"}, {"title": "b", "type": "echo"}],
        edges=[(0, 1)],
        by_at=datetime.now(UTC) + 40 * MINUTE,
    )

    assert (found.tasks, found.sure, found.likely) == (2, 2, 2)
    assert door.ask("GET", "/api/v1/tasks").json() == []


def test_a_wrong_plan_is_answered_with_the_field_and_what_would_do(door: Door) -> None:
    body = {"tasks": [{"title": "a", "priority": 9}], "by_at": "soon"}

    answer = door.ask("POST", "/api/v1/plan", json=body)

    assert answer.status_code == 422
    wrong = {item["field"]: item["legal"] for item in answer.json()["errors"]}
    assert wrong["tasks.0.priority"] == "a whole number from 1 to 4"
    assert "2030-01-31T07:00:00Z" in wrong["by_at"]
