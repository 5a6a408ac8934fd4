"""The gate under rivals: limits hold at every instant, and nobody starves."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from sqlalchemy import text

from overnight_server.domain.ids import UserId
from overnight_server.domain.plans import PlanTier
from overnight_server.domain.results import Interrupted, Returned
from overnight_server.gate.claim import claim
from overnight_server.outcome.settle import settle
from overnight_server.outcome.start import start
from overnight_server.store.db import Db
from overnight_server.store.statements import statement
from tests.support.house import AGENT, LEASE, POOL, TERMS, House

HOUR = 3600


def test_a_user_gets_no_more_than_the_plan_allows(house: House) -> None:
    user = house.user(PlanTier.PRO)
    house.agent(slots=10)
    for _ in range(5):
        house.task(user, timeout_seconds=60)

    taken = house.claim()

    assert len(taken.claims) == 3
    assert taken.more is False
    assert house.lane(user)["active"] == 3


def test_eight_claimers_never_exceed_a_limit_of_three(
    house: House, connect: Callable[..., Db]
) -> None:
    user = house.user(max_concurrent_agents=3)
    house.agent(slots=100)
    for _ in range(60):
        house.task(user, timeout_seconds=60)
    stop = threading.Event()
    seen: list[int] = []

    def rival(number: int) -> None:
        db = connect(f"claimer-{number}", pool_size=1)
        while not stop.is_set():
            taken = claim(db, POOL, holder=f"d{number}", terms=TERMS, limit=2)
            for claimed in taken.claims:
                run = start(db, claimed.claim, holder=AGENT, lease=LEASE)
                assert run is not None
                seen.append(_active(house))
                assert settle(db, run, Returned(), agent=AGENT)

    rivals = [threading.Thread(target=rival, args=(number,)) for number in range(8)]
    for thread in rivals:
        thread.start()
    while house.one("SELECT count(*) AS n FROM tasks WHERE state <> 'completed'")["n"]:
        stop.wait(0.05)
    stop.set()
    for thread in rivals:
        thread.join()

    assert max(seen) <= 3
    assert house.rows(OVER_LIMIT, limit=3) == []
    assert house.one("SELECT count(*) AS n FROM attempts")["n"] == 60
    assert dict(house.lane(user)) | {"active": 0, "ready": 0, "waiting": 0} == house.lane(user)


# At no instant do more attempts overlap than the limit: a sweep over begin and end points.
OVER_LIMIT = """
    SELECT at, running FROM (
        SELECT at, sum(step) OVER (ORDER BY at, step ROWS UNBOUNDED PRECEDING) AS running
          FROM (SELECT claimed_at AS at, 1 AS step FROM attempts
                UNION ALL SELECT ended_at, -1 FROM attempts WHERE ended_at IS NOT NULL) points) s
     WHERE running > :limit
