"""Running tasks spawn others into their own graph: once, while they hold their claim, in bounds."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from overnight_server.control.cancel import cancel
from overnight_server.control.dead_letters import retry
from overnight_server.control.fork import fork
from overnight_server.domain.claims import Run
from overnight_server.domain.errors import (
    DagTooLarge,
    InvalidRequest,
    NotOrchestrator,
    SpawnTooDeep,
    StaleAttempt,
    TaskNotFound,
    TaskStopping,
    TooManyChildren,
    TooManyPending,
)
from overnight_server.domain.ids import TaskId, UserId, show_task
from overnight_server.domain.results import Lost, Raised, Returned, Waiting
from overnight_server.intake.grow_graph import Seed, SpawnCaps, Spawned, spawn
from overnight_server.intake.submit import Caps, NewTask
from overnight_server.outcome.inputs import children_of, inputs_of
from overnight_server.outcome.settle import settle
from overnight_server.store.db import Db
from tests.support.graphs import begin, graph
from tests.support.house import AGENT, LOOSE, House
from tests.support.invariants import told, violations
from tests.support.rivals import Rival, meet_at_lane

CAPS = SpawnCaps(LOOSE)
ACTOR = "human:test"


@pytest.fixture
def user(house: House) -> UserId:
    house.agent()
    return house.user()


@pytest.fixture
def run(house: House, user: UserId) -> Run:
    return house.running(user, title="parent")


def plant(
    db: Db,
    run: Run,
    key: str = "#1",
    *,
    caps: SpawnCaps = CAPS,
    after: tuple[TaskId, ...] = (),
    **fields: Any,
) -> Spawned:
    task = NewTask(**{"title": f"child {key}", "type": "echo", **fields})
    return spawn(db, run.user_id, run.claim, Seed(task, key, depends_on=after), caps)


def sound(house: House) -> None:
    found = violations(house.owner)
    assert not found, told(found)


def finish(house: House, *tasks: TaskId, output: object = None) -> None:
    for one in begin(house, *tasks):
        assert house.settle(one, Returned(output))


def test_a_child_joins_its_parents_graph_at_once(house: House, run: Run) -> None:
    made = plant(house.dispatcher, run)

    row = house.row(made.task_id)
    assert made.created
    assert (row["state"], row["parent_id"], row["user_id"]) == (
        "ready",
        run.claim.task_id,
        run.user_id,
    )
    assert row["dag_id"] == run.dag_id == run.claim.task_id
    dag = house.one("SELECT * FROM dags")
    assert (dag["id"], dag["title"], dag["total"], dag["open"]) == (run.dag_id, "parent", 2, 2)
    sound(house)


def test_a_grown_graph_counts_the_task_it_began_with(house: House, run: Run) -> None:
    child = plant(house.dispatcher, run).task_id
    house.settle(run, Returned())

    assert house.one("SELECT status, completed FROM dags") == {"status": "running", "completed": 1}
    finish(house, child)

    dag = house.one("SELECT * FROM dags")
    assert (dag["status"], dag["completed"]) == ("completed", 2)
    assert house.one("SELECT count(*) AS n FROM graphs")["n"] == 1
    sound(house)


def test_money_of_a_grown_graph_adds_up(house: House, user: UserId) -> None:
    run = house.running(user, max_cost_usd=5.0)
    child = plant(house.dispatcher, run, max_cost_usd=1.0).task_id
    house.settle(run, Returned(cost_usd=2.0))
    [second] = begin(house, child)
    house.settle(second, Returned(cost_usd=0.5))

    dag = house.one("SELECT spent_usd, reserved_usd FROM dags")
    assert (float(dag["spent_usd"]), float(dag["reserved_usd"])) == (2.5, 0.0)
    sound(house)


def test_a_repeated_run_does_not_double_its_children(house: House, run: Run) -> None:
    first = [plant(house.dispatcher, run, f"#{n}") for n in range(1, 4)]
    house.settle(run, Lost())
    house.move_clock(timedelta(hours=1))
    house.run("UPDATE tasks SET state = 'ready', retry_at = NULL WHERE state = 'retrying'")
    [again] = begin(house, run.claim.task_id)

    second = [plant(house.dispatcher, again, f"#{n}", title="other") for n in range(1, 5)]

    assert [one.task_id for one in second[:3]] == [one.task_id for one in first]
    assert [one.created for one in second] == [False, False, False, True]
    assert len(children_of(house.dispatcher, run.claim.task_id)) == 4


def test_two_calls_under_one_key_at_once_make_one_child(
    house: House, run: Run, connect: Callable[..., Db]
) -> None:
    answers = meet_at_lane(
        connect,
        run.user_id,
        Rival(connect, "first", plant, run),
        Rival(connect, "second", plant, run),
    )

    assert [one.created for one in answers] == [True, False]
    assert answers[0].task_id == answers[1].task_id


def test_a_parent_that_lost_its_claim_spawns_nothing(
    house: House, run: Run, connect: Callable[..., Db]
) -> None:
    ending = Rival(connect, "reaper", settle, run, Raised("auth_failure", "no"), agent=AGENT)
    late = Rival(connect, "late", plant, run)

    with pytest.raises(StaleAttempt):
        meet_at_lane(connect, run.user_id, ending, late)

    assert house.one("SELECT count(*) AS n FROM tasks")["n"] == 1
    assert not house.rows("SELECT * FROM dags")


def test_a_parent_that_was_asked_to_stop_begins_nothing_new(house: House, run: Run) -> None:
    cancel(house.app, run.user_id, run.claim.task_id, actor=ACTOR)

    with pytest.raises(TaskStopping):
        plant(house.dispatcher, run)


def test_generations_end_at_the_limit(house: House, run: Run) -> None:
    caps = SpawnCaps(LOOSE, max_depth=2)
    child = plant(house.dispatcher, run, caps=caps).task_id
    [second] = begin(house, child)
    grandchild = plant(house.dispatcher, second, caps=caps).task_id
    [third] = begin(house, grandchild)

    with pytest.raises(SpawnTooDeep, match="2 generations"):
        plant(house.dispatcher, third, caps=caps)

    sound(house)


@pytest.mark.parametrize(
    ("caps", "refusal"),
    [
        (SpawnCaps(LOOSE, max_children=2), TooManyChildren),
        (SpawnCaps(Caps(max_pending_per_user=2)), TooManyPending),
        (SpawnCaps(Caps(max_pending_per_user=9, max_tasks_per_dag=3)), DagTooLarge),
    ],
)
def test_growth_ends_at_each_cap_and_known_children_pass(
    house: House, run: Run, caps: SpawnCaps, refusal: type[Exception]
) -> None:
    for key in ("#1", "#2"):
        plant(house.dispatcher, run, key, caps=caps)

    with pytest.raises(refusal):
        plant(house.dispatcher, run, "#3", caps=caps)

    assert not plant(house.dispatcher, run, "#2", caps=caps).created
    assert house.one("SELECT total FROM dags")["total"] == 3


def test_a_child_takes_its_parents_urgency_unless_it_says(house: House, user: UserId) -> None:
    run = house.running(user, priority=20)
    inherited = plant(house.dispatcher, run).task_id
    seed = Seed(NewTask("own", "echo", priority=70), "own", inherits_priority=False)
    own = spawn(house.dispatcher, user, run.claim, seed, CAPS).task_id

    assert (house.row(inherited)["priority"], house.row(own)["priority"]) == (20, 70)


def test_siblings_may_wait_for_each_other(house: House, run: Run) -> None:
    first = plant(house.dispatcher, run, "first", name="first").task_id
    second = plant(house.dispatcher, run, "second", after=(first,)).task_id
    assert house.row(second)["state"] == "pending"

    finish(house, first, output={"n": 1})

    assert house.row(second)["state"] == "ready"
    assert inputs_of(house.dispatcher, run.user_id, second) == {"first": {"n": 1}}
    third = plant(house.dispatcher, run, "third", after=(first,)).task_id
    assert house.row(third)["state"] == "ready"
    sound(house)


def test_what_a_child_waits_for_is_of_its_own_graph(house: House, run: Run) -> None:
    stranger = house.task(run.user_id)
    foreign = house.task(house.user())

    with pytest.raises(InvalidRequest, match="another graph"):
        plant(house.dispatcher, run, after=(stranger,))
    with pytest.raises(TaskNotFound):
        plant(house.dispatcher, run, after=(foreign,))

    assert not house.rows("SELECT * FROM dags")


def test_work_for_another_agent_needs_an_orchestrator(house: House, user: UserId) -> None:
    plain = house.running(user)
    chief = house.running(user, role="orchestrator")
    for_review = {"required_capabilities": ["agent:reviewer"]}

    with pytest.raises(NotOrchestrator, match="agent:reviewer"):
        plant(house.dispatcher, plain, **for_review)
    with pytest.raises(NotOrchestrator, match="role orchestrator"):
        plant(house.dispatcher, plain, role="orchestrator")

    assert plant(house.dispatcher, chief, **for_review).created
    assert plant(house.dispatcher, chief, "#2", role="orchestrator").created


def test_an_agent_may_spawn_for_itself(house: House) -> None:
    house.agent(capabilities=["agent:coder"])
    run = house.running(house.user(), required_capabilities=["agent:coder"])

    assert plant(house.dispatcher, run, required_capabilities=["agent:coder"]).created


def wait(house: House, run: Run, *children: TaskId) -> bool:
    return house.settle(run, Waiting(children))


def test_a_suspended_task_gives_everything_back_and_goes_on(house: House, user: UserId) -> None:
    run = house.running(user, locks=["repo:site"])
    children = [plant(house.dispatcher, run, key).task_id for key in ("a", "b")]

    assert wait(house, run, *children)

    row = house.row(run.claim.task_id)
    assert (row["state"], row["unmet"], row["attempts"]) == ("pending", 2, 0)
    assert (row["failure_reason"], row["awaits_budget"]) == (None, None)
    assert not house.rows("SELECT * FROM held_locks")
    lane = house.lane(user)
    assert (lane["active"], lane["reserved_seconds"]) == (0, 0)
    ledger = house.rows("SELECT epoch, kind FROM usage_ledger")
    assert ledger == [{"epoch": 1, "kind": "usage"}]
    assert house.one("SELECT status FROM dags")["status"] == "running"
    sound(house)

    finish(house, *children)
    assert house.state(run.claim.task_id) == "ready"
    [again] = begin(house, run.claim.task_id)
    assert again.claim.epoch == 2
    house.settle(again, Returned("done"))
    assert house.row(run.claim.task_id)["attempts"] == 1
    assert house.one("SELECT status FROM dags")["status"] == "completed"
    sound(house)


def test_children_that_are_over_before_the_wait_is_settled_are_not_waited_for(
    house: House, run: Run
) -> None:
    child = plant(house.dispatcher, run).task_id
    finish(house, child)

    wait(house, run, child)

    assert house.state(run.claim.task_id) == "ready"
    sound(house)


@pytest.mark.parametrize("first", ["child", "parent"])
def test_a_child_that_completes_while_its_parent_suspends_is_not_missed(
    house: House, run: Run, connect: Callable[..., Db], first: str
) -> None:
    child = plant(house.dispatcher, run).task_id
    [ran] = begin(house, child)
    rivals = {
        "child": Rival(connect, "child", settle, ran, Returned(), agent=AGENT),
        "parent": Rival(connect, "parent", settle, run, Waiting((child,)), agent=AGENT),
    }
    order = sorted(rivals, key=lambda name: name != first)

    assert meet_at_lane(connect, run.user_id, *(rivals[name] for name in order)) == [True, True]

    row = house.row(run.claim.task_id)
    assert (row["state"], row["unmet"]) == ("ready", 0)
    sound(house)


def test_a_task_may_be_suspended_more_often_than_it_may_fail(house: House, user: UserId) -> None:
    run = house.running(user, max_attempts=1)
    for number in range(4):
        child = plant(house.dispatcher, run, f"#{number}").task_id
        wait(house, run, child)
        finish(house, child)
        [run] = begin(house, run.claim.task_id)

    house.settle(run, Returned())

    row = house.row(run.claim.task_id)
    assert (row["state"], row["attempts"], row["epoch"]) == ("completed", 1, 5)
    sound(house)


def test_a_parent_hears_of_children_that_failed_or_were_cancelled(house: House, run: Run) -> None:
    fails, stopped, never = (
        plant(house.dispatcher, run, key).task_id for key in ("fails", "stopped", "never")
    )
    behind = plant(house.dispatcher, run, "behind", after=(never,)).task_id
    wait(house, run, fails, stopped, behind)

    [failing] = begin(house, fails)
    house.settle(failing, Raised("auth_failure", "no key"))
    cancel(house.app, run.user_id, stopped, actor=ACTOR)
    assert house.row(run.claim.task_id)["unmet"] == 1
    cancel(house.app, run.user_id, never, actor=ACTOR)

    assert house.state(behind) == "cancelled"
    assert house.state(run.claim.task_id) == "ready"
    found = {one.key: (one.state, one.error) for one in children_of(house.app, run.claim.task_id)}
    assert found["fails"] == ("dead_lettered", "no key")
    assert found["stopped"] == ("cancelled", None)
    assert house.one("SELECT status FROM dags")["status"] == "running"
    sound(house)


def test_a_child_that_came_back_is_waited_for_again(house: House, run: Run) -> None:
    child = plant(house.dispatcher, run).task_id
    wait(house, run, child)
    [ran] = begin(house, child)
    house.settle(ran, Raised("auth_failure", "no"))
    retry(house.app, child, actor=ACTOR)
    [again] = begin(house, run.claim.task_id)

    wait(house, again, child)

    assert house.row(run.claim.task_id)["unmet"] == 1
    finish(house, child)
    assert house.state(run.claim.task_id) == "ready"
    sound(house)


def test_a_lost_claim_cannot_suspend(house: House, run: Run) -> None:
    child = plant(house.dispatcher, run).task_id
    house.settle(run, Raised("auth_failure", "no"))

    assert not wait(house, run, child)

    assert house.state(run.claim.task_id) == "dead_lettered"
    assert not house.rows("SELECT * FROM task_edges")


def test_a_wait_for_a_task_that_waits_for_this_one_fails(house: House, run: Run) -> None:
    child = plant(house.dispatcher, run, after=(run.claim.task_id,)).task_id

    house.settle(run, Waiting((child,), cost_usd=0.5))

    row = house.row(run.claim.task_id)
    assert (row["state"], row["failure_reason"]) == ("dead_lettered", "circular_dependency")
    assert float(row["cost_usd"]) == 0.5
    assert "circular dependency" in row["error"]
    sound(house)


def test_cancelling_a_suspended_task_takes_its_open_children_along(house: House, run: Run) -> None:
    waits, runs, done = (
        plant(house.dispatcher, run, key).task_id for key in ("waits", "runs", "done")
    )
    [ran, ended] = begin(house, runs, done)
    house.settle(ended, Returned())
    grandchild = plant(house.dispatcher, ran).task_id
    wait(house, run, waits, runs, done)

    cancel(house.app, run.user_id, run.claim.task_id, actor=ACTOR)

    states = [house.state(one) for one in (run.claim.task_id, waits, runs, done, grandchild)]
    assert states == ["cancelled", "cancelled", "running", "completed", "cancelled"]
    assert house.row(waits)["failure_reason"] == "parent_cancelled"
    assert house.row(runs)["cancel_requested_at"] is not None
    house.settle(ran, Raised("error", "stopped"))
    assert house.state(runs) == "cancelled"
    assert house.one("SELECT status FROM dags")["status"] == "cancelled"
    sound(house)


def test_a_wait_of_a_task_that_was_asked_to_stop_ends_it(house: House, run: Run) -> None:
    child = plant(house.dispatcher, run).task_id
    cancel(house.app, run.user_id, run.claim.task_id, actor=ACTOR)

    wait(house, run, child)

    assert [house.state(one) for one in (run.claim.task_id, child)] == ["cancelled", "cancelled"]
    sound(house)


def test_a_task_that_fails_leaves_its_children_alone(house: House, run: Run) -> None:
    child = plant(house.dispatcher, run).task_id

    house.settle(run, Raised("auth_failure", "no"))

    assert house.state(child) == "ready"
    sound(house)


def test_children_go_before_others_once_they_are_waited_for(house: House, run: Run) -> None:
    child = plant(house.dispatcher, run).task_id
    before = house.row(child)["sort_key"]

    wait(house, run, child)

    assert house.row(child)["dependency_boost"] > 0
    assert house.row(child)["sort_key"] < before


def test_a_member_of_a_graph_spawns_into_that_graph(house: House, user: UserId) -> None:
    first, last = graph(house, user, 2, [(0, 1)])
    [run] = begin(house, first)

    child = plant(house.dispatcher, run).task_id

    assert house.row(child)["dag_id"] == house.row(last)["dag_id"]
    assert house.one("SELECT total FROM dags")["total"] == 3
    sound(house)


def test_a_fork_takes_a_family_over_or_leaves_its_children_to_be_spawned(
    house: House, user: UserId
) -> None:
    parent, last = graph(house, user, 2, [(0, 1)])
    [run] = begin(house, parent)
    first = plant(house.dispatcher, run, "first", name="first").task_id
    second = plant(house.dispatcher, run, "second", context_refs=["task:first:output"]).task_id
    wait(house, run, first, second)
    finish(house, first, output=1)
    finish(house, second, output=2)
    finish(house, parent)
    finish(house, last)

    whole = fork(house.app, user, last, LOOSE, actor=ACTOR)
    anew = fork(house.app, user, parent, LOOSE, actor=ACTOR)

    copy = house.row(whole.tasks[second])
    assert (copy["parent_id"], copy["spawn_key"]) == (whole.tasks[parent], "second")
    assert copy["context_refs"] == {"task:first:output": show_task(whole.tasks[first])}
    read = inputs_of(house.app, user, whole.tasks[second])
    assert read == {"first": 1, "task:first:output": 1}
    assert set(anew.tasks) == {parent, last}
    [again] = begin(house, anew.tasks[parent])
    assert plant(house.dispatcher, again, "first").created
    sound(house)
