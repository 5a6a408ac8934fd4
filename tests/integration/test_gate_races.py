"""Concurrent claims, plan changes and releases: no limit is exceeded at any instant."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection

from overnight.errors import LockNotHeld, QueueFull, TooManyPending
from overnight.models.enums import PlanTier
from overnight_server.control.adjust_hours import adjust_hours
from overnight_server.control.budgets import set_agent_budget
from overnight_server.control.drain import drain
from overnight_server.control.users import Overrides, change_plan, override_limits, restore_template
from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.domain.results import Raised, Returned
from overnight_server.gate.claim import ClaimSettings, claim, claim_next_for_slot, claim_one
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import NewTask
from overnight_server.intake.submit import submit
from overnight_server.maintenance.locks import release_lock
from overnight_server.maintenance.promote import promote
from overnight_server.maintenance.reap import reap, retire_agents
from overnight_server.maintenance.reset import reset_cycles
from overnight_server.outcome.presence import leave
from overnight_server.outcome.settle import settle, settle_all
from overnight_server.outcome.start import start
from overnight_server.store.db import ADMIN, Db
from tests.support.deployment import (
    AGENT,
    CLAIM_SETTINGS,
    CLAIM_TTL,
    LEASE,
    LIVENESS,
    POOL,
    Deployment,
)
from tests.support.invariants import describe_violations, record_plan_history, violations
from tests.support.rivals import Rival, held_lane, held_pool, held_task, queue_up
from tests.support.wait import wait_until

CLAIMERS = 12
LOCKS = (
    *((), (), ("repo:a",), ("repo:b",), ("repo:a", "repo:b")),
    *(("path:src",), ("path:src/a",), ("path:src/b",)),
)
# Slots held at once in the whole deployment, a sweep over the begin and end of every attempt.
MOST_AT_ONCE = """
    SELECT coalesce(max(running), 0) AS most FROM (
        SELECT sum(step) OVER (ORDER BY at, step ROWS UNBOUNDED PRECEDING) AS running
          FROM (SELECT claimed_at AS at, 1 AS step FROM attempts
                UNION ALL SELECT ended_at, -1 FROM attempts WHERE ended_at IS NOT NULL) points) s
