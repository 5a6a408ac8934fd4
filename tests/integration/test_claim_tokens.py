"""Claim tokens: valid while the claim is held, and only for its task."""

from datetime import timedelta
from uuid import uuid4

import pytest

from overnight.errors import StaleAttempt, TaskNotFound
from overnight_server.control.cancel import cancel
from overnight_server.control.claim_tokens import ClaimOver, token_of, verify
from overnight_server.domain.claims import Claim, Run
from overnight_server.domain.ids import new_task_id
from overnight_server.domain.results import Raised, Returned
from overnight_server.maintenance.reap import reap
from overnight_server.store.db import APP, Db
from tests.support import logins
from tests.support.deployment import LEASE, Deployment


@pytest.fixture
def run(deployment: Deployment) -> Run:
    deployment.agent()
    return deployment.running(deployment.user(), max_attempts=3)


@pytest.fixture
def front(deployment: Deployment, database_url: str) -> Db:
    """A connection of the API without a user: a token is checked before its user is known."""
    return Db.connect(logins.for_api(database_url), role=APP, pool_size=1)


def test_a_claim_token_identifies_the_claim_and_its_owner(run: Run, front: Db) -> None:
    token = token_of(run.claim)

    holder = verify(front, run.claim.task_id, token)

    assert holder.claim == run.claim
    assert holder.user_id == run.user_id
    assert str(run.claim.token) not in token
    front.close()


def test_a_claim_token_is_refused_for_another_task(deployment: Deployment, run: Run) -> None:
    other = deployment.task(run.user_id)

    for task_id in (other, new_task_id()):
        with pytest.raises(TaskNotFound):
            verify(deployment.dispatcher, task_id, token_of(run.claim))


def test_the_first_attempts_token_is_stale_during_the_second(
    deployment: Deployment, run: Run
) -> None:
    token = token_of(run.claim)
    deployment.settle(run, Raised("error", "again", retryable=True, wait_seconds=0.0))
    deployment.run("UPDATE tasks SET state = 'ready', retry_at = NULL")
    [again] = deployment.claim().claims
    before = deployment.row(run.claim.task_id)

    with pytest.raises(StaleAttempt):
        verify(deployment.dispatcher, run.claim.task_id, token)

    assert deployment.row(run.claim.task_id) == before
    assert (
        verify(deployment.dispatcher, run.claim.task_id, token_of(again.claim)).claim == again.claim
    )


@pytest.mark.parametrize("end", ["settled", "expired", "reaped", "cancelled"])
def test_a_token_ends_with_its_claim(deployment: Deployment, run: Run, end: str) -> None:
    token = token_of(run.claim)
    assert verify(deployment.dispatcher, run.claim.task_id, token)

    match end:
        case "settled":
            deployment.settle(run, Returned("done"))
        case "expired":
            deployment.move_clock(LEASE + timedelta(seconds=1))
        case "reaped":
            deployment.move_clock(LEASE + timedelta(seconds=1))
            reap(deployment.dispatcher)
        case "cancelled":
            waiting = deployment.task(run.user_id)
            [claimed] = deployment.claim().claims
            token = token_of(claimed.claim)
            cancel(deployment.app, run.user_id, waiting, actor="user:x")
            with pytest.raises(ClaimOver):
                verify(deployment.dispatcher, waiting, token)
            return

    with pytest.raises(ClaimOver):
        verify(deployment.dispatcher, run.claim.task_id, token)


def test_an_invented_claim_token_is_refused(deployment: Deployment, run: Run) -> None:
    claim = run.claim
    good = token_of(claim)
    forged = [
        token_of(Claim(claim.task_id, claim.epoch, uuid4())),
        token_of(Claim(claim.task_id, claim.epoch + 1, claim.token)),
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
            verify(deployment.dispatcher, claim.task_id, token)
    assert verify(deployment.dispatcher, claim.task_id, good)
