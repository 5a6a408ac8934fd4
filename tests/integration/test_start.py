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
from tests.support.house import AGENT, CLAIM_TTL, LEASE, House
from tests.support.rivals import Rival, meet_at_task


def test_a_fresh_claim_starts(house: House) -> None:
    user, claimed = _claimed(house)

    run = start(house.dispatcher, claimed.claim, holder="worker-7", lease=LEASE)

    row = house.row(claimed.claim.task_id)
    attempt = house.one("SELECT * FROM attempts")
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
def test_a_message_that_does_not_fit_changes_nothing(
    house: House, spoil: Callable[[Claim], Claim]
) -> None:
    _, claimed = _claimed(house)
    before = _everything(house)

    run = start(house.dispatcher, spoil(claimed.claim), holder=AGENT, lease=LEASE)

    assert run is None
    assert _everything(house) == before


def test_the_same_message_twice_starts_once(house: House) -> None:
    _, claimed = _claimed(house)
    first = house.start(claimed)
    before = _everything(house)

    second = house.start(claimed, agent="another worker")

    assert first is not None
    assert second is None
    assert _everything(house) == before


def test_a_claim_that_waited_too_long_does_not_start(house: House) -> None:
    _, claimed = _claimed(house)
    house.move_clock(CLAIM_TTL + timedelta(seconds=1))
    before = _everything(house)

    assert house.start(claimed) is None
    assert _everything(house) == before


def test_the_message_of_an_earlier_claim_does_not_start_the_next(house: House) -> None:
    _, old = _claimed(house)
    release(house.dispatcher, [old], reason="broker")
    [new] = house.claim().claims

    assert house.start(old) is None
    assert house.start(new) is not None


def test_two_workers_with_one_message_begin_one_run(
    house: House, connect: Callable[..., Db]
) -> None:
    _, claimed = _claimed(house)
    rivals = [
        Rival(connect, f"worker-{n}", start, claimed.claim, holder=f"worker-{n}", lease=LEASE)
        for n in range(2)
    ]

    first, second = meet_at_task(connect, claimed.claim.task_id, *rivals)

    assert first is not None
    assert second is None
    assert house.row(claimed.claim.task_id)["claimed_by"] == "worker-0"


def test_a_start_that_comes_after_a_cancel_finds_nothing(
    house: House, connect: Callable[..., Db]
) -> None:
    user, claimed = _claimed(house)

    stopped, run = meet_at_task(
        connect,
        claimed.claim.task_id,
        _canceller(connect, user, claimed),
        _starter(connect, claimed),
    )

    assert (stopped, run) == (State.CANCELLED, None)
    assert house.state(claimed.claim.task_id) == "cancelled"
    assert house.lane(user)["active"] == 0


def test_a_cancel_that_comes_after_a_start_asks_the_run_to_stop(
    house: House, connect: Callable[..., Db]
) -> None:
    user, claimed = _claimed(house)

    run, stopped = meet_at_task(
        connect,
        claimed.claim.task_id,
        _starter(connect, claimed),
        _canceller(connect, user, claimed),
    )

    assert run is not None
    assert stopped is State.RUNNING
    assert house.row(claimed.claim.task_id)["cancel_requested_at"] is not None


def _starter(connect: Callable[..., Db], claimed: Claimed) -> Rival:
    return Rival(connect, "starter", start, claimed.claim, holder=AGENT, lease=LEASE)


def _canceller(connect: Callable[..., Db], user: UserId, claimed: Claimed) -> Rival:
    return Rival(connect, "canceller", cancel, user, claimed.claim.task_id, actor="human:me")


def _claimed(house: House) -> tuple[UserId, Claimed]:
    user = house.user()
    house.agent()
    house.task(user)
    [claimed] = house.claim().claims
    return user, claimed


def _everything(house: House) -> list[object]:
    tables = ("tasks", "attempts", "events", "lanes", "dags", "usage_ledger")
    return [house.rows(f"SELECT * FROM {table} ORDER BY 1") for table in tables]
