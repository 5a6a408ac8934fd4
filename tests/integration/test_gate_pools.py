"""Several pools at one user's lane: what each takes and leaves, and that none overruns a limit."""

import threading
from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

from overnight_server.control.drain import drain
from overnight_server.domain.results import Returned
from overnight_server.gate.claim import claim, claim_one
from overnight_server.maintenance.reap import retire_agents
from overnight_server.outcome.presence import leave
from overnight_server.outcome.settle import settle
from overnight_server.outcome.start import start
from overnight_server.store.db import Db
from tests.support.house import AGENT, LEASE, POOL, TERMS, House
from tests.support.invariants import violations

POOLS = ("red", "green", "blue", "white")


def test_claimers_of_four_pools_never_exceed_a_limit_of_three(
    house: House, connect: Callable[..., Db]
) -> None:
    user = house.user(max_concurrent_agents=3)
    for pool in POOLS:
        house.agent(agent_id=f"{AGENT}-{pool}", pool=pool, capabilities=[pool])
    # Each pool wants tasks of its own, so it is not the tasks' rows that keep them apart.
    for number in range(80):
        house.task(user, timeout_seconds=60, required_capabilities=[POOLS[number % len(POOLS)]])
    done = threading.Event()

    def work(pool: str) -> None:
        db = connect(f"claimer-{pool}", pool_size=1)
        while not done.is_set():
            taken = claim(db, pool, holder=pool, terms=TERMS, limit=3)
            for claimed in taken.claims:
                run = start(db, claimed.claim, holder=AGENT, lease=LEASE)
                assert run is not None
                assert settle(db, run, Returned(), agent=AGENT)

    threads = [threading.Thread(target=work, args=(pool,)) for pool in POOLS]
    for thread in threads:
        thread.start()
    while house.lane(user)["waiting"] + house.lane(user)["active"]:
        done.wait(0.05)
    done.set()
    for thread in threads:
        thread.join()

    assert violations(house.owner, drained=True) == {}


def taken(house: House, pool: str) -> set[UUID]:
    return {one.claim.task_id for one in house.claim(pool=pool).claims}


def test_a_pool_leaves_a_type_to_the_workers_that_know_it(house: House) -> None:
    house.agent(types=["echo"])
    house.agent(agent_id="studio", pool="films", types=["echo", "film"])
    user = house.user()
    film = house.task(user, type="film")

    assert taken(house, POOL) == set()
    assert taken(house, "films") == {film}


def test_a_type_that_nobody_knows_may_go_anywhere(house: House) -> None:
    house.agent(types=["echo"])
    user = house.user()
    task = house.task(user, type="film")

    assert taken(house, POOL) == {task}


def test_a_type_that_not_all_of_a_pool_know_waits_for_the_others(house: House) -> None:
    house.agent(types=["echo"])
    house.agent(agent_id="newer", types=["echo", "film"])
    user = house.user()
    film = house.task(user, type="film")

    assert taken(house, POOL) == set()

    leave(house.dispatcher, AGENT)
    assert taken(house, POOL) == {film}


def test_a_draining_worker_still_keeps_its_types_from_others(house: House) -> None:
    house.agent(types=["echo"])
    house.agent(agent_id="studio", pool="films", types=["film"])
    drain(house.dispatcher, "studio")
    user = house.user()
    house.task(user, type="film")

    assert taken(house, POOL) == set()


def test_a_lane_is_looked_into_again_when_the_last_who_knew_a_type_left(house: House) -> None:
    house.agent(types=["echo"])
    house.agent(agent_id="studio", pool="films", types=["film"])
    user = house.user()
    film = house.task(user, type="film")
    assert taken(house, POOL) == set()
    assert house.lane(user)["parked_for"] == [POOL]

    leave(house.dispatcher, "studio")

    assert taken(house, POOL) == {film}


def test_a_lane_is_looked_into_again_when_the_last_who_knew_a_type_fell_silent(
    house: House,
) -> None:
    house.agent(types=["echo"])
    house.agent(agent_id="studio", pool="films", types=["film"])
    user = house.user()
    film = house.task(user, type="film")
    assert taken(house, POOL) == set()
    house.run("UPDATE agents SET last_heartbeat_at = clock() - interval '1 h' WHERE id = 'studio'")

    assert retire_agents(house.dispatcher, silence=timedelta(minutes=1)) == 1

    assert taken(house, POOL) == {film}


def test_whoever_runs_a_task_itself_is_asked_for_no_handler(house: House) -> None:
    house.agent(agent_id="studio", pool="films", types=["film"])
    user = house.user()
    film = house.task(user, type="film")

    claimed = claim_one(house.dispatcher, holder="me", terms=TERMS)

    assert claimed is not None
    assert claimed.claim.task_id == film
