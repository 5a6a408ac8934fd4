"""Sequences that once broke the house, found by the state machine, each kept as a test."""

from datetime import timedelta
from uuid import UUID

from overnight_server.dispatch.publish import bundled
from overnight_server.domain.claims import Claim
from overnight_server.gate.claim import Bundling, Terms, claim
from overnight_server.maintenance.reap import end_overdue, reap
from overnight_server.outcome.presence import leave
from tests.support.house import CLAIM_TTL, POOL, House

LIVENESS = timedelta(seconds=15)
GRACE = timedelta(seconds=10)


def test_a_run_lost_long_ago_is_the_reapers_and_not_overdue(house: House) -> None:
    user = house.user()
    house.agent()
    run = house.running(user, timeout_seconds=600)
    killed: list[Claim] = []
    house.move_clock(timedelta(hours=8))

    ended = end_overdue(house.dispatcher, grace=GRACE, kill=killed.append)
    reap(house.dispatcher)

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


def test_quick_and_single_tasks_share_no_slot(house: House) -> None:
    house.run("INSERT INTO paces (type, seconds) VALUES ('quick', 0.001)")
    house.agent(slots=2)
    for turn, kind in enumerate(("quick", "echo", "quick", "quick", "echo")):
        house.task(house.user(id=UUID(int=turn)), type=kind)

    taken = claim(
        house.dispatcher,
        POOL,
        holder="dispatcher",
        terms=Terms(CLAIM_TTL, LIVENESS, bundling=Bundling()),
    )

    assert sorted(len(message) for message in bundled(taken.claims)) == [1, 3]
