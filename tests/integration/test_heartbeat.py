"""Saying "still here": the lease grows, progress travels, and the answer is the truth."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import text

from overnight_server.control.cancel import cancel
from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import TaskId
from overnight_server.domain.results import Returned
from overnight_server.outcome.heartbeat import HeartbeatAnswer, heartbeat
from overnight_server.store.statements import statement
from tests.support.deployment import LEASE, Deployment


def test_a_heartbeat_extends_the_lease_from_now(deployment: Deployment) -> None:
    deployment.agent()
    run = deployment.running(deployment.user())
    before = deployment.row(run.claim.task_id)
    deployment.move_clock(timedelta(seconds=20))

    answer = heartbeat(deployment.dispatcher, run.claim, lease=LEASE)

    after = deployment.row(run.claim.task_id)
    assert answer is HeartbeatAnswer.CONTINUE
    assert after["expires_at"] - before["expires_at"] >= timedelta(seconds=20)
    assert after["revision"] == before["revision"]


def test_progress_stays_until_the_next_report(deployment: Deployment) -> None:
    deployment.agent()
    run = deployment.running(deployment.user())

    heartbeat(deployment.dispatcher, run.claim, lease=LEASE, progress={"percent": 40})
    heartbeat(deployment.dispatcher, run.claim, lease=LEASE)

    assert deployment.row(run.claim.task_id)["progress"] == {"percent": 40}


def test_a_heartbeat_after_a_cancel_is_answered_with_cancel(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    run = deployment.running(user)
    cancel(deployment.app, user, run.claim.task_id, actor="human:me")

    assert heartbeat(deployment.dispatcher, run.claim, lease=LEASE) is HeartbeatAnswer.CANCEL


@pytest.mark.parametrize(
    "spoil",
    [
        lambda claim: replace(claim, token=uuid4()),
        lambda claim: replace(claim, epoch=claim.epoch + 1),
        lambda claim: replace(claim, task_id=TaskId(uuid4())),
    ],
    ids=["forged token", "wrong epoch", "another task"],
)
def test_a_heartbeat_without_a_held_claim_is_answered_with_lost(
    deployment: Deployment, spoil: Callable[[Claim], Claim]
) -> None:
    deployment.agent()
    run = deployment.running(deployment.user())
    before = deployment.row(run.claim.task_id)

    answer = heartbeat(
        deployment.dispatcher, spoil(run.claim), lease=LEASE, progress={"percent": 1}
    )

    assert answer is HeartbeatAnswer.LOST
    assert deployment.row(run.claim.task_id) == before


def test_a_heartbeat_after_the_settle_is_answered_with_lost(deployment: Deployment) -> None:
    deployment.agent()
    run = deployment.running(deployment.user())
    deployment.settle(run, Returned())

    assert heartbeat(deployment.dispatcher, run.claim, lease=LEASE) is HeartbeatAnswer.LOST


def test_a_claim_that_was_never_started_has_no_heartbeat(deployment: Deployment) -> None:
    deployment.agent()
    deployment.task(deployment.user())
    [claimed] = deployment.claim().claims
    before = deployment.row(claimed.claim.task_id)

    assert heartbeat(deployment.dispatcher, claimed.claim, lease=LEASE) is HeartbeatAnswer.LOST
    assert deployment.row(claimed.claim.task_id) == before


def test_a_heartbeat_past_the_lease_keeps_a_run_that_was_not_reaped(deployment: Deployment) -> None:
    deployment.agent()
    run = deployment.running(deployment.user())
    deployment.move_clock(LEASE * 2)

    assert heartbeat(deployment.dispatcher, run.claim, lease=LEASE) is HeartbeatAnswer.CONTINUE


def test_heartbeats_touch_no_index(deployment: Deployment) -> None:
    """An index on the lease would turn every heartbeat into writes to all indexes."""
    deployment.agent()
    run = deployment.running(deployment.user())
    beat = {
        "task_id": run.claim.task_id,
        "epoch": run.claim.epoch,
        "token": run.claim.token,
        "lease": 30,
        "progress": '{"percent": 1}',
    }
    # These counters include earlier statements that this session has not reported yet.
    counted = text(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 'tasks'"
    )

    with deployment.dispatcher.engine.begin() as tx:
        updates_before, hot_before = tx.execute(counted).one()
        for _ in range(10):
            assert tx.execute(statement("heartbeat"), beat).one_or_none() is not None
        updates, hot = tx.execute(counted).one()

    assert (updates - updates_before, hot - hot_before) == (10, 10)
    history = deployment.rows("SELECT to_state FROM events ORDER BY seq")
    assert [event["to_state"] for event in history] == ["ready", "claimed", "running"]
