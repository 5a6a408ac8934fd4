"""A pool process of a worker carries out handlers that spawn, wait, read and keep."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import event

from overnight import Context, Fail, Stopped, errors
from overnight.handlers import registry
from overnight_server.control.cancel import cancel
from overnight_server.domain.ids import TaskId, UserId, parse_artifact, parse_task, show_task
from overnight_server.insight.artifacts import get_artifact
from overnight_server.insight.tasks import get_task
from overnight_server.store.db import Db
from overnight_worker import resources
from overnight_worker.execute import carry_out
from tests.support.deployment import Deployment
from tests.support.invariants import describe_violations, violations
from tests.support.worker_in_process import NOWHERE, worker_resources
from tests.support.workers import worker_settings

Register = Callable[..., None]


@pytest.fixture
def user(deployment: Deployment) -> UserId:
    deployment.agent()
    return deployment.user()


@pytest.fixture
def worker(database_url: str, db: Db) -> Iterator[resources.WorkerResources]:
    settings = worker_settings(database_url, NOWHERE, max_spawn_depth=2, refill_seconds=0)
    with worker_resources(settings, db) as worker:
        yield worker


@pytest.fixture
def register() -> Iterator[Register]:
    names: list[str] = []

    def add(**functions: registry.HandlerFunction) -> None:
        for name, function in functions.items():
            registry._handlers[name] = registry.Handler(name, function)
            names.append(name)

    yield add
    for name in names:
        registry._handlers.pop(name, None)


def work_off(deployment: Deployment, worker: resources.WorkerResources) -> None:
    """Carry out whatever the gate gives, until it gives nothing more."""
    while claims := deployment.claim().claims:
        for claimed in claims:
            carry_out(worker, [claimed.claim])
    broken = violations(deployment.owner)
    assert not broken, describe_violations(broken)


def done(
    deployment: Deployment, worker: resources.WorkerResources, user: UserId, **fields: Any
) -> dict[str, Any]:
    task_id = deployment.task(user, **fields)
    work_off(deployment, worker)
    return dict(deployment.row(task_id))


def test_a_parent_ends_with_the_outputs_of_its_children(
    deployment: Deployment, worker: resources.WorkerResources, user: UserId
) -> None:
    row = done(deployment, worker, user, title="trip", type="family", payload={"children": 3})

    assert (row["state"], row["attempts"], row["epoch"]) == ("completed", 1, 2)
    assert row["output"]["outputs"] == [{"number": n} for n in (1, 2, 3)]
    artifact = parse_artifact(row["output"]["plan"])
    _, content = get_artifact(deployment.app, user, artifact)
    assert content.value() == {"children": 3, "of": "echo"}
    children = deployment.rows(
        "SELECT id, title, source, created_by FROM tasks WHERE parent_id = :id", id=row["id"]
    )
    assert sorted(child["title"] for child in children) == ["trip 1", "trip 2", "trip 3"]
    assert {(child["source"], child["created_by"]) for child in children} == {
        ("agent", "agent:family")
    }
    assert get_task(deployment.app, user, TaskId(children[0]["id"])).parent_id == show_task(
        row["id"]
    )
    outcomes = deployment.rows(
        "SELECT outcome FROM attempts WHERE task_id = :id ORDER BY epoch", id=row["id"]
    )
    assert [child["outcome"] for child in outcomes] == ["suspended", "completed"]


def test_a_run_reads_the_outputs_of_its_parents_and_its_children(
    deployment: Deployment, worker: resources.WorkerResources, user: UserId, register: Register
) -> None:
    def parent(ctx: Context) -> object:
        first = ctx.spawn("one", "echo", key="one", payload={"n": 1})
        last = ctx.spawn("sum", "reader", depends_on=[first], context_refs=["task:one:output"])
        ctx.wait_for(last)
        return {"inputs": ctx.inputs, "children": [child.key for child in ctx.children]}

    register(parent=parent, reader=lambda ctx: ctx.inputs)

    row = done(deployment, worker, user, type="parent")

    [inputs] = row["output"]["inputs"].values()
    assert inputs == {"one": {"n": 1}, "task:one:output": {"n": 1}}
    assert row["output"]["children"] == ["one", "#1"]


def test_a_parent_reads_how_its_children_failed(
    deployment: Deployment, worker: resources.WorkerResources, user: UserId, register: Register
) -> None:
    def fails(ctx: Context) -> object:
        raise Fail(f"number {ctx.payload['number']} is wrong")

    register(fails=fails)

    row = done(deployment, worker, user, type="family", payload={"children": 2, "of": "fails"})

    assert row["state"] == "completed"
    assert row["output"]["states"] == ["dead_lettered", "dead_lettered"]
    assert deployment.one("SELECT status FROM dags")["status"] == "failed"


def test_a_task_without_edges_reads_its_inputs_without_a_query(
    deployment: Deployment, worker: resources.WorkerResources, user: UserId, register: Register
) -> None:
    register(looks=lambda ctx: ctx.inputs)
    task_id = deployment.task(user, type="looks")
    [claimed] = deployment.claim().claims
    queries: list[str] = []
    event.listen(
        worker.db.engine, "before_cursor_execute", lambda *arguments: queries.append(arguments[2])
    )

    carry_out(worker, [claimed.claim])

    assert deployment.row(task_id)["output"] == {}
    assert not [sql for sql in queries if "inputs_of" in sql]


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"agent_name": "reviewer"}, errors.NotOrchestrator),
        ({"priority": 9}, errors.InvalidRequest),
        ({"context_refs": ["task:nobody:output"]}, errors.InvalidRequest),
    ],
)
def test_a_handler_can_catch_a_refused_spawn(
    deployment: Deployment,
    worker: resources.WorkerResources,
    user: UserId,
    register: Register,
    *,
    fields: dict[str, Any],
    refusal: type[errors.Refused],
) -> None:
    def tries(ctx: Context) -> object:
        with pytest.raises(refusal) as refused:
            ctx.spawn("a", "echo", **fields)
        return str(refused.value)

    register(tries=tries)

    row = done(deployment, worker, user, type="tries")

    assert row["state"] == "completed"
    assert not deployment.rows("SELECT * FROM dags")


def test_a_refused_spawn_that_is_not_caught_fails_the_task(
    deployment: Deployment, worker: resources.WorkerResources, user: UserId, register: Register
) -> None:
    def deeper(ctx: Context) -> object:
        return ctx.spawn("deeper", "deeper")

    register(deeper=deeper)

    row = done(deployment, worker, user, type="deeper")

    assert row["state"] == "completed"
    ends = deployment.rows("SELECT state, failure_reason FROM tasks ORDER BY id DESC LIMIT 1")
    assert ends == [{"state": "dead_lettered", "failure_reason": "spawn_refused"}]
    assert deployment.one("SELECT total FROM dags")["total"] == 3


def test_a_cancelled_run_that_spawns_ends_as_cancelled(
    deployment: Deployment, worker: resources.WorkerResources, user: UserId, register: Register
) -> None:
    def late(ctx: Context) -> object:
        cancel(deployment.app, user, parse_task(ctx.task_id), actor="human:test")
        with pytest.raises(Stopped) as stopped:
            ctx.spawn("a", "echo")
        assert stopped.value.reason == "cancelled"
        ctx.spawn("b", "echo")
        return None

    register(late=late)

    row = done(deployment, worker, user, type="late")

    assert row["state"] == "cancelled"
    assert deployment.one("SELECT count(*) AS n FROM tasks")["n"] == 1


def test_a_run_that_lost_its_claim_is_stopped_at_its_next_call(
    deployment: Deployment, worker: resources.WorkerResources, user: UserId, register: Register
) -> None:
    reasons: list[str] = []

    def lost(ctx: Context) -> object:
        deployment.run(
            "UPDATE tasks SET epoch = epoch + 1 WHERE id = :id", id=parse_task(ctx.task_id)
        )
        for say in (lambda: ctx.spawn("a", "echo"), lambda: ctx.artifact("a", "text")):
            with pytest.raises(Stopped) as stopped:
                say()
            reasons.append(stopped.value.reason)
        return None

    register(lost=lost)
    task_id = deployment.task(user, type="lost")
    [claimed] = deployment.claim().claims

    carry_out(worker, [claimed.claim])

    assert reasons == ["lost", "lost"]
    assert deployment.state(task_id) == "running"
    assert not deployment.rows("SELECT * FROM artifacts")
    assert len(deployment.rows("SELECT * FROM stale_results")) == 1


def test_a_task_that_is_not_a_child_cannot_be_waited_for(
    deployment: Deployment, worker: resources.WorkerResources, user: UserId, register: Register
) -> None:
    unrelated_task = show_task(deployment.task(user))

    def waits(ctx: Context) -> object:
        with pytest.raises(errors.InvalidRequest, match="was not spawned by this task"):
            ctx.wait_for(unrelated_task)
        return "ok"

    register(waits=waits)

    assert done(deployment, worker, user, type="waits")["output"] == "ok"
