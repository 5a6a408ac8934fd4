"""Triggers: the end of a graph submits another graph exactly once."""

import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from overnight.errors import DagNotFound, InvalidRequest, TriggerNotFound
from overnight.models.account import Trigger
from overnight_server.control.cancel import cancel
from overnight_server.control.retry import retry
from overnight_server.domain.graphs import TriggerCondition
from overnight_server.domain.ids import DagId, TaskId, TriggerId, UserId, show_trigger
from overnight_server.domain.results import Raised, Returned
from overnight_server.domain.retry import RetryRules, Strategy
from overnight_server.insight.triggers import list_triggers
from overnight_server.intake.new_graph import Edge, NewGraph, NewTask
from overnight_server.intake.spawn import NewChild, SpawnCaps, spawn
from overnight_server.intake.submit import submit_graph
from overnight_server.intake.triggers import (
    add_trigger,
    drop_trigger,
    graph_from_json,
    graph_to_json,
)
from overnight_server.maintenance.triggers import RETRY_AFTER, UNEXPECTED, fire_due
from overnight_server.outcome.settle import settle
from overnight_server.store.db import ActingUser, Db
from tests.support.deployment import AGENT, LOOSE, Deployment
from tests.support.graphs import begin
from tests.support.invariants import describe_violations, violations
from tests.support.rivals import Rival, meet_at_lane
from tests.support.workers import ROOT

ME = "human:me"
FATAL = Raised("auth_failure", "wrong key")
REPORT = NewGraph(
    [NewTask("collect", "echo"), NewTask("write", "echo", max_attempts=7)],
    [Edge(0, 1, "finished")],
    "the report",
    2.5,
)


@pytest.fixture
def user(deployment: Deployment) -> UserId:
    deployment.agent()
    return deployment.user()


@pytest.fixture
def pipeline(deployment: Deployment, user: UserId) -> tuple[DagId, TaskId]:
    [only] = submit_graph(deployment.app, user, [NewTask("load", "echo")], LOOSE, title="pipeline")
    return only.dag_id, only.task_id


def arm(deployment: Deployment, user: UserId, dag: DagId, when: str = "completed") -> TriggerId:
    return add_trigger(deployment.app, user, dag, REPORT, LOOSE, actor=ME, when=when)


def end(deployment: Deployment, task: TaskId, result: Returned | Raised) -> None:
    deployment.settle(*begin(deployment, task), result)


def reports(deployment: Deployment) -> int:
    return int(deployment.one("SELECT count(*) AS n FROM dags WHERE title = 'the report'")["n"])


def only(deployment: Deployment, user: UserId) -> Trigger:
    [view] = list_triggers(deployment.app, user)
    return view


def assert_no_violations(deployment: Deployment) -> None:
    broken = violations(deployment.dispatcher)
    assert not broken, describe_violations(broken)


def test_a_completed_graph_fires_its_trigger_once(
    deployment: Deployment, user: UserId, pipeline: tuple[DagId, TaskId]
) -> None:
    dag, task = pipeline
    arm(deployment, user, dag)
    assert fire_due(deployment.dispatcher, LOOSE) == 0

    end(deployment, task, Returned())
    fired = [fire_due(deployment.dispatcher, LOOSE) for _ in range(2)]

    assert fired == [1, 0]
    assert reports(deployment) == 1
    made = deployment.rows(
        "SELECT t.title, t.state, t.source, t.created_by, t.max_attempts, g.budget_ceiling_usd"
        "  FROM tasks t JOIN dags g ON g.id = t.dag_id WHERE g.title = 'the report' ORDER BY t.id"
    )
    assert [(row["title"], row["state"], row["max_attempts"]) for row in made] == [
        ("collect", "ready", 3),
        ("write", "pending", 7),
    ]
    assert {(row["source"], float(row["budget_ceiling_usd"])) for row in made} == {("dag", 2.5)}
    view = only(deployment, user)
    assert view.fired_at is not None
    assert view.fired_dag_id is not None
    assert deployment.one("SELECT condition FROM task_edges")["condition"] == "finished"
    assert_no_violations(deployment)


