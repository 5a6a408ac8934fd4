"""Deadlines: a task not started by then ends, a running one may finish, a near one goes first."""

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from overnight_server.control.dead_letters import retry
from overnight_server.domain.ids import TaskId
from overnight_server.domain.priority import sort_key
from overnight_server.domain.results import (
    Interrupted,
    Lost,
    Raised,
    Result,
    Returned,
    WaitingForTasks,
)
from overnight_server.domain.retry import RetryRules, Strategy
from overnight_server.explain.explain import explain
from overnight_server.intake.new_graph import Edge, NewTask
from overnight_server.intake.spawn import NewChild, SpawnCaps, spawn
from overnight_server.intake.submit import submit_graph
from overnight_server.maintenance import deadlines
from overnight_server.maintenance.deadlines import dead_letter_passed, raise_deadline_priority
from overnight_server.maintenance.promote import promote
from overnight_server.maintenance.reap import reap
from overnight_server.store.db import Db
from tests.support.deployment import CLAIM_SETTINGS, CLAIM_TTL, LOOSE, Deployment
from tests.support.graphs import graph
from tests.support.profiles import examples
from tests.support.rivals import Rival, meet_at_lane

NOW = datetime.fromisoformat("2026-07-01T20:00Z")
TICK = timedelta(microseconds=1)
HOUR = timedelta(hours=1)
SOON = NOW + HOUR


@pytest.fixture
def noon(deployment: Deployment) -> Deployment:
    deployment.set_clock(NOW)
    deployment.agent()
    return deployment


def test_a_task_past_its_deadline_ends_and_is_not_retried(noon: Deployment) -> None:
    task_id = noon.task(noon.user(), deadline_at=SOON)

    noon.set_clock(SOON - TICK)
    before = dead_letter_passed(noon.dispatcher)
    noon.set_clock(SOON)
    after = dead_letter_passed(noon.dispatcher)

    row = noon.row(task_id)
    assert (before, after) == (0, 1)
    assert (row["state"], row["failure_reason"]) == ("dead_lettered", "deadline_exceeded")
    assert (row["attempts"], row["epoch"]) == (0, 0)
    letter = noon.one("SELECT * FROM dead_letters")
    assert (letter["task_id"], letter["failure_history"]) == (task_id, [])
    assert noon.one("SELECT reason FROM events WHERE to_state = 'dead_lettered'")["reason"] == (
        "deadline_exceeded"
    )


def test_the_gate_starts_nothing_past_its_deadline_even_without_a_sweep(noon: Deployment) -> None:
    user = noon.user()
    late = noon.task(user, deadline_at=SOON)
    noon.task(user)
    noon.set_clock(SOON)

    taken = noon.claim()

    assert len(taken.claims) == 1
    assert noon.state(late) == "ready"


def test_the_gate_starts_a_task_up_to_its_deadline(noon: Deployment) -> None:
    noon.task(noon.user(), deadline_at=SOON)
    noon.set_clock(SOON - TICK)

    assert len(noon.claim().claims) == 1


def test_a_running_task_finishes_however_late(noon: Deployment) -> None:
    run = noon.running(noon.user(), deadline_at=SOON)
    noon.set_clock(SOON + HOUR)

    assert dead_letter_passed(noon.dispatcher) == 0
    assert noon.settle(run, Returned("late")) is True
    assert noon.state(run.claim.task_id) == "completed"


@pytest.mark.parametrize(
    "result",
    [Raised("error", "no luck"), Interrupted("shutdown"), Lost()],
    ids=["retry", "deploy", "lost worker"],
)
def test_a_task_that_started_in_time_may_run_again_after_its_deadline(
    noon: Deployment, result: Result
) -> None:
    soon = RetryRules(Strategy.FIXED, initial_delay_sec=60, jitter=False)
    user = noon.user()
    run = noon.running(user, deadline_at=SOON, retry=soon)
    noon.set_clock(SOON - TICK)
    noon.settle(run, result)
    noon.set_clock(SOON + HOUR)

    assert dead_letter_passed(noon.dispatcher) == 0
    promote(noon.dispatcher)
    reasons = explain(noon.app, user, run.claim.task_id, CLAIM_SETTINGS).reasons
    assert "deadline" not in [reason.code for reason in reasons]
    assert [one.claim.task_id for one in noon.claim().claims] == [run.claim.task_id]


