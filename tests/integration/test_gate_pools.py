"""Several pools at one user's lane: the pools' own locks do not stand between them."""

import threading
from collections.abc import Callable

from app.domain.results import Returned
from app.gate.claim import claim
from app.outcome.settle import settle
from app.outcome.start import start
from app.store.db import Db
from tests.support.house import AGENT, LEASE, TERMS, House
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