@pytest.mark.parametrize(
    ("when", "result", "fires"),
    [
        ("completed", Returned(), 1),
        ("completed", FATAL, 0),
        ("failed", Returned(), 0),
        ("failed", FATAL, 1),
        ("finished", Returned(), 1),
        ("finished", FATAL, 1),
    ],
)
@pytest.mark.parametrize("lone", [False, True])
def test_a_trigger_fires_only_for_its_condition(
    deployment: Deployment,
    user: UserId,
    when: str,
    result: Returned | Raised,
    fires: int,
    *,
    lone: bool,
) -> None:
    title = None if lone else "pipeline"
    [made] = submit_graph(deployment.app, user, [NewTask("load", "echo")], LOOSE, title=title)
    arm(deployment, user, made.dag_id, when)

    end(deployment, made.task_id, result)

    assert fire_due(deployment.dispatcher, LOOSE) == fires
    assert reports(deployment) == fires
    assert_no_violations(deployment)


def test_a_cancelled_graph_counts_as_finished(
    deployment: Deployment, user: UserId, pipeline: tuple[DagId, TaskId]
) -> None:
    dag, task = pipeline
    for when in TriggerCondition:
        arm(deployment, user, dag, when)

    cancel(deployment.app, user, task, actor=ME)

    assert fire_due(deployment.dispatcher, LOOSE) == 1


def test_a_trigger_on_an_ended_graph_fires_at_once(
    deployment: Deployment, user: UserId, pipeline: tuple[DagId, TaskId]
) -> None:
    dag, task = pipeline
    end(deployment, task, Returned())

    arm(deployment, user, dag)

    assert fire_due(deployment.dispatcher, LOOSE) == 1


def test_a_trigger_on_failure_of_a_completed_graph_is_refused(
    deployment: Deployment, user: UserId, pipeline: tuple[DagId, TaskId]
) -> None:
    dag, task = pipeline
    end(deployment, task, Returned())

    with pytest.raises(InvalidRequest, match="when: the graph has completed and cannot fail"):
        arm(deployment, user, dag, "failed")

    assert list_triggers(deployment.app, user) == []


def test_a_trigger_may_wait_for_a_failed_graph_to_complete(
    deployment: Deployment, user: UserId, pipeline: tuple[DagId, TaskId]
) -> None:
    dag, task = pipeline
    end(deployment, task, FATAL)

    arm(deployment, user, dag, "completed")
    retry(deployment.app, user, task, actor=ME)
    end(deployment, task, Returned())

    assert fire_due(deployment.dispatcher, LOOSE) == 1


def test_a_failure_that_was_retried_at_once_still_fires_the_trigger(
    deployment: Deployment, user: UserId, pipeline: tuple[DagId, TaskId]
) -> None:
    dag, task = pipeline
    arm(deployment, user, dag, "failed")
    arm(deployment, user, dag, "completed")
    end(deployment, task, FATAL)
    retry(deployment.app, user, task, actor=ME)

    assert fire_due(deployment.dispatcher, LOOSE) == 1

    end(deployment, task, FATAL)
    assert fire_due(deployment.dispatcher, LOOSE) == 0
    retry(deployment.app, user, task, actor=ME)
    end(deployment, task, Returned())
    assert fire_due(deployment.dispatcher, LOOSE) == 1
    assert reports(deployment) == 2
    assert_no_violations(deployment)


def test_a_failure_of_a_single_task_that_spawned_later_still_fires(
    deployment: Deployment, user: UserId
) -> None:
    run = deployment.running(user)
    task = run.claim.task_id
    arm(deployment, user, run.dag_id, "failed")
    arm(deployment, user, run.dag_id, "completed")
    deployment.settle(run, FATAL)
    retry(deployment.app, user, task, actor=ME)
    [again] = begin(deployment, task)
    seed = NewChild(NewTask("child", "echo"), "#1")
    child = spawn(deployment.dispatcher, user, again.claim, seed, SpawnCaps(LOOSE)).task_id

    assert fire_due(deployment.dispatcher, LOOSE) == 1

    deployment.settle(again, Returned())
    assert fire_due(deployment.dispatcher, LOOSE) == 0
    end(deployment, child, Returned())
    assert fire_due(deployment.dispatcher, LOOSE) == 1
    assert_no_violations(deployment)


