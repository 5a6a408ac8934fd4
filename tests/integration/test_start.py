"""Beginning a run: only the holder of a fresh claim does, and only once."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest

from overnight_server.control.cancel import cancel
from overnight_server.domain.claims import Claim, Claimed
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.domain.lifecycle import State
from overnight_server.outcome.settle import release
from overnight_server.outcome.start import start
from overnight_server.store.db import Db
from tests.support.deployment import AGENT, CLAIM_TTL, LEASE, Deployment
from tests.support.rivals import Rival, meet_at_task


def test_a_fresh_claim_starts(deployment: Deployment) -> None:
    user, claimed = _claimed(deployment)

    run = start(deployment.dispatcher, claimed.claim, holder="worker-7", lease=LEASE)

    row = deployment.row(claimed.claim.task_id)
    attempt = deployment.one("SELECT * FROM attempts")
    assert run is not None
    assert (run.user_id, run.claim) == (user, claimed.claim)
    assert (row["state"], row["claimed_by"]) == ("running", "worker-7")
    assert row["expires_at"] - row["started_at"] == LEASE
    assert (attempt["agent"], attempt["started_at"]) == ("worker-7", row["started_at"])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda claim: replace(claim, token=uuid4()),
        lambda claim: replace(claim, epoch=claim.epoch + 1),
        lambda claim: replace(claim, epoch=claim.epoch - 1),
        lambda claim: replace(claim, task_id=TaskId(uuid4())),
    ],
    ids=["forged token", "epoch to come", "epoch gone by", "another task"],
)
def test_a_message_with_wrong_values_changes_nothing(
    deployment: Deployment, spoil: Callable[[Claim], Claim]
) -> None:
    _, claimed = _claimed(deployment)
    before = _everything(deployment)

    run = start(deployment.dispatcher, spoil(claimed.claim), holder=AGENT, lease=LEASE)

    assert run is None
    assert _everything(deployment) == before


def test_the_same_message_twice_starts_once(deployment: Deployment) -> None:
    _, claimed = _claimed(deployment)
    first = deployment.start(claimed)
    before = _everything(deployment)

    second = deployment.start(claimed, agent="another worker")

    assert first is not None
    assert second is None
    assert _everything(deployment) == before


def test_a_claim_that_waited_too_long_does_not_start(deployment: Deployment) -> None:
    _, claimed = _claimed(deployment)
    deployment.move_clock(CLAIM_TTL + timedelta(seconds=1))
    before = _everything(deployment)

    assert deployment.start(claimed) is None
    assert _everything(deployment) == before


def test_the_message_of_an_earlier_claim_does_not_start_the_next(deployment: Deployment) -> None:
    _, old = _claimed(deployment)
    release(deployment.dispatcher, [old], reason="broker")
    [new] = deployment.claim().claims

    assert deployment.start(old) is None
    assert deployment.start(new) is not None


def test_two_workers_with_one_message_start_one_run(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    _, claimed = _claimed(deployment)
    rivals = [
        Rival(connect, f"worker-{n}", start, claimed.claim, holder=f"worker-{n}", lease=LEASE)
        for n in range(2)
    ]

    first, second = meet_at_task(connect, claimed.claim.task_id, *rivals)

    assert first is not None
    assert second is None
    assert deployment.row(claimed.claim.task_id)["claimed_by"] == "worker-0"


def test_a_start_after_a_cancel_starts_nothing(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    user, claimed = _claimed(deployment)

    stopped, run = meet_at_task(
        connect,
        claimed.claim.task_id,
        _canceller(connect, user, claimed),
        _starter(connect, claimed),
    )

    assert (stopped, run) == (State.CANCELLED, None)
    assert deployment.state(claimed.claim.task_id) == "cancelled"
    assert deployment.lane(user)["active"] == 0


def test_a_cancel_after_a_start_asks_the_run_to_stop(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    user, claimed = _claimed(deployment)

    run, stopped = meet_at_task(
        connect,
        claimed.claim.task_id,
        _starter(connect, claimed),
        _canceller(connect, user, claimed),
    )

    assert run is not None
    assert stopped is State.RUNNING
    assert deployment.row(claimed.claim.task_id)["cancel_requested_at"] is not None


def _starter(connect: Callable[..., Db], claimed: Claimed) -> Rival:
    return Rival(connect, "starter", start, claimed.claim, holder=AGENT, lease=LEASE)


def _canceller(connect: Callable[..., Db], user: UserId, claimed: Claimed) -> Rival:
    return Rival(connect, "canceller", cancel, user, claimed.claim.task_id, actor="human:me")


def _claimed(deployment: Deployment) -> tuple[UserId, Claimed]:
    user = deployment.user()
    deployment.agent()
    deployment.task(user)
    [claimed] = deployment.claim().claims
    return user, claimed


def _everything(deployment: Deployment) -> list[object]:
    tables = ("tasks", "attempts", "events", "lanes", "dags", "usage_ledger")
    return [deployment.rows(f"SELECT * FROM {table} ORDER BY 1") for table in tables]