def test_a_parent_that_waits_for_its_children_outlives_its_deadline(noon: Deployment) -> None:
    user = noon.user()
    run = noon.running(user, deadline_at=SOON)
    child = NewChild(NewTask("child", "echo"), "#1")
    child_id = spawn(noon.dispatcher, user, run.claim, child, SpawnCaps(LOOSE)).task_id
    noon.settle(run, WaitingForTasks((child_id,)))
    noon.set_clock(SOON)

    assert dead_letter_passed(noon.dispatcher) == 0
    [claimed] = noon.claim().claims
    child_run = noon.start(claimed)
    assert child_run is not None
    noon.settle(child_run, Returned())
    assert [one.claim.task_id for one in noon.claim().claims] == [run.claim.task_id]


def test_a_claim_that_was_never_started_does_not_count_as_a_start(noon: Deployment) -> None:
    task_id = noon.task(noon.user(), deadline_at=NOW + timedelta(seconds=30))
    noon.claim()
    noon.set_clock(NOW + CLAIM_TTL)
    reap(noon.dispatcher)

    assert noon.claim().claims == []
    assert dead_letter_passed(noon.dispatcher) == 1
    assert noon.row(task_id)["failure_reason"] == "deadline_exceeded"


def test_dependents_of_a_late_task_are_cancelled(noon: Deployment) -> None:
    user = noon.user()
    tasks = [NewTask("late", "echo", deadline_at=SOON), NewTask("b", "echo"), NewTask("c", "echo")]
    made = submit_graph(noon.app, user, tasks, LOOSE, edges=[Edge(0, 1), Edge(1, 2)])
    noon.set_clock(SOON)

    dead_letter_passed(noon.dispatcher)

    rows = [noon.row(submitted.task_id) for submitted in made]
    assert [row["state"] for row in rows] == ["dead_lettered", "cancelled", "cancelled"]
    assert [row["failure_reason"] for row in rows[1:]] == ["upstream_failed"] * 2
    assert noon.one("SELECT status FROM dags")["status"] == "failed"


def test_the_deadline_applies_to_a_task_that_waits_for_its_parents(noon: Deployment) -> None:
    user = noon.user()
    tasks = [NewTask("parent", "echo"), NewTask("late", "echo", deadline_at=SOON)]
    parent, late = submit_graph(noon.app, user, tasks, LOOSE, edges=[Edge(0, 1)])
    noon.set_clock(SOON)

    dead_letter_passed(noon.dispatcher)
    [claimed] = noon.claim().claims
    run = noon.start(claimed)
    assert run is not None
    noon.settle(run, Returned())

    assert noon.state(late.task_id) == "dead_lettered"
    assert noon.state(parent.task_id) == "completed"


def test_a_late_task_that_is_retried_has_no_deadline(
    noon: Deployment,
) -> None:
    task_id = noon.task(noon.user(), deadline_at=SOON)
    noon.set_clock(SOON)
    dead_letter_passed(noon.dispatcher)

    retry(noon.dispatcher, task_id, actor="human:test")

    assert noon.row(task_id)["deadline_at"] is None
    assert dead_letter_passed(noon.dispatcher) == 0
    assert len(noon.claim().claims) == 1


def test_many_late_tasks_end_in_batches(noon: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "BATCH", 3)
    users = [noon.user() for _ in range(4)]
    for number in range(10):
        noon.task(users[number % 4], deadline_at=SOON)
    noon.set_clock(SOON)

    assert dead_letter_passed(noon.dispatcher) == 10
    assert {noon.lane(user)["waiting"] for user in users} == {0}


def test_two_sweeps_at_once_end_each_task_once(
    noon: Deployment, connect: Callable[..., Db]
) -> None:
    user = noon.user()
    for _ in range(5):
        noon.task(user, deadline_at=SOON)
    noon.set_clock(SOON)

    answers = meet_at_lane(
        connect, user, *(Rival(connect, f"beat-{n}", dead_letter_passed) for n in range(2))
    )

    assert answers == [5, 0]
    assert noon.one("SELECT count(*) AS n FROM dead_letters")["n"] == 5


def test_a_task_whose_deadline_is_moved_while_the_sweep_waits_stays(
    noon: Deployment, connect: Callable[..., Db]
) -> None:
    user = noon.user()
    task_id = noon.task(user, deadline_at=SOON)
    noon.set_clock(SOON)
    sweeper = Rival(connect, "sweeper", dead_letter_passed)
    editor = Rival(connect, "editor", _prolong, task_id)

    assert meet_at_lane(connect, user, editor, sweeper) == [None, 0]
    assert noon.state(task_id) == "ready"