def test_a_triggered_graph_refused_by_a_cap_is_tried_again(
    deployment: Deployment, user: UserId, pipeline: tuple[DagId, TaskId]
) -> None:
    dag, task = pipeline
    arm(deployment, user, dag)
    end(deployment, task, Returned())
    tight = replace(LOOSE, max_pending_per_user=1)

    assert fire_due(deployment.dispatcher, tight) == 0
    refused = only(deployment, user)
    assert refused.refusal is not None
    assert refused.refusal.startswith("TOO_MANY_PENDING")
    assert refused.fired_at is None
    assert fire_due(deployment.dispatcher, LOOSE) == 0

    deployment.move_clock(RETRY_AFTER + timedelta(seconds=1))
    assert fire_due(deployment.dispatcher, LOOSE) == 1
    assert (only(deployment, user).refusal, reports(deployment)) == (None, 1)


def test_an_unreadable_stored_graph_does_not_block_other_triggers(
    deployment: Deployment, user: UserId, pipeline: tuple[DagId, TaskId]
) -> None:
    dag, task = pipeline
    old = arm(deployment, user, dag)
    arm(deployment, user, dag)
    deployment.run("UPDATE dag_triggers SET graph = graph - 'tasks' WHERE id = :id", id=old)
    end(deployment, task, Returned())

    assert fire_due(deployment.dispatcher, LOOSE) == 1
    refusal = deployment.one("SELECT refusal FROM dag_triggers WHERE id = :id", id=old)["refusal"]
    assert "graph: cannot be read any more" in refusal


def test_an_unexpected_error_affects_only_its_own_trigger(
    *,
    deployment: Deployment,
    user: UserId,
    pipeline: tuple[DagId, TaskId],
    caplog: pytest.LogCaptureFixture,
) -> None:
    dag, task = pipeline
    broken = arm(deployment, user, dag)
    arm(deployment, user, dag)
    # The driver cannot read such a number.
    deployment.run(
        "UPDATE dag_triggers SET graph = jsonb_set(graph, '{budget_usd}', '1e100000')"
        " WHERE id = :id",
        id=broken,
    )
    end(deployment, task, Returned())

    assert fire_due(deployment.dispatcher, LOOSE) == 1
    assert f"trigger_stuck trigger_id={show_trigger(broken)}" in caplog.text
    kept = deployment.one("SELECT refusal, fired_at FROM dag_triggers WHERE id = :id", id=broken)
    assert (kept["refusal"], kept["fired_at"]) == (UNEXPECTED, None)

    caplog.clear()
    assert fire_due(deployment.dispatcher, LOOSE) == 0
    assert "trigger_stuck" not in caplog.text, "it is not tried with every pass"
    deployment.run("UPDATE dag_triggers SET graph = jsonb_set(graph, '{budget_usd}', '1')")
    deployment.move_clock(RETRY_AFTER + timedelta(seconds=1))
    assert fire_due(deployment.dispatcher, LOOSE) == 1
    assert_no_violations(deployment)


def test_a_trigger_that_is_dropped_never_fires(
    deployment: Deployment, user: UserId, pipeline: tuple[DagId, TaskId]
) -> None:
    dag, task = pipeline
    trigger = arm(deployment, user, dag)
    with pytest.raises(TriggerNotFound):
        drop_trigger(deployment.app, deployment.user(), trigger, actor=ME)

    drop_trigger(deployment.app, user, trigger, actor=ME)
    end(deployment, task, Returned())

    assert fire_due(deployment.dispatcher, LOOSE) == 0
    with pytest.raises(TriggerNotFound):
        drop_trigger(deployment.app, user, trigger, actor=ME)


