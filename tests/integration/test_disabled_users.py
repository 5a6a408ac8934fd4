"""The work of a disabled user waits and is not lost."""

import hashlib
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from sqlalchemy import text

from overnight.errors import UserDisabled
from overnight_server.control.cancel import cancel
from overnight_server.control.keys import issue
from overnight_server.control.users import disable_user, enable_user
from overnight_server.domain.ids import UserId, lone_dag_id
from overnight_server.domain.results import Returned
from overnight_server.intake.inbox import process_inbox
from overnight_server.intake.new_graph import NewGraph, NewTask
from overnight_server.intake.spawn import NewChild, SpawnCaps, spawn
from overnight_server.intake.triggers import add_trigger
from overnight_server.maintenance.bulk import run_bulks
from overnight_server.maintenance.triggers import fire_due
from overnight_server.settings import load
from overnight_server.store.db import Db
from tests.support.api_user import ApiUser, serve_api
from tests.support.bulk import ME, begin, get_operation, order
from tests.support.deployment import LOOSE, Deployment
from tests.support.graphs import assert_invariants
from tests.support.pull_agent import register_agent
from tests.support.rivals import Rival, meet_at_lane

SETTINGS = load({})
GRAPH = {"title": "second", "tasks": [{"name": "b", "title": "b"}]}


@pytest.fixture
def user(deployment: Deployment) -> UserId:
    deployment.agent()
    return deployment.user()


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        yield api_user
    assert_invariants(deployment)


def leave(deployment: Deployment, user: UserId, *titles: str) -> None:
    """Leave tasks in the inbox, as any program in the database can."""
    key = issue(deployment.app, user, name="shop")
    stored = hashlib.sha256(key.encode()).hexdigest()
    proof = hashlib.sha256(f"overnight inbox {stored}".encode()).hexdigest()
    submitted = text(
        "SELECT overnight_inbox_submit(:id, :proof, jsonb_build_object('title', :title))"
    )
    with deployment.owner.engine.begin() as tx:
        for title in titles:
            values = {"id": key.split("_")[2], "proof": proof, "title": title}
            tx.execute(submitted, values)


def titles(deployment: Deployment) -> list[str]:
    return [
        row["title"] for row in deployment.rows("SELECT title FROM tasks ORDER BY created_at, id")
    ]


def test_a_bulk_operation_of_a_disabled_user_waits_and_continues(
    deployment: Deployment, user: UserId
) -> None:
    task, other = deployment.task(user), deployment.user()
    its = deployment.task(other)
    bulk_id = begin(deployment, user, order("cancel", status="pending"))
    begin(deployment, other, order("cancel", status="pending"))

    disable_user(deployment.app, user)

    assert run_bulks(deployment.dispatcher) == 1
    assert [deployment.state(task_id) for task_id in (task, its)] == ["ready", "cancelled"]
    assert get_operation(deployment, user, bulk_id).state == "running"

    enable_user(deployment.app, user)

    assert run_bulks(deployment.dispatcher) == 1
    assert deployment.state(task) == "cancelled"
    assert get_operation(deployment, user, bulk_id).state == "completed"
    assert_invariants(deployment)


def test_a_trigger_of_a_disabled_user_waits_and_then_fires(api_user: ApiUser) -> None:
    deployment, dag = api_user.deployment, api_user.created()["dag_id"]
    made = api_user.request(
        "POST", f"/api/v1/dags/{dag}/triggers", json={"when": "finished", "graph": GRAPH}
    )
    assert made.status_code == 201, made.text
    api_user.request("DELETE", f"/api/v1/dags/{dag}")
    before = titles(deployment)

    disable_user(deployment.app, api_user.user)

    assert fire_due(deployment.dispatcher, LOOSE) == 0
    assert titles(deployment) == before

    enable_user(deployment.app, api_user.user)

    assert fire_due(deployment.dispatcher, LOOSE) == 1
    assert titles(deployment) == [*before, "b"]


def test_inbox_rows_of_a_disabled_user_wait_in_their_order(
    deployment: Deployment, user: UserId
) -> None:
    other = deployment.user()
    leave(deployment, user, "first", "second")
    leave(deployment, other, "another user's")

    disable_user(deployment.app, user)

    assert process_inbox(deployment.dispatcher, SETTINGS) == 1
    assert titles(deployment) == ["another user's"]

    enable_user(deployment.app, user)

    assert process_inbox(deployment.dispatcher, SETTINGS) == 2
    assert titles(deployment) == ["another user's", "first", "second"]
    assert_invariants(deployment)


def _cancels(deployment: Deployment, user: UserId) -> None:
    begin(deployment, user, order("cancel", status="pending"))


def _rows(deployment: Deployment, user: UserId) -> None:
    leave(deployment, user, "late")


def _trigger(deployment: Deployment, user: UserId) -> None:
    ended = deployment.task(user)
    cancel(deployment.app, user, ended, actor=ME)
    graph = NewGraph([NewTask("late", "echo")])
    add_trigger(deployment.app, user, lone_dag_id(ended), graph, LOOSE, actor=ME, when="finished")


@pytest.mark.parametrize(
    ("prepare", "sweep"),
    [
        (_cancels, run_bulks),
        (_rows, lambda db: process_inbox(db, SETTINGS)),
        (_trigger, lambda db: fire_due(db, LOOSE)),
    ],
)
def test_a_sweep_checks_again_under_the_lane_lock_that_the_user_is_enabled(
    deployment: Deployment,
    user: UserId,
    connect: Callable[..., Db],
    prepare: Callable[[Deployment, UserId], None],
    sweep: Callable[[Db], int],
) -> None:
    """The sweep has chosen the user already when the user is shut out."""
    task = deployment.task(user, title="early")
    prepare(deployment, user)
    before = titles(deployment)
    as_admin = partial(connect, role="overnight_admin")
    shutting = Rival(as_admin, "shutting", disable_user, user)
    sweeping = Rival(connect, "sweeping", sweep)

    assert meet_at_lane(connect, user, shutting, sweeping) == [True, 0]

    assert titles(deployment) == before
    assert deployment.state(task) == "ready"
    assert_invariants(deployment)


def test_a_run_of_a_disabled_user_ends_but_spawns_nothing(api_user: ApiUser) -> None:
    api_user.created()
    laptop = register_agent(api_user)
    work = laptop.begin()
    before = laptop.report(work, "spawn", key="one", task={"title": "before"})

    disable_user(api_user.deployment.app, api_user.user)

    assert laptop.report(work, "heartbeat").status_code == 200
    refused = laptop.report(work, "spawn", key="two", task={"title": "more"})
    assert (refused.status_code, refused.json()["code"]) == (403, "USER_DISABLED")
    # A repeated spawn of an existing child returns that child.
    again = laptop.report(work, "spawn", key="one", task={"title": "before"})
    assert (again.status_code, again.json()["id"]) == (200, before.json()["id"])
    assert laptop.report(work, "complete", output={"n": 1}).status_code == 200
    assert api_user.deployment.state(api_user.row_id(work["task_id"])) == "completed"
    assert titles(api_user.deployment)[1:] == ["before"]


def test_a_run_in_a_worker_of_a_disabled_user_spawns_nothing(
    deployment: Deployment, user: UserId
) -> None:
    run = deployment.running(user)
    disable_user(deployment.app, user)

    seed = NewChild(NewTask("child", "echo"), "child")
    with pytest.raises(UserDisabled, match="owner is disabled"):
        spawn(deployment.dispatcher, user, run.claim, seed, SpawnCaps(LOOSE))

    assert deployment.settle(run, Returned())
    assert_invariants(deployment)
