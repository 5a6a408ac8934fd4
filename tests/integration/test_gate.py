"""The gate under concurrency: limits hold at every instant, and no user starves."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from sqlalchemy import text

from overnight.models.enums import PlanTier
from overnight_server.domain.ids import UserId
from overnight_server.domain.results import Interrupted, Returned
from overnight_server.gate.claim import claim
from overnight_server.outcome.settle import settle
from overnight_server.outcome.start import start
from overnight_server.store.db import Db
from overnight_server.store.statements import statement
from tests.support.deployment import AGENT, CLAIM_SETTINGS, LEASE, POOL, Deployment

HOUR = 3600


def test_a_user_gets_no_more_than_the_plan_allows(deployment: Deployment) -> None:
    user = deployment.user(PlanTier.PRO)
    deployment.agent(slots=10)
    for _ in range(5):
        deployment.task(user, timeout_seconds=60)

    taken = deployment.claim()

    assert len(taken.claims) == 3
    assert taken.more is False
    assert deployment.lane(user)["active"] == 3


def test_eight_claimers_never_exceed_a_limit_of_three(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    user = deployment.user(max_concurrent_agents=3)
    deployment.agent(slots=100)
    for _ in range(60):
        deployment.task(user, timeout_seconds=60)
    stop = threading.Event()
    seen: list[int] = []

    def rival(number: int) -> None:
        db = connect(f"claimer-{number}", pool_size=1)
        while not stop.is_set():
            taken = claim(db, POOL, holder=f"d{number}", claim_settings=CLAIM_SETTINGS, limit=2)
            for claimed in taken.claims:
                run = start(db, claimed.claim, holder=AGENT, lease=LEASE)
                assert run is not None
                seen.append(_active(deployment))
                assert settle(db, run, Returned(), agent=AGENT)

    rivals = [threading.Thread(target=rival, args=(number,)) for number in range(8)]
    for thread in rivals:
        thread.start()
    while deployment.one("SELECT count(*) AS n FROM tasks WHERE state <> 'completed'")["n"]:
        stop.wait(0.05)
    stop.set()
    for thread in rivals:
        thread.join()

    assert max(seen) <= 3
    assert deployment.rows(OVER_LIMIT, limit=3) == []
    assert deployment.one("SELECT count(*) AS n FROM attempts")["n"] == 60
    assert dict(deployment.lane(user)) | {"active": 0, "ready": 0, "waiting": 0} == deployment.lane(
        user
    )


# At no instant do more attempts overlap than the limit: a sweep over begin and end points.
OVER_LIMIT = """
    SELECT at, running FROM (
        SELECT at, sum(step) OVER (ORDER BY at, step ROWS UNBOUNDED PRECEDING) AS running
          FROM (SELECT claimed_at AS at, 1 AS step FROM attempts
                UNION ALL SELECT ended_at, -1 FROM attempts WHERE ended_at IS NOT NULL) points) s
     WHERE running > :limit
