"""Running tasks spawn others into their own graph: once, while they hold their claim, in bounds."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from overnight.errors import (
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
from overnight_server.control.cancel import cancel
from overnight_server.control.dead_letters import retry
from overnight_server.control.fork import fork
from overnight_server.domain.claims import Run
from overnight_server.domain.ids import TaskId, UserId, show_task
from overnight_server.domain.results import Lost, Raised, Returned, WaitingForTasks
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import NewTask
from overnight_server.intake.spawn import NewChild, SpawnCaps, SpawnResult, spawn
from overnight_server.outcome.inputs import children_of, inputs_of
from overnight_server.outcome.settle import settle
from overnight_server.store.db import Db
from tests.support.deployment import AGENT, LOOSE, Deployment
from tests.support.graphs import begin, graph
from tests.support.invariants import describe_violations, violations
from tests.support.rivals import Rival, meet_at_lane

CAPS = SpawnCaps(LOOSE)
ACTOR = "human:test"


@pytest.fixture
def user(deployment: Deployment) -> UserId:
    deployment.agent()
    return deployment.user()


@pytest.fixture
def run(deployment: Deployment, user: UserId) -> Run:
    return deployment.running(user, title="parent")


def spawn_child(
    db: Db,
    run: Run,
    key: str = "#1",
    *,
    caps: SpawnCaps = CAPS,
    after: tuple[TaskId, ...] = (),
    **fields: Any,
) -> SpawnResult:
    task = NewTask(**{"title": f"child {key}", "type": "echo", **fields})
    return spawn(db, run.user_id, run.claim, NewChild(task, key, depends_on=after), caps)


def assert_no_violations(deployment: Deployment) -> None:
    broken = violations(deployment.owner)
    assert not broken, describe_violations(broken)


def finish(deployment: Deployment, *tasks: TaskId, output: object = None) -> None:
    for started in begin(deployment, *tasks):
        assert deployment.settle(started, Returned(output))


def test_a_child_joins_its_parents_graph_at_once(deployment: Deployment, run: Run) -> None:
    made = spawn_child(deployment.dispatcher, run)

    row = deployment.row(made.task_id)
    assert made.created
    assert (row["state"], row["parent_id"], row["user_id"]) == (
        "ready",
        run.claim.task_id,
        run.user_id,
    )
    assert row["dag_id"] == run.dag_id == run.claim.task_id
    dag = deployment.one("SELECT * FROM dags")
    assert (dag["id"], dag["title"], dag["total"], dag["open"]) == (run.dag_id, "parent", 2, 2)
    assert_no_violations(deployment)


def test_a_graph_of_spawned_tasks_includes_its_first_task(deployment: Deployment, run: Run) -> None:
    child = spawn_child(deployment.dispatcher, run).task_id
    deployment.settle(run, Returned())

    assert deployment.one("SELECT status, completed FROM dags") == {
        "status": "running",
        "completed": 1,
    }
    finish(deployment, child)

    dag = deployment.one("SELECT * FROM dags")
    assert (dag["status"], dag["completed"]) == ("completed", 2)
    assert deployment.one("SELECT count(*) AS n FROM graphs")["n"] == 1
    assert_no_violations(deployment)


def test_the_costs_of_spawned_tasks_are_added_to_the_graph(
    deployment: Deployment, user: UserId
) -> None:
    run = deployment.running(user, max_cost_usd=5.0)
    child = spawn_child(deployment.dispatcher, run, max_cost_usd=1.0).task_id
    deployment.settle(run, Returned(cost_usd=2.0))
    [second] = begin(deployment, child)
    deployment.settle(second, Returned(cost_usd=0.5))

    dag = deployment.one("SELECT spent_usd, reserved_usd FROM dags")
    assert (float(dag["spent_usd"]), float(dag["reserved_usd"])) == (2.5, 0.0)
    assert_no_violations(deployment)


def test_a_repeated_run_does_not_double_its_children(deployment: Deployment, run: Run) -> None:
    first = [spawn_child(deployment.dispatcher, run, f"#{n}") for n in range(1, 4)]
    deployment.settle(run, Lost())
    deployment.move_clock(timedelta(hours=1))
    deployment.run("UPDATE tasks SET state = 'ready', retry_at = NULL WHERE state = 'retrying'")
    [again] = begin(deployment, run.claim.task_id)

    second = [
        spawn_child(deployment.dispatcher, again, f"#{n}", title="other") for n in range(1, 5)
    ]

    assert [submitted.task_id for submitted in second[:3]] == [
        submitted.task_id for submitted in first
    ]
    assert [submitted.created for submitted in second] == [False, False, False, True]
    assert len(children_of(deployment.dispatcher, run.claim.task_id)) == 4


def test_two_calls_under_one_key_at_once_make_one_child(
    deployment: Deployment, run: Run, connect: Callable[..., Db]
) -> None:
    answers = meet_at_lane(
        connect,
        run.user_id,
        Rival(connect, "first", spawn_child, run),
        Rival(connect, "second", spawn_child, run),
    )

    assert [submitted.created for submitted in answers] == [True, False]
    assert answers[0].task_id == answers[1].task_id


def test_a_parent_that_lost_its_claim_spawns_nothing(
    deployment: Deployment, run: Run, connect: Callable[..., Db]
) -> None:
    ending = Rival(connect, "reaper", settle, run, Raised("auth_failure", "no"), agent=AGENT)
    late = Rival(connect, "late", spawn_child, run)

    with pytest.raises(StaleAttempt):
        meet_at_lane(connect, run.user_id, ending, late)

    assert deployment.one("SELECT count(*) AS n FROM tasks")["n"] == 1
    assert not deployment.rows("SELECT * FROM dags")


def test_a_parent_that_was_asked_to_stop_spawns_nothing(deployment: Deployment, run: Run) -> None:
    cancel(deployment.app, run.user_id, run.claim.task_id, actor=ACTOR)

    with pytest.raises(TaskStopping):
        spawn_child(deployment.dispatcher, run)


def test_spawning_below_the_depth_limit_is_refused(deployment: Deployment, run: Run) -> None:
    caps = SpawnCaps(LOOSE, max_depth=2)
    child = spawn_child(deployment.dispatcher, run, caps=caps).task_id
    [second] = begin(deployment, child)
    grandchild = spawn_child(deployment.dispatcher, second, caps=caps).task_id
    [third] = begin(deployment, grandchild)

    with pytest.raises(SpawnTooDeep, match="2 levels below"):
        spawn_child(deployment.dispatcher, third, caps=caps)

    assert_no_violations(deployment)


@pytest.mark.parametrize(
    ("caps", "refusal"),
    [
        (SpawnCaps(LOOSE, max_children=2), TooManyChildren),
        (SpawnCaps(Caps(max_pending_per_user=2)), TooManyPending),
        (SpawnCaps(Caps(max_pending_per_user=9, max_tasks_per_dag=3)), DagTooLarge),
    ],
)
def test_spawning_beyond_a_cap_is_refused_but_existing_keys_pass(
    deployment: Deployment, run: Run, caps: SpawnCaps, refusal: type[Exception]
) -> None:
    for key in ("#1", "#2"):
        spawn_child(deployment.dispatcher, run, key, caps=caps)

    with pytest.raises(refusal):
        spawn_child(deployment.dispatcher, run, "#3", caps=caps)

    assert not spawn_child(deployment.dispatcher, run, "#2", caps=caps).created
    assert deployment.one("SELECT total FROM dags")["total"] == 3


def test_a_child_inherits_its_parents_priority_by_default(
    deployment: Deployment, user: UserId
) -> None:
    run = deployment.running(user, priority=20)
    inherited = spawn_child(deployment.dispatcher, run).task_id
    seed = NewChild(NewTask("own", "echo", priority=70), "own", inherits_priority=False)
    own = spawn(deployment.dispatcher, user, run.claim, seed, CAPS).task_id

    assert (deployment.row(inherited)["priority"], deployment.row(own)["priority"]) == (20, 70)


def test_siblings_may_wait_for_each_other(deployment: Deployment, run: Run) -> None:
    first = spawn_child(deployment.dispatcher, run, "first", name="first").task_id
    second = spawn_child(deployment.dispatcher, run, "second", after=(first,)).task_id
    assert deployment.row(second)["state"] == "pending"

    finish(deployment, first, output={"n": 1})

    assert deployment.row(second)["state"] == "ready"
    assert inputs_of(deployment.dispatcher, run.user_id, second) == {"first": {"n": 1}}
    third = spawn_child(deployment.dispatcher, run, "third", after=(first,)).task_id
    assert deployment.row(third)["state"] == "ready"
    assert_no_violations(deployment)


def test_a_child_can_wait_only_for_tasks_of_its_graph(deployment: Deployment, run: Run) -> None:
    unrelated_task = deployment.task(run.user_id)
    foreign = deployment.task(deployment.user())

    with pytest.raises(InvalidRequest, match="another graph"):
        spawn_child(deployment.dispatcher, run, after=(unrelated_task,))
    with pytest.raises(TaskNotFound):
        spawn_child(deployment.dispatcher, run, after=(foreign,))

    assert not deployment.rows("SELECT * FROM dags")


def test_spawning_for_another_agent_needs_an_orchestrator(
    deployment: Deployment, user: UserId
) -> None:
    plain = deployment.running(user)
    chief = deployment.running(user, role="orchestrator")
    for_review = {"required_capabilities": ["agent:reviewer"]}

    with pytest.raises(NotOrchestrator, match="agent:reviewer"):
        spawn_child(deployment.dispatcher, plain, **for_review)
    with pytest.raises(NotOrchestrator, match="role orchestrator"):
        spawn_child(deployment.dispatcher, plain, role="orchestrator")

    assert spawn_child(deployment.dispatcher, chief, **for_review).created
    assert spawn_child(deployment.dispatcher, chief, "#2", role="orchestrator").created


def test_an_agent_may_spawn_for_itself(deployment: Deployment) -> None:
    deployment.agent(capabilities=["agent:coder"])
    run = deployment.running(deployment.user(), required_capabilities=["agent:coder"])

    assert spawn_child(deployment.dispatcher, run, required_capabilities=["agent:coder"]).created


def wait(deployment: Deployment, run: Run, *children: TaskId) -> bool:
    return deployment.settle(run, WaitingForTasks(children))


def test_a_suspended_task_releases_everything_and_continues(
    deployment: Deployment, user: UserId
) -> None:
    run = deployment.running(user, locks=["repo:site"])
    children = [spawn_child(deployment.dispatcher, run, key).task_id for key in ("a", "b")]

    assert wait(deployment, run, *children)

    row = deployment.row(run.claim.task_id)
    assert (row["state"], row["unmet"], row["attempts"]) == ("pending", 2, 0)
    assert (row["failure_reason"], row["awaits_budget"]) == (None, None)
    assert not deployment.rows("SELECT * FROM held_locks")
    lane = deployment.lane(user)
    assert (lane["active"], lane["reserved_seconds"]) == (0, 0)
    ledger = deployment.rows("SELECT epoch, kind FROM usage_ledger")
    assert ledger == [{"epoch": 1, "kind": "usage"}]
    assert deployment.one("SELECT status FROM dags")["status"] == "running"
    assert_no_violations(deployment)

    finish(deployment, *children)
    assert deployment.state(run.claim.task_id) == "ready"
    [again] = begin(deployment, run.claim.task_id)
    assert again.claim.epoch == 2
    deployment.settle(again, Returned("done"))
    assert deployment.row(run.claim.task_id)["attempts"] == 1
    assert deployment.one("SELECT status FROM dags")["status"] == "completed"
    assert_no_violations(deployment)


def test_children_that_ended_before_the_suspend_are_not_waited_for(
    deployment: Deployment, run: Run
) -> None:
    child = spawn_child(deployment.dispatcher, run).task_id
    finish(deployment, child)

    wait(deployment, run, child)

    assert deployment.state(run.claim.task_id) == "ready"
    assert_no_violations(deployment)


@pytest.mark.parametrize("first", ["child", "parent"])
def test_a_child_that_completes_while_its_parent_suspends_is_not_missed(
    deployment: Deployment, run: Run, connect: Callable[..., Db], first: str
) -> None:
    child = spawn_child(deployment.dispatcher, run).task_id
    [ran] = begin(deployment, child)
    rivals = {
        "child": Rival(connect, "child", settle, ran, Returned(), agent=AGENT),
        "parent": Rival(connect, "parent", settle, run, WaitingForTasks((child,)), agent=AGENT),
    }
    order = sorted(rivals, key=lambda name: name != first)

    assert meet_at_lane(connect, run.user_id, *(rivals[name] for name in order)) == [True, True]

    row = deployment.row(run.claim.task_id)
    assert (row["state"], row["unmet"]) == ("ready", 0)
    assert_no_violations(deployment)


def test_a_task_may_be_suspended_more_often_than_it_may_fail(
    deployment: Deployment, user: UserId
) -> None:
    run = deployment.running(user, max_attempts=1)
    for number in range(4):
        child = spawn_child(deployment.dispatcher, run, f"#{number}").task_id
        wait(deployment, run, child)
        finish(deployment, child)
        [run] = begin(deployment, run.claim.task_id)

    deployment.settle(run, Returned())

    row = deployment.row(run.claim.task_id)
    assert (row["state"], row["attempts"], row["epoch"]) == ("completed", 1, 5)
    assert_no_violations(deployment)


def test_a_parent_reads_the_states_of_failed_and_cancelled_children(
    deployment: Deployment, run: Run
) -> None:
    fails, stopped, never = (
        spawn_child(deployment.dispatcher, run, key).task_id
        for key in ("fails", "stopped", "never")
    )
    behind = spawn_child(deployment.dispatcher, run, "behind", after=(never,)).task_id
    wait(deployment, run, fails, stopped, behind)

    [failing] = begin(deployment, fails)
    deployment.settle(failing, Raised("auth_failure", "no key"))
    cancel(deployment.app, run.user_id, stopped, actor=ACTOR)
    assert deployment.row(run.claim.task_id)["unmet"] == 1
    cancel(deployment.app, run.user_id, never, actor=ACTOR)

    assert deployment.state(behind) == "cancelled"
    assert deployment.state(run.claim.task_id) == "ready"
    ended_children = {
        child.key: (child.state, child.error)
        for child in children_of(deployment.app, run.claim.task_id)
    }
    assert ended_children["fails"] == ("dead_lettered", "no key")
    assert ended_children["stopped"] == ("cancelled", None)
    assert deployment.one("SELECT status FROM dags")["status"] == "running"
    assert_no_violations(deployment)


def test_a_retried_child_is_waited_for_again(deployment: Deployment, run: Run) -> None:
    child = spawn_child(deployment.dispatcher, run).task_id
    wait(deployment, run, child)
    [ran] = begin(deployment, child)
    deployment.settle(ran, Raised("auth_failure", "no"))
    retry(deployment.app, child, actor=ACTOR)
    [again] = begin(deployment, run.claim.task_id)

    wait(deployment, again, child)

    assert deployment.row(run.claim.task_id)["unmet"] == 1
    finish(deployment, child)
    assert deployment.state(run.claim.task_id) == "ready"
    assert_no_violations(deployment)


def test_a_lost_claim_cannot_suspend(deployment: Deployment, run: Run) -> None:
    child = spawn_child(deployment.dispatcher, run).task_id
    deployment.settle(run, Raised("auth_failure", "no"))

    assert not wait(deployment, run, child)

    assert deployment.state(run.claim.task_id) == "dead_lettered"
    assert not deployment.rows("SELECT * FROM task_edges")


def test_a_wait_that_would_close_a_cycle_fails(deployment: Deployment, run: Run) -> None:
    child = spawn_child(deployment.dispatcher, run, after=(run.claim.task_id,)).task_id

    deployment.settle(run, WaitingForTasks((child,), cost_usd=0.5))

    row = deployment.row(run.claim.task_id)
    assert (row["state"], row["failure_reason"]) == ("dead_lettered", "circular_dependency")
    assert float(row["cost_usd"]) == 0.5
    assert "circular dependency" in row["error"]
    assert_no_violations(deployment)


def test_cancelling_a_suspended_task_cancels_its_open_children(
    deployment: Deployment, run: Run
) -> None:
    waits, runs, done = (
        spawn_child(deployment.dispatcher, run, key).task_id for key in ("waits", "runs", "done")
    )
    [ran, ended] = begin(deployment, runs, done)
    deployment.settle(ended, Returned())
    grandchild = spawn_child(deployment.dispatcher, ran).task_id
    wait(deployment, run, waits, runs, done)

    cancel(deployment.app, run.user_id, run.claim.task_id, actor=ACTOR)

    states = [
        deployment.state(task_id) for task_id in (run.claim.task_id, waits, runs, done, grandchild)
    ]
    assert states == ["cancelled", "cancelled", "running", "completed", "cancelled"]
    assert deployment.row(waits)["failure_reason"] == "parent_cancelled"
    assert deployment.row(runs)["cancel_requested_at"] is not None
    deployment.settle(ran, Raised("error", "stopped"))
    assert deployment.state(runs) == "cancelled"
    assert deployment.one("SELECT status FROM dags")["status"] == "cancelled"
    assert_no_violations(deployment)


def test_a_task_that_was_asked_to_stop_is_cancelled_instead_of_suspended(
    deployment: Deployment, run: Run
) -> None:
    child = spawn_child(deployment.dispatcher, run).task_id
    cancel(deployment.app, run.user_id, run.claim.task_id, actor=ACTOR)

    wait(deployment, run, child)

    assert [deployment.state(task_id) for task_id in (run.claim.task_id, child)] == [
        "cancelled",
        "cancelled",
    ]
    assert_no_violations(deployment)


def test_a_failed_task_does_not_cancel_its_children(deployment: Deployment, run: Run) -> None:
    child = spawn_child(deployment.dispatcher, run).task_id

    deployment.settle(run, Raised("auth_failure", "no"))

    assert deployment.state(child) == "ready"
    assert_no_violations(deployment)


def test_children_start_earlier_once_their_parent_waits(deployment: Deployment, run: Run) -> None:
    child = spawn_child(deployment.dispatcher, run).task_id
    before = deployment.row(child)["sort_key"]

    wait(deployment, run, child)

    assert deployment.row(child)["dependency_boost"] > 0
    assert deployment.row(child)["sort_key"] < before


def test_a_member_of_a_graph_spawns_into_that_graph(deployment: Deployment, user: UserId) -> None:
    first, last = graph(deployment, user, 2, [(0, 1)])
    [run] = begin(deployment, first)

    child = spawn_child(deployment.dispatcher, run).task_id

    assert deployment.row(child)["dag_id"] == deployment.row(last)["dag_id"]
    assert deployment.one("SELECT total FROM dags")["total"] == 3
    assert_no_violations(deployment)


def test_a_fork_copies_children_or_leaves_them_to_be_spawned_again(
    deployment: Deployment, user: UserId
) -> None:
    parent, last = graph(deployment, user, 2, [(0, 1)])
    [run] = begin(deployment, parent)
    first = spawn_child(deployment.dispatcher, run, "first", name="first").task_id
    second = spawn_child(
        deployment.dispatcher, run, "second", context_refs=["task:first:output"]
    ).task_id
    wait(deployment, run, first, second)
    finish(deployment, first, output=1)
    finish(deployment, second, output=2)
    finish(deployment, parent)
    finish(deployment, last)

    whole = fork(deployment.app, user, last, LOOSE, actor=ACTOR)
    anew = fork(deployment.app, user, parent, LOOSE, actor=ACTOR)

    copy = deployment.row(whole.copies[second])
    assert (copy["parent_id"], copy["spawn_key"]) == (whole.copies[parent], "second")
    assert copy["context_refs"] == {"task:first:output": show_task(whole.copies[first])}
    read = inputs_of(deployment.app, user, whole.copies[second])
    assert read == {"first": 1, "task:first:output": 1}
    assert set(anew.copies) == {parent, last}
    [again] = begin(deployment, anew.copies[parent])
    assert spawn_child(deployment.dispatcher, again, "first").created
    assert_no_violations(deployment)