"""


def _active(house: House) -> int:
    sql = "SELECT count(*) AS n FROM tasks WHERE is_active(state)"
    return int(house.one(sql)["n"])


def test_slots_are_never_promised_twice(house: House) -> None:
    house.agent(slots=2)
    for _ in range(3):
        house.task(house.user())

    first, second = house.claim(), house.claim()

    assert len(first.claims) == 2
    assert len(second.claims) == 0


def test_the_whole_house_has_a_cap_of_its_own(house: House) -> None:
    house.agent(slots=10)
    for _ in range(3):
        house.task(house.user())

    assert len(house.claim(slots_max=1).claims) == 1
    assert len(house.claim(slots_max=1).claims) == 0


def test_without_a_live_worker_nothing_is_claimed(house: House) -> None:
    house.task(house.user())

    assert house.claim().claims == ()


def test_users_with_fewest_running_go_first(house: House) -> None:
    busy, idle = house.user(), house.user()
    house.agent(slots=3)
    for _ in range(3):
        house.task(busy)
    house.claim(limit=2)
    house.task(idle)

    [claimed] = house.claim().claims

    assert claimed.user_id == idle


def test_inside_a_user_the_urgent_go_first_and_then_the_old(house: House) -> None:
    user = house.user()
    house.agent(slots=1)
    background = house.task(user, priority=90)
    normal = house.task(user, priority=50)
    critical = house.task(user, priority=5)

    order = []
    for _ in range(3):
        [claimed] = house.claim().claims
        order.append(claimed.claim.task_id)
        run = house.start(claimed)
        assert run is not None
        house.settle(run, Returned())

    assert order == [critical, normal, background]


def test_waiting_makes_a_task_more_urgent_but_never_critical(house: House) -> None:
    user = house.user()
    house.agent(slots=1)
    old = house.task(user, priority=60)
    house.move_clock(timedelta(hours=20))
    house.task(user, priority=50)
    critical = house.task(user, priority=9)

    [first] = house.claim().claims
    run = house.start(first)
    assert run is not None
    house.settle(run, Returned())
    [second] = house.claim().claims

    assert first.claim.task_id == critical
    assert second.claim.task_id == old


def test_two_tasks_of_one_project_take_turns(house: House) -> None:
    user = house.user()
    house.agent()
    first = house.task(user, project_id="website")
    house.task(user, project_id="website")
    other = house.task(user, project_id="app")

    taken = house.claim()
    again = house.claim()

    assert {one.claim.task_id for one in taken.claims} == {first, other}
    assert not again.claims


def test_a_lock_key_is_free_again_when_its_holder_ends(house: House) -> None:
    user = house.user()
    house.agent()
    house.task(user, locks=["repo:site"])
    second = house.task(user, locks=["repo:site"])
    [claimed] = house.claim().claims
    run = house.start(claimed)
    assert run is not None
    assert house.claim().claims == []

    house.settle(run, Returned())

    [next_one] = house.claim().claims
    assert next_one.claim.task_id == second


def test_a_task_waits_for_a_pool_that_can_run_it(house: House) -> None:
    user = house.user()
    house.agent(slots=5, capabilities=["python"])
    plain = house.task(user)
    gpu = house.task(user, required_capabilities=["gpu", "python"])

    first = house.claim()
    house.agent(slots=5, agent_id="gpu-host", pool="gpu", capabilities=["gpu", "python", "docker"])
    second = house.claim(pool="gpu")

    assert [one.claim.task_id for one in first.claims] == [plain]
    assert [one.claim.task_id for one in second.claims] == [gpu]


def test_a_pool_promises_only_what_all_its_workers_can_do(house: House) -> None:
    user = house.user()
    house.agent(agent_id="big", capabilities=["gpu"])
    house.agent(agent_id="small", capabilities=[])
    house.task(user, required_capabilities=["gpu"])

    assert house.claim().claims == []


def test_hours_are_promised_one_task_after_the_other(house: House) -> None:
    user = house.user(monthly_agent_hours_limit=1)
    house.agent()
    for _ in range(5):
        house.task(user, timeout_seconds=1500)

    taken = house.claim()

    assert len(taken.claims) == 2
    assert house.lane(user)["reserved_seconds"] == 3000


def test_a_task_too_long_for_the_rest_lets_a_shorter_one_pass(house: House) -> None:
    user = house.user(monthly_agent_hours_limit=1)
    house.agent()
    house.task(user, timeout_seconds=2 * HOUR)
    short = house.task(user, timeout_seconds=600)

    [claimed] = house.claim().claims

    assert claimed.claim.task_id == short


def test_a_task_never_gets_more_time_than_the_plan(house: House) -> None:
    user = house.user(max_task_duration_minutes=30)
    house.agent()

    capped = house.running(user, timeout_seconds=2 * HOUR)
    own = house.running(user, timeout_seconds=60)

    assert (capped.granted_seconds, capped.plan_limited) == (1800, True)
    assert (own.granted_seconds, own.plan_limited) == (60, False)


def test_ten_exhausted_users_do_not_starve_the_eleventh(house: House) -> None:
    house.agent(slots=1)
    for _ in range(15):
        exhausted = house.user(monthly_agent_hours_limit=0)
        house.run("UPDATE users SET on_exhausted = 'hold' WHERE id = :id", id=exhausted)
        house.task(exhausted)
    lucky = house.user()
    house.task(lucky)

    [claimed] = house.claim().claims

    assert claimed.user_id == lucky


def test_two_hundred_blocked_lanes_do_not_hold_up_the_rest(house: House) -> None:
    house.agent(slots=1)
    for _ in range(200):
        house.task(house.user(), required_capabilities=["none has this"])
    lucky = house.user()
    house.task(lucky)

    # The lucky one is the last in line: nobody was served yet, and ids decide.
    house.run("UPDATE lanes SET last_served_at = clock() WHERE user_id = :id", id=lucky)

    [claimed] = house.claim().claims

    assert claimed.user_id == lucky
    # and nobody looks into the blocked lanes again until something about them changes
    parked = house.one("SELECT count(*) AS n FROM lanes WHERE parked_for = '{default}'")["n"]
    assert parked == 200


def test_a_parked_lane_is_looked_at_again_when_it_changes(house: House) -> None:
    user = house.user()
    house.agent()
    house.task(user, required_capabilities=["nobody"])
    assert house.claim().claims == []
    assert house.lane(user)["parked_for"] == ["default"]

    startable = house.task(user)

    [claimed] = house.claim().claims
    assert claimed.claim.task_id == startable


def test_a_plan_change_holds_from_the_next_claim(house: House) -> None:
    user = house.user(max_concurrent_agents=1)
    house.agent()
    for _ in range(5):
        house.task(user, timeout_seconds=60)
    assert len(house.claim().claims) == 1

    house.run("UPDATE users SET max_concurrent_agents = 4 WHERE id = :id", id=user)
    upgraded = house.claim()
    house.run("UPDATE users SET max_concurrent_agents = 2 WHERE id = :id", id=user)
    downgraded = house.claim()

    assert len(upgraded.claims) == 3
    assert len(downgraded.claims) == 0
    assert house.lane(user)["active"] == 4


def test_a_batch_never_overruns_its_limit_under_the_worst_plan(house: House) -> None:
    """Nested loops re-run a plain LIMIT subquery per row; the materialised one holds."""
    for _ in range(10):
        user = house.user()
        for _ in range(4):
            house.task(user, timeout_seconds=60)
    house.agent(slots=3)

    with house.dispatcher.engine.begin() as tx:
        tx.execute(text("DISCARD PLANS"))
        for switch in ("hashjoin", "mergejoin", "material", "hashagg"):
            tx.execute(text(f"SET LOCAL enable_{switch} = off"))
        users = tx.execute(
            statement("lock_lanes_to_serve"), {"aside": POOL, "few": 20, "limit": 3}
        ).scalars()
        rows = tx.execute(
            statement("claim"),
            {
                "users": users.all(),
                "only": None,
                "pool": POOL,
                "aside": POOL,
                "parks": True,
                "free": 3,
                "messages": 3,
                "bundles": [],
                "tokens": [uuid4() for _ in range(3)],
                "now": datetime.now(UTC),
                "bundle_seconds": 1,
                "bundle_max": 1,
                "limit": 3,
                "per_lane": 3,
                "capabilities": [],
                "usd_left": None,
                "holder": "d",
                "begins": False,
                "elsewhere": [],
                "types": None,
                "ttl": 60,
                "sources": ["ready"],
                "target": "claimed",
            },
        ).all()

    assert len(rows) == 3
    assert _active(house) == 3


def test_a_claim_leaves_a_lane_that_a_submit_is_holding(
    house: House, connect: Callable[..., Db]
) -> None:
    held, free = house.user(), house.user()
    house.agent()
    house.task(held)
    house.task(free)

    with connect("submitter").engine.begin() as tx:
        tx.execute(statement("lock_lanes"), {"users": [held]})
        taken = house.claim()

        again = house.claim()

    assert [one.user_id for one in taken.claims] == [free]
    assert not again.claims
    assert again.more is True
    assert [one.user_id for one in house.claim().claims] == [held]


def test_a_handed_back_task_keeps_its_place(house: House) -> None:
    user = house.user()
    house.agent(slots=1)
    first = house.running(user)
    house.task(user)

    house.settle(first, Interrupted())

    [claimed] = house.claim().claims
    assert claimed.claim.task_id == first.claim.task_id
    assert claimed.claim.epoch == first.claim.epoch + 1


def test_among_equals_the_larger_plan_goes_first(house: House) -> None:
    house.agent()
    users: dict[str, UserId] = {}
    for tier in ("free", "enterprise", "pro", "team"):
        users[tier] = house.user(plan_tier=tier)
        house.task(users[tier], timeout_seconds=60)

    order = [house.claim(limit=1).claims[0].user_id for _ in range(4)]

    assert order == [users[tier] for tier in ("enterprise", "team", "pro", "free")]
