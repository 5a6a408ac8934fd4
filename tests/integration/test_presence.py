"""A worker shows itself, and what becomes of its runs when it was away."""

from datetime import timedelta

from overnight_server.maintenance.reap import reap
from overnight_server.outcome.presence import AgentCard
from overnight_worker.presence import show_up
from tests.support.house import AGENT, LEASE, POOL, House

LIVENESS = timedelta(seconds=15)
CARD = AgentCard(AGENT, POOL, (), 2)


def test_a_worker_that_is_new_here_joins(house: House) -> None:
    show_up(house.dispatcher, CARD, liveness=LIVENESS)

    assert _agent(house) == {"id": AGENT, "status": "active", "silent": timedelta(0)}


def test_a_worker_that_is_known_beats(house: House) -> None:
    show_up(house.dispatcher, CARD, liveness=LIVENESS)
    house.run("UPDATE agents SET slots = 7")
    house.move_clock(LIVENESS / 3)

    show_up(house.dispatcher, CARD, liveness=LIVENESS)

    assert _agent(house)["silent"] == timedelta(0)
    assert house.one("SELECT slots FROM agents")["slots"] == 7


def test_what_a_worker_lost_while_it_was_frozen_is_no_crash_of_its_runs(house: House) -> None:
    show_up(house.dispatcher, CARD, liveness=LIVENESS)
    user = house.user()
    run = house.running(user)
    house.move_clock(LEASE + timedelta(seconds=1))

    show_up(house.dispatcher, CARD, liveness=LIVENESS)
    reap(house.dispatcher)

    assert house.one("SELECT outcome FROM attempts")["outcome"] == "worker_lost"
    assert house.state(run.claim.task_id) == "retrying"
    assert house.lane(user)["used_seconds"] == 0
    assert _agent(house)["status"] == "active"


def _agent(house: House) -> dict[str, object]:
    sql = (
        "SELECT id, status, date_trunc('second', clock() - last_heartbeat_at) AS silent FROM agents"
    )
    return dict(house.one(sql))
