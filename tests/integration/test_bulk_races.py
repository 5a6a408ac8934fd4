"""Concurrent and killed bulk workers: no task is changed twice and none is left out."""

import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from overnight_server.control.bulk import StartedBulk, cancel_bulk, start
from overnight_server.domain.ids import UserId
from overnight_server.intake.new_graph import NewTask
from overnight_server.intake.submit import submit_graph
from overnight_server.maintenance import bulk as working
from overnight_server.maintenance.bulk import run_bulks
from overnight_server.store.db import Db
from tests.support.bulk import (
    ME,
    begin,
    counts,
    dead,
    finish,
    get_operation,
    moves,
    order,
)
from tests.support.deployment import LOOSE, Deployment
from tests.support.graphs import assert_invariants
from tests.support.rivals import Rival, held_lane, meet_at_lane, queue_up
from tests.support.workers import ROOT


@pytest.fixture
def user(deployment: Deployment) -> UserId:
    deployment.agent()
    return deployment.user()


def test_two_bulk_workers_change_each_task_once(
    deployment: Deployment,
    user: UserId,
    connect: Callable[..., Db],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(working, "CHUNK", 2)
    tasks = [dead(deployment, user) for _ in range(5)]
    bulk_id = begin(deployment, user, order("retry", status="failed"))
    rivals = [Rival(connect, f"worker-{n}", run_bulks) for n in (1, 2)]

    answers = meet_at_lane(connect, user, *rivals)

    assert sum(answers) == 5
    assert counts(get_operation(deployment, user, bulk_id)) == (5, 5, 0, {})
    assert all(moves(deployment, task, "ready")[1:] == [ME] for task in tasks)
    assert len(deployment.rows("SELECT 1 FROM dead_letters WHERE resolution = 'retry'")) == 5
    assert_invariants(deployment)


def test_a_bulk_worker_after_a_stop_does_nothing(
    deployment: Deployment, user: UserId, connect: Callable[..., Db]
) -> None:
    task = deployment.task(user)
    bulk_id = begin(deployment, user, order("cancel", type="echo"))
    worker = Rival(connect, "worker", run_bulks)

    with held_lane(connect, user):
        queue_up(connect, [worker])
        cancel_bulk(deployment.app, user, bulk_id, actor=ME)

    assert worker.answer() == 0
    assert deployment.state(task) == "ready"
    assert get_operation(deployment, user, bulk_id).done == 0


def test_a_task_submitted_during_the_start_is_not_changed(
    deployment: Deployment, user: UserId, connect: Callable[..., Db]
) -> None:
    deployment.task(user)
    asks = Rival(
        lambda name: connect(name, role="overnight_admin"),
        "asks",
        start,
        user,
        order("cancel", type="echo"),
        actor=ME,
    )
    submits = Rival(
        lambda name: connect(name, role="overnight_admin"),
        "submits",
        submit_graph,
        user,
        [NewTask("late", "echo")],
        LOOSE,
    )

    with held_lane(connect, user):
        # Its id is made, and perhaps its time of birth, before the operation begins.
        queue_up(connect, [asks, submits])
    started: StartedBulk = asks.answer()
    [late] = submits.answer()
    finish(deployment)

    assert deployment.state(late.task_id) == "ready"
    assert counts(get_operation(deployment, user, started.bulk_id)) == (1, 1, 0, {})


@pytest.mark.parametrize("point", ["bulk.before_commit", "bulk.after_commit"])
def test_a_bulk_operation_continues_after_a_killed_worker(
    deployment: Deployment, user: UserId, database_url: str, point: str
) -> None:
    tasks = [dead(deployment, user) for _ in range(5)]
    bulk_id = begin(deployment, user, order("retry", status="failed"))
    program = (
        "from overnight_server import fault_points\n"
        "from overnight_server.maintenance import bulk\n"
        "from overnight_server.store.db import DISPATCHER, Db\n"
        f"fault_points.arm('{point}=kill'); bulk.CHUNK = 2\n"
        f"bulk.run_bulks(Db.connect({database_url!r}, role=DISPATCHER))"
    )

    died = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    half = get_operation(deployment, user, bulk_id)
    finish(deployment)

    assert died.returncode == -signal.SIGKILL
    assert half.done == (2 if point == "bulk.after_commit" else 0)
    assert counts(get_operation(deployment, user, bulk_id)) == (5, 5, 0, {})
    assert all(len(moves(deployment, task, "ready")) == 2 for task in tasks)
    assert_invariants(deployment)
