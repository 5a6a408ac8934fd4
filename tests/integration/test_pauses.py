"""Pauses: nothing new starts, running tasks continue, and claims in progress respect them."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from overnight.errors import PoolNotFound, UserNotFound
from overnight_server.control.pauses import EVERYTHING, PauseSubject, pause, resume
from overnight_server.domain.ids import UserId
from overnight_server.domain.results import Returned
from overnight_server.gate.claim import (
    Capacity,
    ClaimRequest,
    LockedLanes,
    _claim_tasks,
    claim,
    claim_one,
)
from overnight_server.insight.pauses import list_pauses
from overnight_server.insight.queue_status import queue_status
from overnight_server.store.db import Db
from overnight_server.store.statements import statement
from tests.support.deployment import CLAIM_SETTINGS, POOL, Deployment
from tests.support.rivals import Rival, held_lane, held_pool, held_task, meet_at_task, queue_up

ME = "human:test"


def _target(kind: str, user: UserId) -> PauseSubject:
    return {"user": PauseSubject(user_id=user), "pool": PauseSubject(pool=POOL), "all": EVERYTHING}[
        kind
    ]


KINDS = pytest.mark.parametrize("kind", ["user", "pool", "all"])


@KINDS
def test_nothing_new_starts_until_it_is_resumed(deployment: Deployment, kind: str) -> None:
    user = deployment.user()
    deployment.agent()
    run = deployment.running(user)
    deployment.task(user)
    target = _target(kind, user)

    assert pause(deployment.dispatcher, target, actor=ME, note="the disk is full") is True
    held = deployment.claim()
    settled = deployment.settle(run, Returned())
    assert resume(deployment.dispatcher, target, actor=ME) is True

    assert (list(held.claims), settled) == ([], True)
    assert len(deployment.claim().claims) == 1


@KINDS
def test_a_second_pause_brings_a_note_and_changes_nothing_else(
    deployment: Deployment, kind: str
) -> None:
    user = deployment.user()
    deployment.agent()
    target = _target(kind, user)
    pause(deployment.dispatcher, target, actor=ME, note="first")

    assert pause(deployment.dispatcher, target, actor="human:other") is False
    assert [active_pause.note for active_pause in list_pauses(deployment.dispatcher)] == ["first"]
    assert pause(deployment.dispatcher, target, actor="human:other", note="second") is False

    [kept] = list_pauses(deployment.dispatcher)
    assert (kept.scope, kept.note, kept.paused_by) == (kind, "second", ME)
    assert resume(deployment.dispatcher, target, actor=ME) is True
    assert resume(deployment.dispatcher, target, actor=ME) is False
    assert list_pauses(deployment.dispatcher) == []


def test_ending_one_pause_leaves_the_others(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    deployment.task(user)
    for target in (PauseSubject(user_id=user), EVERYTHING):
        pause(deployment.dispatcher, target, actor=ME)

    resume(deployment.dispatcher, EVERYTHING, actor=ME)
    by_user = list(deployment.claim().claims)
    resume(deployment.dispatcher, PauseSubject(user_id=user), actor=ME)

    assert by_user == []
    assert len(deployment.claim().claims) == 1


def test_a_pause_does_not_affect_other_users_and_pools(deployment: Deployment) -> None:
    paused, free = deployment.user(), deployment.user()
    deployment.agent()
    deployment.agent(agent_id="elsewhere", pool="gpu")
    for user in (paused, free):
        deployment.task(user)
    pause(deployment.dispatcher, PauseSubject(user_id=paused), actor=ME)
    pause(deployment.dispatcher, PauseSubject(pool="gpu"), actor=ME)

    taken = deployment.claim()
    resume(deployment.dispatcher, PauseSubject(user_id=paused), actor=ME)

    assert [claimed.user_id for claimed in taken.claims] == [free]
    assert list(deployment.claim(pool="gpu").claims) == []


def test_a_pause_of_everything_includes_later_pools(deployment: Deployment) -> None:
    pause(deployment.dispatcher, EVERYTHING, actor=ME)
    deployment.agent(pool="new")
    deployment.task(deployment.user())

    assert list(deployment.claim(pool="new").claims) == []
    with deployment.dispatcher.engine.begin() as tx:
        assert tx.execute(statement("open_pools")).all() == []


def test_explain_names_the_pause(deployment: Deployment) -> None:
    user, other = deployment.user(name="ada"), deployment.user(name="bob")
    deployment.agent()
    pause(deployment.dispatcher, PauseSubject(user_id=user), actor=ME, note="unpaid")
    mine, theirs = queue_status(deployment.app, user), queue_status(deployment.app, other)
    pause(deployment.dispatcher, EVERYTHING, actor=ME, note="moving deployment")

    assert [hold.code for hold in mine.held_by] == ["paused"]
    assert "(unpaid)" in mine.held_by[0].message
    assert (mine.can_start_more, theirs.can_start_more) == (False, True)
    assert theirs.held_by == []
    assert queue_status(deployment.app, other).can_start_more is False
    assert [active_pause.target for active_pause in list_pauses(deployment.app)] == ["ada", None]


def test_an_unknown_user_or_pool_cannot_be_paused(deployment: Deployment) -> None:
    with pytest.raises(PoolNotFound, match="'nowhere'"):
        pause(deployment.dispatcher, PauseSubject(pool="nowhere"), actor=ME)
    with pytest.raises(UserNotFound):
        pause(deployment.dispatcher, PauseSubject(user_id=UserId(uuid4())), actor=ME)


def _claim(db: Db) -> int:
    return len(claim(db, POOL, holder="rival", claim_settings=CLAIM_SETTINGS).claims)


def _claim_directly(db: Db) -> bool:
    return claim_one(db, holder="sandbox", claim_settings=CLAIM_SETTINGS) is not None


@KINDS
def test_a_pause_waits_for_a_claim_in_progress_and_then_applies(
    deployment: Deployment, connect: Callable[..., Db], kind: str
) -> None:
    user = deployment.user()
    deployment.agent()
    task_id = deployment.task(user)
    claimer = Rival(connect, "claimer", _claim)
    pauser = Rival(connect, "pauser", pause, _target(kind, user), actor=ME)

    with held_task(connect, task_id):
        queue_up(connect, [claimer, pauser])

    assert (claimer.answer(), pauser.answer()) == (1, True)
    deployment.task(user)
    assert list(deployment.claim().claims) == []


@pytest.mark.parametrize("kind", ["user", "all"])
@pytest.mark.parametrize("is_named", [True, False])
def test_a_pause_also_stops_claims_without_a_pool(
    deployment: Deployment, kind: str, *, is_named: bool
) -> None:
    user = deployment.user()
    deployment.task(user)
    target = _target(kind, user)
    claim_user = user if is_named else None

    pause(deployment.dispatcher, target, actor=ME)
    held = claim_one(
        deployment.dispatcher, holder="sandbox", claim_settings=CLAIM_SETTINGS, user_id=claim_user
    )
    resume(deployment.dispatcher, target, actor=ME)

    assert held is None
    assert (
        claim_one(
            deployment.dispatcher,
            holder="sandbox",
            claim_settings=CLAIM_SETTINGS,
            user_id=claim_user,
        )
        is not None
    )


@pytest.mark.parametrize("kind", ["user", "all"])
def test_a_pause_waits_for_a_claim_without_a_pool(
    deployment: Deployment, connect: Callable[..., Db], kind: str
) -> None:
    user = deployment.user()
    task_id = deployment.task(user)
    claimer = Rival(connect, "claimer", _claim_directly)
    pauser = Rival(connect, "pauser", pause, _target(kind, user), actor=ME)

    assert meet_at_task(connect, task_id, claimer, pauser) == [True, True]


@pytest.mark.parametrize("kind", ["pool", "all"])
def test_a_claim_that_waited_for_a_pause_respects_it(
    deployment: Deployment, connect: Callable[..., Db], kind: str
) -> None:
    user = deployment.user()
    deployment.agent()
    deployment.task(user)
    pauser = Rival(connect, "pauser", pause, _target(kind, user), actor=ME)
    claimer = Rival(connect, "claimer", _claim)

    with held_pool(connect, POOL):
        queue_up(connect, [pauser, claimer])

    assert (pauser.answer(), claimer.answer()) == (True, 0)


def test_a_claim_skips_a_lane_that_is_being_paused(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    user = deployment.user()
    deployment.agent()
    deployment.task(user)
    pauser = Rival(connect, "pauser", pause, PauseSubject(user_id=user), actor=ME)

    with held_lane(connect, user):
        queue_up(connect, [pauser])
        during = list(deployment.claim().claims)
    pauser.answer()

    assert (during, list(deployment.claim().claims)) == ([], [])


def test_a_pass_that_chose_a_lane_before_its_pause_does_not_skip_it_after_the_resume(
    deployment: Deployment,
) -> None:
    """The pass reads eligible lanes, the pause commits, and then the pass locks the lane."""
    user = deployment.user()
    deployment.agent()
    deployment.task(user)
    pause(deployment.dispatcher, PauseSubject(user_id=user), actor=ME)
    request = ClaimRequest([uuid4()], 1, holder="d")
    chosen = LockedLanes([user], 1)

    with deployment.dispatcher.engine.begin() as tx:
        rows = _claim_tasks(tx, POOL, Capacity(1), CLAIM_SETTINGS, request, locked=chosen)
    resume(deployment.dispatcher, PauseSubject(user_id=user), actor=ME)

    assert (list(rows), len(deployment.claim().claims)) == ([], 1)


@KINDS
def test_two_concurrent_pauses_make_one_pause(
    deployment: Deployment, connect: Callable[..., Db], kind: str
) -> None:
    user = deployment.user()
    deployment.agent()
    target = _target(kind, user)
    rivals = [Rival(connect, f"pauser-{n}", pause, target, actor=ME) for n in range(2)]
    hold: Any = held_lane(connect, user) if kind == "user" else held_pool(connect, POOL)

    with hold:
        queue_up(connect, rivals)

    assert [rival.answer() for rival in rivals] == [True, False]
    assert len(list_pauses(deployment.dispatcher)) == 1