def test_an_invalid_trigger_is_refused_when_it_is_created(
    deployment: Deployment, user: UserId, pipeline: tuple[DagId, TaskId]
) -> None:
    dag, _ = pipeline
    with pytest.raises(InvalidRequest, match="when: 'never'"):
        arm(deployment, user, dag, "never")
    for graph, field in (
        (NewGraph([]), "tasks"),
        (replace(REPORT, edges=[Edge(0, 0)]), "edges"),
        (replace(REPORT, edges=[Edge(0, 1, "soon")]), "edges.condition"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            add_trigger(deployment.app, user, dag, graph, LOOSE, actor=ME)
        assert refused.value.fields[0].field == field
    for owner, unknown in ((deployment.user(), dag), (user, DagId(uuid4()))):
        with pytest.raises(DagNotFound):
            arm(deployment, owner, unknown)


def test_a_stored_graph_is_restored_unchanged() -> None:
    task = NewTask(
        "t",
        "echo",
        payload={"a": [1]},
        locks=["repo:a"],
        source="dag",
        deadline_at=datetime(2030, 1, 1, tzinfo=UTC),
        retry=RetryRules(strategy=Strategy.FIXED, escalate_after=2),
    )
    graph = NewGraph([task], [], "kept", None)

    kept = {**graph_to_json(graph)}
    kept["tasks"] = [{**kept["tasks"][0], "deadline_at": "2030-01-01T00:00:00+00:00"}]

    assert graph_from_json(kept) == graph


def test_two_sweeps_fire_a_trigger_once(
    deployment: Deployment, user: UserId, pipeline: tuple[DagId, TaskId], connect: Callable[..., Db]
) -> None:
    dag, task = pipeline
    arm(deployment, user, dag)
    end(deployment, task, Returned())

    fired = meet_at_lane(
        connect, user, *(Rival(connect, f"sweep-{n}", fire_due, LOOSE) for n in range(2))
    )

    assert sorted(fired) == [0, 1]
    assert reports(deployment) == 1


@pytest.mark.parametrize("arm_first", [True, False])
def test_a_trigger_created_while_the_graph_ends_is_not_lost(
    deployment: Deployment,
    user: UserId,
    pipeline: tuple[DagId, TaskId],
    connect: Callable[..., Db],
    *,
    arm_first: bool,
) -> None:
    dag, task = pipeline
    [run] = begin(deployment, task)
    rivals = [
        Rival(_as_app(connect, user), "person", add_trigger, user, dag, REPORT, LOOSE, actor=ME),
        Rival(connect, "worker", settle, run, Returned(), agent=AGENT),
    ]

    meet_at_lane(connect, user, *(rivals if arm_first else reversed(rivals)))

    assert fire_due(deployment.dispatcher, LOOSE) == 1
    assert_no_violations(deployment)


def _as_app(connect: Callable[..., Db], user: UserId) -> Callable[..., Db]:
    return lambda name: connect(name, role="overnight_app").acting_for(ActingUser(user))


DYING_SWEEP = """
import sys
from overnight_server.fault_points import arm
from overnight_server.intake.caps import Caps
from overnight_server.maintenance.triggers import fire_due
from overnight_server.store.db import DISPATCHER, Db
arm(sys.argv[1] + "=kill")
fire_due(Db.connect(sys.argv[2], role=DISPATCHER), Caps())
"""


@pytest.mark.parametrize(
    ("point", "made"), [("intake.before_commit", 0), ("intake.after_commit", 1)]
)
def test_a_killed_sweep_neither_loses_nor_repeats_a_trigger(
    deployment: Deployment, user: UserId, database_url: str, point: str, made: int
) -> None:
    [first] = submit_graph(deployment.app, user, [NewTask("load", "echo")], LOOSE, title="pipeline")
    arm(deployment, user, first.dag_id)
    end(deployment, first.task_id, Returned())

    died = subprocess.run(
        [sys.executable, "-c", DYING_SWEEP, point, database_url],
        cwd=ROOT,
        capture_output=True,
        check=False,
        timeout=60,
    )

    assert died.returncode == -signal.SIGKILL, died.stderr
    assert reports(deployment) == made
    assert fire_due(deployment.dispatcher, LOOSE) == 1 - made
    assert reports(deployment) == 1
    assert_no_violations(deployment)
