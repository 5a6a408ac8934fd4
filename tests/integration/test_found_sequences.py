"""Sequences that once broke the house, found by the state machine, each kept as a test."""

from datetime import timedelta

from app.domain.claims import Claim
from app.maintenance.reap import end_overdue, reap
from app.outcome.presence import leave
from tests.support.house import House

LIVENESS = timedelta(seconds=15)
GRACE = timedelta(seconds=10)


def test_a_run_lost_long_ago_is_the_reapers_and_not_overdue(house: House) -> None:
    user = house.user()
    house.agent()
    run = house.running(user, timeout_seconds=600)
    killed: list[Claim] = []
    house.move_clock(timedelta(hours=8))

    ended = end_overdue(house.dispatcher, grace=GRACE, kill=killed.append)
    reap(house.dispatcher, liveness=LIVENESS)

    assert (ended, killed) == (0, [])
    assert house.state(run.claim.task_id) == "retrying"
    assert house.one("SELECT outcome FROM attempts")["outcome"] == "worker_lost"
    assert house.lane(user)["used_seconds"] == 0


def test_a_worker_that_leaves_no_longer_holds_its_pool_back(house: House) -> None:
    house.agent(agent_id="able", capabilities=["gpu"])
    house.agent(agent_id="unable")
    task_id = house.task(house.user(), required_capabilities=["gpu"])
    before = house.claim().claims

    leave(house.dispatcher, "unable")
    [claimed] = house.claim().claims

    assert before == []
    assert claimed.claim.task_id == task_id