def _prolong(db: Db, task_id: TaskId) -> None:
    """Extend the deadline of a task while holding its lane."""
    with db.engine.begin() as tx:
        owner = "(SELECT user_id FROM tasks WHERE id = :id)"
        lock = f"SELECT FROM lanes WHERE user_id = {owner} FOR NO KEY UPDATE"
        tx.execute(text(lock), {"id": task_id})
        more = "UPDATE tasks SET deadline_at = deadline_at + interval '1 day' WHERE id = :id"
        tx.execute(text(more), {"id": task_id})


# Order


def _order(deployment: Deployment) -> list[TaskId]:
    sql = "SELECT id FROM tasks WHERE state = 'ready' ORDER BY sort_key, id"
    return [row["id"] for row in deployment.rows(sql)]


def test_an_approaching_deadline_moves_its_task_forward(noon: Deployment) -> None:
    user = noon.user()
    plain = noon.task(user, priority=50)
    due = noon.task(user, priority=60, deadline_at=NOW + 6 * HOUR)
    far = _order(noon)

    noon.set_clock(NOW + 5 * HOUR)
    changed = raise_deadline_priority(noon.dispatcher)

    assert far == [plain, due]
    assert changed == 1
    assert _order(noon) == [due, plain]


def test_no_deadline_makes_a_task_critical(noon: Deployment) -> None:
    user = noon.user()
    due = noon.task(user, priority=10, deadline_at=NOW + HOUR / 60)
    critical = noon.task(user, priority=9)
    raise_deadline_priority(noon.dispatcher)

    assert _order(noon) == [critical, due]


def test_only_changed_sort_keys_are_written(
    noon: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "BATCH", 2)
    user = noon.user()
    for hours in range(1, 6):
        noon.task(user, deadline_at=NOW + hours * HOUR)
    noon.task(user, deadline_at=NOW + timedelta(days=9))
    noon.task(user)

    at_once = raise_deadline_priority(noon.dispatcher)
    noon.set_clock(NOW + HOUR / 2)

    assert at_once == 0
    assert raise_deadline_priority(noon.dispatcher) == 5
    assert raise_deadline_priority(noon.dispatcher) == 0


def test_a_running_task_keeps_its_sort_key(noon: Deployment) -> None:
    run = noon.running(noon.user(), deadline_at=NOW + HOUR)
    noon.set_clock(NOW + HOUR / 2)

    assert raise_deadline_priority(noon.dispatcher) == 0
    assert noon.state(run.claim.task_id) == "running"


def test_the_longest_chain_behind_a_task_goes_first(noon: Deployment) -> None:
    user = noon.user(max_concurrent_agents=1)
    # 0 and 1 stand alone at the top; 2 has one task behind it, 3 a chain of three, 4 two leaves
    alone, other, short, long, wide = graph(
        noon, user, 11, [(2, 5), (3, 6), (6, 7), (7, 8), (4, 9), (4, 10)]
    )[:5]

    order = _order(noon)

    assert order == [long, wide, short, alone, other]
    [first] = noon.claim().claims
    assert first.claim.task_id == long


def test_a_critical_task_goes_before_the_longest_chain(noon: Deployment) -> None:
    user = noon.user()
    chain = graph(noon, user, 40, [(n, n + 1) for n in range(39)])
    critical = noon.task(user, priority=9)

    assert _order(noon) == [critical, chain[0]]


@settings(
    max_examples=examples(50),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 100),
            st.sampled_from([0.0, 0.1, 2.5]),
            st.integers(-10_000, 10_000),
            st.floats(0, 20),
            st.none() | st.integers(-5_000, 5_000),
        ),
        min_size=20,
        max_size=30,
    )
)
def test_postgres_and_python_agree_on_every_key(
    db: Db, cases: list[tuple[int, float, int, float, int | None]]
) -> None:
    sql = text("SELECT sort_key(:priority, :boost, :made, :dependency, :deadline, :now) AS key")
    with db.engine.begin() as tx:
        for priority, boost, made, dependency, deadline in cases:
            made_at = NOW + timedelta(minutes=made)
            deadline_at = None if deadline is None else NOW + timedelta(minutes=deadline)
            found = tx.execute(
                sql,
                {
                    "priority": priority,
                    "boost": boost,
                    "made": made_at,
                    "dependency": dependency,
                    "deadline": deadline_at,
                    "now": NOW,
                },
            ).scalar_one()
            expected = sort_key(
                priority,
                boost_per_minute=boost,
                made_at=made_at,
                now=NOW,
                dependency_boost=dependency,
                deadline_at=deadline_at,
            )
            assert found == pytest.approx(expected, rel=0, abs=1e-4)
