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
from overnight_server.outcome.heartbeat import Answer, heartbeat
from overnight_server.store.statements import statement
from tests.support.house import LEASE, House


def test_a_heartbeat_extends_the_lease_from_now(house: House) -> None:
    house.agent()
    run = house.running(house.user())
    before = house.row(run.claim.task_id)
    house.move_clock(timedelta(seconds=20))

    answer = heartbeat(house.dispatcher, run.claim, lease=LEASE)

    after = house.row(run.claim.task_id)
    assert answer is Answer.CONTINUE
    assert after["expires_at"] - before["expires_at"] >= timedelta(seconds=20)
    assert after["revision"] == before["revision"]


def test_progress_stays_until_the_next(house: House) -> None:
    house.agent()
    run = house.running(house.user())

    heartbeat(house.dispatcher, run.claim, lease=LEASE, progress={"percent": 40})
    heartbeat(house.dispatcher, run.claim, lease=LEASE)

    assert house.row(run.claim.task_id)["progress"] == {"percent": 40}


def test_a_run_whose_owner_cancelled_hears_of_it(house: House) -> None:
    user = house.user()
    house.agent()
    run = house.running(user)
    cancel(house.app, user, run.claim.task_id, actor="human:me")

    assert heartbeat(house.dispatcher, run.claim, lease=LEASE) is Answer.CANCEL


@pytest.mark.parametrize(
    "spoil",
    [
        lambda claim: replace(claim, token=uuid4()),
        lambda claim: replace(claim, epoch=claim.epoch + 1),
        lambda claim: replace(claim, task_id=TaskId(uuid4())),
    ],
    ids=["forged token", "wrong epoch", "another task"],
)
def test_whoever_holds_nothing_hears_that_it_is_lost(
    house: House, spoil: Callable[[Claim], Claim]
) -> None:
    house.agent()
    run = house.running(house.user())
    before = house.row(run.claim.task_id)

    answer = heartbeat(house.dispatcher, spoil(run.claim), lease=LEASE, progress={"percent": 1})

    assert answer is Answer.LOST
    assert house.row(run.claim.task_id) == before


def test_a_settled_run_hears_that_it_is_lost(house: House) -> None:
    house.agent()
    run = house.running(house.user())
    house.settle(run, Returned())

    assert heartbeat(house.dispatcher, run.claim, lease=LEASE) is Answer.LOST


def test_a_claim_that_was_never_started_has_no_heartbeat(house: House) -> None:
    house.agent()
    house.task(house.user())
    [claimed] = house.claim().claims
    before = house.row(claimed.claim.task_id)

    assert heartbeat(house.dispatcher, claimed.claim, lease=LEASE) is Answer.LOST
    assert house.row(claimed.claim.task_id) == before


def test_a_heartbeat_past_the_lease_keeps_a_run_nobody_took(house: House) -> None:
    house.agent()
    run = house.running(house.user())
    house.move_clock(LEASE * 2)

    assert heartbeat(house.dispatcher, run.claim, lease=LEASE) is Answer.CONTINUE


def test_heartbeats_touch_no_index(house: House) -> None:
    """An index on the lease would turn every heartbeat into writes to all indexes."""
    house.agent()
    run = house.running(house.user())
    beat = {
        "task_id": run.claim.task_id,
        "epoch": run.claim.epoch,
        "token": run.claim.token,
        "lease": 30,
        "progress": '{"percent": 1}',
    }
    # What this session has not reported yet, so earlier statements of it count as well.
    counted = text(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 'tasks'"
    )

    with house.dispatcher.engine.begin() as tx:
        updates_before, hot_before = tx.execute(counted).one()
        for _ in range(10):
            assert tx.execute(statement("heartbeat"), beat).one_or_none() is not None
        updates, hot = tx.execute(counted).one()

    assert (updates - updates_before, hot - hot_before) == (10, 10)
    history = house.rows("SELECT to_state FROM events ORDER BY seq")
    assert [event["to_state"] for event in history] == ["ready", "claimed", "running"]
