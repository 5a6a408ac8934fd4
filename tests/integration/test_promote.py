"""Retries whose wait is over become ready, once, and not a moment earlier."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from overnight_server.control.cancel import cancel
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.domain.results import Raised
from overnight_server.domain.retry import RetryPolicy, Strategy
from overnight_server.maintenance import promote as promoter
from overnight_server.maintenance.promote import promote
from overnight_server.store.db import Db
from tests.support.house import House
from tests.support.rivals import Rival, meet_at_lane

WAIT = timedelta(seconds=60)
POLICY = RetryPolicy(Strategy.FIXED, initial_delay_sec=60, jitter=False)


def test_a_retry_becomes_ready_when_its_wait_is_over(house: House) -> None:
    _, task_id = _retrying(house)
    early = promote(house.dispatcher)
    house.move_clock(WAIT)

    due = promote(house.dispatcher)

    row = house.row(task_id)
    assert (early, due) == (0, 1)
    assert (row["state"], row["retry_at"], row["attempts"]) == ("ready", None, 1)


def test_promoting_again_finds_nothing(house: House) -> None:
    _retrying(house)
    house.move_clock(WAIT)
    promote(house.dispatcher)

    assert promote(house.dispatcher) == 0


def test_more_than_a_batch_is_promoted_in_one_sweep(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promoter, "BATCH", 2)
    users = [_retrying(house)[0] for _ in range(5)]
    house.move_clock(WAIT)

    assert promote(house.dispatcher) == 5
    assert [house.lane(user)["ready"] for user in users] == [1] * 5


def test_two_promoters_promote_once(house: House, connect: Callable[..., Db]) -> None:
    user, task_id = _retrying(house)
    house.move_clock(WAIT)

    counts = meet_at_lane(
        connect, user, *(Rival(connect, f"promoter-{n}", promote) for n in range(2))
    )

    assert counts == [1, 0]
    assert _moves(house, task_id).count("ready") == 2


def test_a_promotion_behind_a_cancel_leaves_the_task_cancelled(
    house: House, connect: Callable[..., Db]
) -> None:
    user, task_id = _retrying(house)
    house.move_clock(WAIT)

    answers = meet_at_lane(
        connect, user, _canceller(connect, user, task_id), Rival(connect, "promoter", promote)
    )

    assert answers == ["cancelled", 0]
    assert house.state(task_id) == "cancelled"


def test_a_cancel_behind_a_promotion_cancels_all_the_same(
    house: House, connect: Callable[..., Db]
) -> None:
    user, task_id = _retrying(house)
    house.move_clock(WAIT)

    answers = meet_at_lane(
        connect, user, Rival(connect, "promoter", promote), _canceller(connect, user, task_id)
    )

    assert answers == [1, "cancelled"]
    assert _moves(house, task_id)[-2:] == ["ready", "cancelled"]
    assert house.lane(user)["waiting"] == 0


def _canceller(connect: Callable[..., Db], user: UserId, task_id: TaskId) -> Rival:
    return Rival(connect, "canceller", cancel, user, task_id, actor="human:me")


def _retrying(house: House) -> tuple[UserId, TaskId]:
    house.agent()
    user = house.user()
    run = house.running(user, retry=POLICY)
    house.settle(run, Raised("error", "no luck"))
    return user, run.claim.task_id


def _moves(house: House, task_id: TaskId) -> list[str]:
    events = house.rows("SELECT to_state FROM events WHERE task_id = :id ORDER BY seq", id=task_id)
    return [event["to_state"] for event in events]