"""


@contextmanager
def busy(*works: Callable[[], None]) -> Iterator[threading.Event]:
    """Repeat each function in its own thread until the block ends; raise what a thread raised."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def repeat(work: Callable[[], None]) -> None:
        try:
            while not stop.is_set():
                work()
        except BaseException as error:  # noqa: BLE001 - raised again in the test's own thread
            failures.append(error)
            stop.set()

    threads = [threading.Thread(target=repeat, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield stop
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]


def claimer(db: Db, number: int, *, slots_max: int | None = None) -> Callable[[], None]:
    """Return a function that claims, starts and settles tasks, some with failures."""
    chance = random.Random(number)

    def work() -> None:
        claim_settings = ClaimSettings(CLAIM_TTL, LIVENESS, slots_max)
        taken = claim(
            db, POOL, holder=f"dispatcher-{number}", claim_settings=claim_settings, limit=3
        )
        for claimed in taken.claims:
            run = start(db, claimed.claim, holder=AGENT, lease=LEASE)
            if run is not None:
                failed = chance.random() < 0.1
                settle(db, run, Raised("error", "no luck") if failed else Returned(), agent=AGENT)

    return work


def test_concurrent_claims_plan_changes_and_releases_break_no_limit(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    chance = random.Random(7)
    record_plan_history(deployment.owner)
    deployment.move_clock(timedelta(0))  # so that no statement meets the clock while it is replaced
    deployment.agent(slots=40)
    users = [deployment.user(PlanTier.PRO, name=name, on_exhausted="hold") for name in "abc"]
    for user in users:
        for _ in range(60):
            deployment.task(user, timeout_seconds=60, locks=chance.choice(LOCKS), max_attempts=20)
    operator, front = connect("operator"), connect("front", role=ADMIN)

    def replan() -> None:
        user = chance.choice(users)
        chance.choice(
            [
                lambda: change_plan(front, user, chance.choice([PlanTier.FREE, PlanTier.PRO])),
                lambda: override_limits(front, user, Overrides(concurrency=chance.randint(1, 5))),
                lambda: restore_template(front, user),
                lambda: adjust_hours(front, user, chance.choice([1, -1]), note="test"),
            ]
        )()

    def release() -> None:
        holders = deployment.rows("SELECT user_id, task_id FROM held_locks LIMIT 5")
        for holder in holders:
            try:
                release_lock(
                    operator,
                    UserId(holder["user_id"]),
                    TaskId(holder["task_id"]),
                    actor="human:olga",
                    kill=_kill_no_process,
                )
            except LockNotHeld:
                continue

    def pass_time() -> None:
        reset_cycles(operator)
        promote(operator)

    works = [claimer(connect(f"claimer-{n}", pool_size=2), n) for n in range(CLAIMERS)]
    with busy(*works, replan, release, pass_time) as stop:
        for _ in range(8):
            stop.wait(0.4)
            deployment.move_clock(timedelta(days=9))
    for user in users:
        change_plan(front, user, PlanTier.ENTERPRISE)
    finish = claimer(deployment.dispatcher, 99)
    for _ in range(400):
        deployment.move_clock(timedelta(minutes=10))
        reap(operator)
        promote(operator)
        finish()
        if not deployment.one("SELECT sum(waiting + active) AS left FROM lanes")["left"]:
            break

    broken = violations(deployment.owner, drained=True)
    assert not broken, describe_violations(broken)
    assert deployment.one("SELECT count(*) AS n FROM attempts")["n"] >= 180


def _kill_no_process(_claim: Claim) -> None:
    """Kill no process: the runs of this test are threads."""


def test_pools_that_fill_at_once_stay_within_the_deployments_cap(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    pools = ("red", "green", "blue")
    for pool in pools:
        deployment.agent(slots=10, agent_id=f"{AGENT}-{pool}", pool=pool)
    for _ in range(12):
        deployment.task(deployment.user())

    def fill(db: Db, pool: str) -> int:
        taken = claim(
            db, pool, holder=pool, claim_settings=ClaimSettings(CLAIM_TTL, LIVENESS, 4), limit=3
        )
        return len(taken.claims)

    rivals = [Rival(connect, f"dispatcher-{pool}", fill, pool) for pool in pools]
    with connect("cap", pool_size=1).engine.begin() as tx:
        tx.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext('overnight.slots'))")
        queue_up(connect, rivals)

    assert sorted(rival.answer() for rival in rivals) == [0, 1, 3]
    assert deployment.one(MOST_AT_ONCE)["most"] == 4


def test_claimers_of_a_capped_deployment_never_hold_more_than_its_slots(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    deployment.agent(slots=50)
    for _ in range(10):
        user = deployment.user()
        for _ in range(6):
            deployment.task(user, timeout_seconds=60)

    works = [claimer(connect(f"c-{n}", pool_size=2), n, slots_max=2) for n in range(6)]
    with busy(*works) as stop:
        while deployment.one("SELECT sum(ready + active) AS left FROM lanes")["left"]:
            stop.wait(0.05)

    assert 1 <= deployment.one(MOST_AT_ONCE)["most"] <= 2


def test_submits_at_once_stay_within_the_users_cap(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    user = deployment.user(max_pending=3)

    rivals = [Rival(connect, f"producer-{n}", try_submit, user, Caps()) for n in range(6)]
    with held_lane(connect, user):
        queue_up(connect, rivals)

    assert [rival.answer() for rival in rivals].count(True) == 3
    assert deployment.lane(user)["waiting"] == 3


def test_submits_of_many_users_at_once_stay_within_the_deployments_cap(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    users = [deployment.user() for _ in range(8)]
    caps = Caps(queue_max_size=5)

    rivals = [Rival(connect, f"p-{n}", try_submit, user, caps) for n, user in enumerate(users)]
    with connect("cap", pool_size=1).engine.begin() as tx:
        tx.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext('overnight.depth'))")
        queue_up(connect, rivals)

    assert [rival.answer() for rival in rivals].count(True) == 5
    assert deployment.one("SELECT sum(waiting) AS n FROM lanes")["n"] == 5


def try_submit(db: Db, user: UserId, caps: Caps) -> bool:
    """Submit a task; return whether it was accepted."""
    try:
        submit(db, user, NewTask("one", "echo"), caps)
    except (TooManyPending, QueueFull):
        return False
    return True


def test_a_downgrade_that_waited_for_a_claim_applies_to_the_next(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    user = deployment.user(PlanTier.PRO)
    deployment.agent()
    for _ in range(6):
        deployment.task(user, timeout_seconds=60)
    assert len(deployment.claim(limit=2).claims) == 2

    def take(db: Db) -> int:
        return len(
            claim(db, POOL, holder="d", claim_settings=ClaimSettings(CLAIM_TTL, LIVENESS)).claims
        )

    downgrade = Rival(
        lambda name: connect(name, role=ADMIN), "admin", change_plan, user, PlanTier.FREE
    )
    with held_pool(connect, POOL), held_lane(connect, user):
        claiming = Rival(connect, "dispatcher", take)
        queue_up(connect, [downgrade, claiming])
    downgrade.answer()

    # The downgrade may come before or after the claim; running tasks continue either way.
    assert claiming.answer() in {0, 1}
    assert deployment.claim().claims == []
    assert deployment.lane(user)["active"] in {2, 3}


POOR = "host-poor:1:boot"
WORKERS = "SELECT id, status, budget_remaining_usd FROM agents ORDER BY id"


@pytest.mark.parametrize(
    ("wanted", "change"),
    [
        ({"required_capabilities": ["gpu"]}, lambda db: drain(db, POOR)),
        ({"required_capabilities": ["gpu"]}, lambda db: leave(db, POOR)),
        (
            {"required_capabilities": ["gpu"]},
            lambda db: retire_agents(db, silence=timedelta(hours=1)),
        ),
        ({"max_cost_usd": 2}, lambda db: set_agent_budget(db, POOR, 2, actor="human:ops")),
    ],
    ids=["drained", "gone", "silent", "richer"],
)
def test_a_running_pass_skips_no_lane_for_what_old_workers_could_do(
    deployment: Deployment,
    connect: Callable[..., Db],
    wanted: dict[str, Any],
    change: Callable[[Db], object],
) -> None:
    deployment.agent(capabilities=["gpu"])
    deployment.agent(agent_id=POOR)
    set_agent_budget(deployment.dispatcher, POOR, 1, actor="human:ops")
    deployment.run(
        "UPDATE agents SET last_heartbeat_at = clock() - interval '2 hours' WHERE id = :id", id=POOR
    )
    other = deployment.task(deployment.user())
    task = deployment.task(deployment.user(), **wanted)
    before = deployment.rows(WORKERS)
    dispatcher = Rival(
        connect, "dispatcher", claim, POOL, holder="d", claim_settings=CLAIM_SETTINGS
    )
    operator = Rival(connect, "operator", change)

    with held_task(connect, other):
        queue_up(connect, [dispatcher])  # it knows what all the workers can do, and pay for
        operator.start()
        wait_until(lambda: deployment.rows(WORKERS) != before, what="the worker to change")
    dispatcher.answer()
    operator.answer()

    assert [claimed.claim.task_id for claimed in deployment.claim().claims] == [task]


def test_a_direct_claim_and_a_slot_claim_never_deadlock(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    """With a slot cap, one claim locks the cap before a lane, the other a lane before the cap."""
    user = deployment.user()
    deployment.agent()
    run = deployment.running(user)
    deployment.task(user)
    claim_settings = ClaimSettings(CLAIM_TTL, LIVENESS, slots_max=5)
    tries: list[str] = []

    def go_on(db: Db) -> None:
        def then(tx: Connection) -> None:
            tries.append("settle")
            claim_next_for_slot(
                tx,
                POOL,
                agent=AGENT,
                bundle=uuid4(),
                claim_settings=claim_settings,
                lease=CLAIM_TTL,
            )

        settle_all(db, [(run, Returned())], agent=AGENT, then=then)

    def direct(db: Db) -> None:
        claim_one(db, holder="d", claim_settings=claim_settings, user_id=user)

    with held_pool(connect, POOL):
        # The first claim holds the lane and waits for the pool; the second waits for the lane.
        rivals = [Rival(connect, "worker", go_on), Rival(connect, "direct", direct)]
        queue_up(connect, rivals)
    for rival in rivals:
        rival.answer()

    assert tries == ["settle"]
    assert (
        deployment.one(
            "SELECT deadlocks AS n FROM pg_stat_database WHERE datname = current_database()"
        )["n"]
        == 0
    )