"""


def _active(deployment: Deployment) -> int:
    sql = "SELECT count(*) AS n FROM tasks WHERE is_active(state)"
    return int(deployment.one(sql)["n"])


def test_slots_are_never_assigned_twice(deployment: Deployment) -> None:
    deployment.agent(slots=2)
    for _ in range(3):
        deployment.task(deployment.user())

    first, second = deployment.claim(), deployment.claim()

    assert len(first.claims) == 2
    assert len(second.claims) == 0


def test_the_whole_deployment_has_a_cap_of_its_own(deployment: Deployment) -> None:
    deployment.agent(slots=10)
    for _ in range(3):
        deployment.task(deployment.user())

    assert len(deployment.claim(slots_max=1).claims) == 1
    assert len(deployment.claim(slots_max=1).claims) == 0


def test_without_a_live_worker_nothing_is_claimed(deployment: Deployment) -> None:
    deployment.task(deployment.user())

    assert deployment.claim().claims == ()


def test_users_with_fewest_running_go_first(deployment: Deployment) -> None:
    busy, idle = deployment.user(), deployment.user()
    deployment.agent(slots=3)
    for _ in range(3):
        deployment.task(busy)
    deployment.claim(limit=2)
    deployment.task(idle)

    [claimed] = deployment.claim().claims

    assert claimed.user_id == idle


def test_tasks_of_a_user_start_by_priority_and_then_by_age(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent(slots=1)
    background = deployment.task(user, priority=90)
    normal = deployment.task(user, priority=50)
    critical = deployment.task(user, priority=5)

    order = []
    for _ in range(3):
        [claimed] = deployment.claim().claims
        order.append(claimed.claim.task_id)
        run = deployment.start(claimed)
        assert run is not None
        deployment.settle(run, Returned())

    assert order == [critical, normal, background]


def test_waiting_raises_a_task_but_never_to_critical(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent(slots=1)
    old = deployment.task(user, priority=60)
    deployment.move_clock(timedelta(hours=20))
    deployment.task(user, priority=50)
    critical = deployment.task(user, priority=9)

    [first] = deployment.claim().claims
    run = deployment.start(first)
    assert run is not None
    deployment.settle(run, Returned())
    [second] = deployment.claim().claims

    assert first.claim.task_id == critical
    assert second.claim.task_id == old


def test_two_tasks_of_one_project_run_one_after_the_other(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    first = deployment.task(user, project_id="website")
    deployment.task(user, project_id="website")
    other = deployment.task(user, project_id="app")

    taken = deployment.claim()
    again = deployment.claim()

    assert {claimed.claim.task_id for claimed in taken.claims} == {first, other}
    assert not again.claims


def test_a_lock_key_is_free_again_when_its_holder_ends(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    deployment.task(user, locks=["repo:site"])
    second = deployment.task(user, locks=["repo:site"])
    [claimed] = deployment.claim().claims
    run = deployment.start(claimed)
    assert run is not None
    assert deployment.claim().claims == []

    deployment.settle(run, Returned())

    [next_one] = deployment.claim().claims
    assert next_one.claim.task_id == second


def test_a_task_waits_for_a_pool_that_can_run_it(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent(slots=5, capabilities=["python"])
    plain = deployment.task(user)
    gpu = deployment.task(user, required_capabilities=["gpu", "python"])

    first = deployment.claim()
    deployment.agent(
        slots=5, agent_id="gpu-host", pool="gpu", capabilities=["gpu", "python", "docker"]
    )
    second = deployment.claim(pool="gpu")

    assert [claimed.claim.task_id for claimed in first.claims] == [plain]
    assert [claimed.claim.task_id for claimed in second.claims] == [gpu]


def test_a_pool_offers_only_capabilities_that_all_its_workers_have(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent(agent_id="big", capabilities=["gpu"])
    deployment.agent(agent_id="small", capabilities=[])
    deployment.task(user, required_capabilities=["gpu"])

    assert deployment.claim().claims == []


def test_hours_are_reserved_one_task_after_the_other(deployment: Deployment) -> None:
    user = deployment.user(monthly_agent_hours_limit=1)
    deployment.agent()
    for _ in range(5):
        deployment.task(user, timeout_seconds=1500)

    taken = deployment.claim()

    assert len(taken.claims) == 2
    assert deployment.lane(user)["reserved_seconds"] == 3000


def test_a_shorter_task_passes_one_that_is_too_long_for_the_hours_left(
    deployment: Deployment,
) -> None:
    user = deployment.user(monthly_agent_hours_limit=1)
    deployment.agent()
    deployment.task(user, timeout_seconds=2 * HOUR)
    short = deployment.task(user, timeout_seconds=600)

    [claimed] = deployment.claim().claims

    assert claimed.claim.task_id == short


def test_a_task_never_gets_more_time_than_the_plan(deployment: Deployment) -> None:
    user = deployment.user(max_task_duration_minutes=30)
    deployment.agent()

    capped = deployment.running(user, timeout_seconds=2 * HOUR)
    own = deployment.running(user, timeout_seconds=60)

    assert (capped.granted_seconds, capped.plan_limited) == (1800, True)
    assert (own.granted_seconds, own.plan_limited) == (60, False)


def test_ten_exhausted_users_do_not_starve_the_eleventh(deployment: Deployment) -> None:
    deployment.agent(slots=1)
    for _ in range(15):
        exhausted = deployment.user(monthly_agent_hours_limit=0)
        deployment.run("UPDATE users SET on_exhausted = 'hold' WHERE id = :id", id=exhausted)
        deployment.task(exhausted)
    lucky = deployment.user()
    deployment.task(lucky)

    [claimed] = deployment.claim().claims

    assert claimed.user_id == lucky


def test_two_hundred_blocked_lanes_do_not_delay_the_rest(deployment: Deployment) -> None:
    deployment.agent(slots=1)
    for _ in range(200):
        deployment.task(deployment.user(), required_capabilities=["none has this"])
    lucky = deployment.user()
    deployment.task(lucky)

    # The user with a startable task is last: no user was served yet, so ids decide the order.
    deployment.run("UPDATE lanes SET last_served_at = clock() WHERE user_id = :id", id=lucky)

    [claimed] = deployment.claim().claims

    assert claimed.user_id == lucky
    # the gate does not read the blocked lanes again until they change
    parked = deployment.one("SELECT count(*) AS n FROM lanes WHERE skipped_by_pools = '{default}'")[
        "n"
    ]
    assert parked == 200


def test_a_skipped_lane_is_considered_again_when_it_changes(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    deployment.task(user, required_capabilities=["nobody"])
    assert deployment.claim().claims == []
    assert deployment.lane(user)["skipped_by_pools"] == ["default"]

    startable = deployment.task(user)

    [claimed] = deployment.claim().claims
    assert claimed.claim.task_id == startable


def test_a_plan_change_applies_to_the_next_claim(deployment: Deployment) -> None:
    user = deployment.user(max_concurrent_agents=1)
    deployment.agent()
    for _ in range(5):
        deployment.task(user, timeout_seconds=60)
    assert len(deployment.claim().claims) == 1

    deployment.run("UPDATE users SET max_concurrent_agents = 4 WHERE id = :id", id=user)
    upgraded = deployment.claim()
    deployment.run("UPDATE users SET max_concurrent_agents = 2 WHERE id = :id", id=user)
    downgraded = deployment.claim()

    assert len(upgraded.claims) == 3
    assert len(downgraded.claims) == 0
    assert deployment.lane(user)["active"] == 4


def test_a_batch_never_overruns_its_limit_under_the_worst_plan(deployment: Deployment) -> None:
    """Nested loops re-run a plain LIMIT subquery per row; the materialised one holds."""
    for _ in range(10):
        user = deployment.user()
        for _ in range(4):
            deployment.task(user, timeout_seconds=60)
    deployment.agent(slots=3)

    with deployment.dispatcher.engine.begin() as tx:
        tx.execute(text("DISCARD PLANS"))
        for switch in ("hashjoin", "mergejoin", "material", "hashagg"):
            tx.execute(text(f"SET LOCAL enable_{switch} = off"))
        users = tx.execute(
            statement("lock_lanes_in_fair_order"), {"skip_as": POOL, "min_lanes": 20, "limit": 3}
        ).scalars()
        rows = tx.execute(
            statement("claim"),
            {
                "users": users.all(),
                "only": None,
                "pool": POOL,
                "skip_as": POOL,
                "skips_lanes": True,
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
                "starts": False,
                "types": None,
                "ttl": 60,
                "sources": ["ready"],
                "target": "claimed",
            },
        ).all()

    assert len(rows) == 3
    assert _active(deployment) == 3


def test_a_claim_skips_a_lane_that_a_submit_has_locked(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    held, free = deployment.user(), deployment.user()
    deployment.agent()
    deployment.task(held)
    deployment.task(free)

    with connect("submitter").engine.begin() as tx:
        tx.execute(statement("lock_lanes"), {"users": [held]})
        taken = deployment.claim()

        again = deployment.claim()

    assert [claimed.user_id for claimed in taken.claims] == [free]
    assert not again.claims
    assert again.more is True
    assert [claimed.user_id for claimed in deployment.claim().claims] == [held]


def test_a_released_task_keeps_its_place(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent(slots=1)
    first = deployment.running(user)
    deployment.task(user)

    deployment.settle(first, Interrupted())

    [claimed] = deployment.claim().claims
    assert claimed.claim.task_id == first.claim.task_id
    assert claimed.claim.epoch == first.claim.epoch + 1


def test_among_equals_the_larger_plan_goes_first(deployment: Deployment) -> None:
    deployment.agent()
    users: dict[str, UserId] = {}
    for tier in ("free", "enterprise", "pro", "team"):
        users[tier] = deployment.user(plan_tier=tier)
        deployment.task(users[tier], timeout_seconds=60)

    order = [deployment.claim(limit=1).claims[0].user_id for _ in range(4)]

    assert order == [users[tier] for tier in ("enterprise", "team", "pro", "free")]
