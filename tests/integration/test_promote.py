"""Retries whose wait is over become ready, once, and not a moment earlier."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from overnight_server.control.cancel import cancel
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.domain.results import Raised
from overnight_server.domain.retry import RetryRules, Strategy
from overnight_server.maintenance import promote as promoter
from overnight_server.maintenance.promote import promote
from overnight_server.store.db import Db
from tests.support.deployment import Deployment
from tests.support.rivals import Rival, meet_at_lane

WAIT = timedelta(seconds=60)
POLICY = RetryRules(Strategy.FIXED, initial_delay_sec=60, jitter=False)


def test_a_retry_becomes_ready_when_its_wait_is_over(deployment: Deployment) -> None:
    _, task_id = _retrying(deployment)
    early = promote(deployment.dispatcher)
    deployment.move_clock(WAIT)

    due = promote(deployment.dispatcher)

    row = deployment.row(task_id)
    assert (early, due) == (0, 1)
    assert (row["state"], row["retry_at"], row["attempts"]) == ("ready", None, 1)


def test_a_second_promotion_changes_nothing(deployment: Deployment) -> None:
    _retrying(deployment)
    deployment.move_clock(WAIT)
    promote(deployment.dispatcher)

    assert promote(deployment.dispatcher) == 0


def test_more_than_a_batch_is_promoted_in_one_sweep(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promoter, "BATCH", 2)
    users = [_retrying(deployment)[0] for _ in range(5)]
    deployment.move_clock(WAIT)

    assert promote(deployment.dispatcher) == 5
    assert [deployment.lane(user)["ready"] for user in users] == [1] * 5


def test_two_promoters_promote_once(deployment: Deployment, connect: Callable[..., Db]) -> None:
    user, task_id = _retrying(deployment)
    deployment.move_clock(WAIT)

    counts = meet_at_lane(
        connect, user, *(Rival(connect, f"promoter-{n}", promote) for n in range(2))
    )

    assert counts == [1, 0]
    assert _moves(deployment, task_id).count("ready") == 2


def test_a_promotion_after_a_cancel_leaves_the_task_cancelled(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    user, task_id = _retrying(deployment)
    deployment.move_clock(WAIT)

    answers = meet_at_lane(
        connect, user, _canceller(connect, user, task_id), Rival(connect, "promoter", promote)
    )

    assert answers == ["cancelled", 0]
    assert deployment.state(task_id) == "cancelled"


def test_a_cancel_after_a_promotion_cancels_the_task(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    user, task_id = _retrying(deployment)
    deployment.move_clock(WAIT)

    answers = meet_at_lane(
        connect, user, Rival(connect, "promoter", promote), _canceller(connect, user, task_id)
    )

    assert answers == [1, "cancelled"]
    assert _moves(deployment, task_id)[-2:] == ["ready", "cancelled"]
    assert deployment.lane(user)["waiting"] == 0


def _canceller(connect: Callable[..., Db], user: UserId, task_id: TaskId) -> Rival:
    return Rival(connect, "canceller", cancel, user, task_id, actor="human:me")


def _retrying(deployment: Deployment) -> tuple[UserId, TaskId]:
    deployment.agent()
    user = deployment.user()
    run = deployment.running(user, retry=POLICY)
    deployment.settle(run, Raised("error", "no luck"))
    return user, run.claim.task_id


def _moves(deployment: Deployment, task_id: TaskId) -> list[str]:
    events = deployment.rows(
        "SELECT to_state FROM events WHERE task_id = :id ORDER BY seq", id=task_id
    )
    return [event["to_state"] for event in events]
