"""Runs that agents give back: the owner's own agents are billed, and repeated releases count."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from overnight.errors import StaleAttempt
from overnight_server.control.claim_tokens import verify
from overnight_server.domain.ids import TaskId
from overnight_server.domain.results import Returned
from overnight_server.domain.verdicts import FREE_RELEASES
from overnight_server.maintenance.promote import promote
from overnight_server.maintenance.reap import reap
from overnight_server.outcome.agent_claims import HeldClaim, read_claim, settle_claim
from overnight_server.store.db import Db
from tests.support.api_user import ApiUser, serve_api
from tests.support.deployment import LEASE, Deployment
from tests.support.pull_agent import PullAgent, register_agent
from tests.support.rivals import Rival, meet_at_lane

WORKED = timedelta(seconds=18)


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        yield api_user


@pytest.fixture
def agent(api_user: ApiUser) -> PullAgent:
    api_user.created(type="echo", max_attempts=2)
    return register_agent(api_user)


def used_seconds(agent: PullAgent, work: dict[str, Any]) -> float:
    deployment = agent.api_user.deployment
    billed = "SELECT coalesce(sum(seconds), 0) AS n FROM usage_ledger WHERE task_id = :id"
    return float(deployment.one(billed, id=agent.api_user.row_id(work["task_id"]))["n"])


def row(agent: PullAgent, work: dict[str, Any]) -> Any:
    return agent.api_user.deployment.row(agent.api_user.row_id(work["task_id"]))


def held(agent: PullAgent, work: dict[str, Any]) -> HeldClaim:
    db = agent.api_user.deployment.dispatcher
    task_id = TaskId(agent.api_user.row_id(work["task_id"]))
    return read_claim(db, verify(db, task_id, work["token"]).claim, LEASE)


def released(held_claim: HeldClaim) -> Any:
    return held_claim.handed_back("shutdown", cost_usd=0.0, tokens={})


@pytest.mark.parametrize("reason", ["shutdown", "window_closed", "busy"])
def test_what_an_own_agent_worked_is_billed_whatever_its_reason(
    agent: PullAgent, reason: str
) -> None:
    work = agent.begin()
    agent.api_user.deployment.move_clock(WORKED)

    assert agent.report(work, "release", reason=reason).status_code == 200

    assert used_seconds(agent, work) == pytest.approx(18, abs=2)
    assert (row(agent, work)["state"], row(agent, work)["attempts"]) == ("ready", 0)
    assert agent.report(work, "release", reason=reason).status_code == 200, "no answer was heard"
    assert used_seconds(agent, work) == pytest.approx(18, abs=2)


def test_a_claim_that_was_not_started_is_released_for_nothing(agent: PullAgent) -> None:
    for _ in range(FREE_RELEASES + 2):
        work = agent.work()
        agent.api_user.deployment.move_clock(timedelta(seconds=5))
        assert agent.report(work, "release").status_code == 200

    assert used_seconds(agent, work) == 0
    assert row(agent, work)["attempts"] == 0


@pytest.mark.parametrize("reason", ["shutdown", "window_closed"])
def test_repeated_releases_spend_attempts(agent: PullAgent, reason: str) -> None:
    deployment = agent.api_user.deployment
    attempts = []
    for _ in range(FREE_RELEASES + 2):
        work = agent.begin()
        deployment.move_clock(WORKED)
        assert agent.report(work, "release", reason=reason).status_code == 200
        attempts.append(row(agent, work)["attempts"])
        deployment.move_clock(timedelta(days=1))
        deployment.run("UPDATE agents SET last_heartbeat_at = clock()")
        promote(deployment.dispatcher)

    assert attempts == [0] * FREE_RELEASES + [1, 2]
    assert row(agent, work)["state"] == "dead_lettered"
    assert row(agent, work)["failure_reason"] == "released_too_often"
    assert used_seconds(agent, work) == pytest.approx(18 * (FREE_RELEASES + 2), abs=4)


def test_the_closed_window_of_the_owner_counts_no_release(agent: PullAgent) -> None:
    deployment = agent.api_user.deployment
    for _ in range(FREE_RELEASES + 2):
        work = agent.begin()
        deployment.run("UPDATE lanes SET stops_runs_at = clock()")
        assert agent.report(work, "heartbeat").json()["answer"] == "hand_back"
        assert agent.report(work, "release", reason="window_closed").status_code == 200
        deployment.run("UPDATE lanes SET stops_runs_at = NULL")

    assert (row(agent, work)["state"], row(agent, work)["attempts"]) == ("ready", 0)


def test_an_agent_of_the_operators_is_not_billed_to_the_owner(api_user: ApiUser) -> None:
    api_user.created(type="echo")
    operator = api_user.new_user(is_admin=True)
    agent = register_agent(operator, serves="everyone")
    work = agent.begin()
    api_user.deployment.move_clock(WORKED)

    assert agent.report(work, "release").status_code == 200

    assert used_seconds(agent, work) == 0
    assert row(agent, work)["state"] == "ready"


@pytest.mark.parametrize("first", ["release", "complete"])
def test_a_release_and_a_result_at_once_bill_the_run_once(
    agent: PullAgent, connect: Callable[..., Db], first: str
) -> None:
    work = agent.begin()
    agent.api_user.deployment.move_clock(WORKED)
    held_claim = held(agent, work)
    rivals = [
        Rival(connect, "release", settle_claim, held_claim, released(held_claim)),
        Rival(connect, "complete", settle_claim, held_claim, Returned("done")),
    ]
    rivals.sort(key=lambda rival: rival.name != first)

    with pytest.raises(StaleAttempt):
        meet_at_lane(connect, agent.api_user.user, *rivals)

    assert used_seconds(agent, work) == pytest.approx(18, abs=2)
    assert row(agent, work)["state"] == ("ready" if first == "release" else "completed")


@pytest.mark.parametrize("first", ["release", "reaper"])
def test_a_release_and_the_reaper_at_once_end_the_run_once(
    agent: PullAgent, connect: Callable[..., Db], first: str
) -> None:
    work = agent.begin()
    held_claim = held(agent, work)
    agent.api_user.deployment.move_clock(timedelta(minutes=5))
    release = Rival(connect, "release", settle_claim, held_claim, released(held_claim))
    reaper = Rival(connect, "reaper", reap)
    order = (release, reaper) if first == "release" else (reaper, release)

    if first == "release":
        assert meet_at_lane(connect, agent.api_user.user, *order) == [None, 0]
    else:
        with pytest.raises(StaleAttempt):
            meet_at_lane(connect, agent.api_user.user, *order)

    outcomes = agent.api_user.deployment.rows("SELECT outcome FROM attempts")
    assert [each["outcome"] for each in outcomes] == [
        "released" if first == "release" else "worker_lost"
    ]
    expected = 300 if first == "release" else 0
    assert used_seconds(agent, work) == pytest.approx(expected, abs=2)
