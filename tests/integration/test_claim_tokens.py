"""Tokens bound to one claim: good while it is held, and for that task alone."""

from datetime import timedelta
from uuid import uuid4

import pytest

from overnight_server.control.cancel import cancel
from overnight_server.control.claim_tokens import ClaimOver, issue, verify
from overnight_server.domain.claims import Claim, Run
from overnight_server.domain.errors import StaleAttempt, TaskNotFound
from overnight_server.domain.ids import new_task_id
from overnight_server.domain.results import Raised, Returned
from overnight_server.maintenance.reap import reap
from overnight_server.store.db import APP, Db
from tests.support import logins
from tests.support.house import LEASE, House


@pytest.fixture
def run(house: House) -> Run:
    house.agent()
    return house.running(house.user(), max_attempts=3)


@pytest.fixture
def front(house: House, database_url: str) -> Db:
    """The API's way in, serving nobody yet: a token is shown before anyone knows whose it is."""
    return Db.connect(logins.for_api(database_url), role=APP, pool_size=1)


def test_a_token_leads_to_the_claim_and_its_owner(run: Run, front: Db) -> None:
    token = issue(run.claim)

    holder = verify(front, run.claim.task_id, token)

    assert holder.claim == run.claim
    assert holder.user_id == run.user_id
    assert str(run.claim.token) not in token
    front.close()


def test_a_token_of_one_task_opens_no_other(house: House, run: Run) -> None:
    other = house.task(run.user_id)

    for task_id in (other, new_task_id()):
        with pytest.raises(TaskNotFound):
            verify(house.dispatcher, task_id, issue(run.claim))


def test_the_first_attempts_token_is_stale_during_the_second(house: House, run: Run) -> None:
    token = issue(run.claim)
    house.settle(run, Raised("error", "again", retryable=True, wait_seconds=0.0))
    house.run("UPDATE tasks SET state = 'ready', retry_at = NULL")
    [again] = house.claim().claims
    before = house.row(run.claim.task_id)

    with pytest.raises(StaleAttempt):
        verify(house.dispatcher, run.claim.task_id, token)

    assert house.row(run.claim.task_id) == before
    assert verify(house.dispatcher, run.claim.task_id, issue(again.claim)).claim == again.claim


@pytest.mark.parametrize("end", ["settled", "expired", "reaped", "cancelled"])
def test_a_token_ends_with_its_claim(house: House, run: Run, end: str) -> None:
    token = issue(run.claim)
    assert verify(house.dispatcher, run.claim.task_id, token)

    match end:
        case "settled":
            house.settle(run, Returned("done"))
        case "expired":
            house.move_clock(LEASE + timedelta(seconds=1))
        case "reaped":
            house.move_clock(LEASE + timedelta(seconds=1))
            reap(house.dispatcher)
        case "cancelled":
            waiting = house.task(run.user_id)
            [claimed] = house.claim().claims
            token = issue(claimed.claim)
            cancel(house.app, run.user_id, waiting, actor="user:x")
            with pytest.raises(ClaimOver):
                verify(house.dispatcher, waiting, token)
            return

    with pytest.raises(ClaimOver):
        verify(house.dispatcher, run.claim.task_id, token)


def test_no_token_can_be_made_up(house: House, run: Run) -> None:
    claim = run.claim
    good = issue(claim)
    forged = [
        issue(Claim(claim.task_id, claim.epoch, uuid4())),
        issue(Claim(claim.task_id, claim.epoch + 1, claim.token)),
        good[:-1] + ("0" if good[-1] != "0" else "1"),
        good.upper(),
        good + " ",
        good.replace("claim", "live"),
        f"overnight_claim_{claim.task_id.hex}_{claim.epoch}_",
        f"overnight_claim_{claim.task_id.hex}_99999999999_{good[-64:]}",
        f"overnight_claim_{claim.task_id.hex}_0_{good[-64:]}",
        "",
        "x" * 10_000,
        "' OR 1=1; --",
    ]

    for token in forged:
        with pytest.raises(ClaimOver):
            verify(house.dispatcher, claim.task_id, token)
    assert verify(house.dispatcher, claim.task_id, good)
