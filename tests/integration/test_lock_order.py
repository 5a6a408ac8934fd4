"""The lock order of docs/architecture.md: pool locks are fair, and no two transactions deadlock."""

from collections.abc import Callable
from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import Connection

from overnight_server.control.pauses import PauseSubject, pause
from overnight_server.domain.claims import Claim, Run
from overnight_server.domain.results import Returned
from overnight_server.gate.claim import ClaimSettings, claim_for_agent, claim_next_for_slot
from overnight_server.intake.new_graph import NewGraph, NewTask
from overnight_server.intake.triggers import add_trigger
from overnight_server.maintenance.reap import retire_agents
from overnight_server.maintenance.triggers import fire_due
from overnight_server.outcome.presence import WorkerDescription, join, leave
from overnight_server.outcome.settle import settle, settle_all
from overnight_server.outcome.start import start
from overnight_server.store import db as store_db
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.statements import statement
from tests.support.deployment import AGENT, CLAIM_TTL, LEASE, LIVENESS, LOOSE, POOL, Deployment
from tests.support.lock_order import LockWatch
from tests.support.rivals import Rival, held_lane, held_task, queue_up

ME = "human:olga"
PULL_POOL = "pull:laptop"
PULL_AGENT = "laptop"


@pytest.fixture(autouse=True)
def no_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a transaction that Postgres ends because of a deadlock fail instead of being repeated."""
    monkeypatch.setattr(store_db, "MAX_TRIES", 1)


def settle_and_refill(db: Db, run: Run, slots_max: int | None = None) -> None:
    """Settle a run and claim the next task for its slot, as a worker does."""

    def refill(tx: Connection) -> None:
        claim_next_for_slot(
            tx,
            POOL,
            agent=AGENT,
            bundle=uuid4(),
            claim_settings=ClaimSettings(CLAIM_TTL, LIVENESS, slots_max),
            lease=LEASE,
        )

    settle_all(db, [(run, Returned())], agent=AGENT, then=refill)


def test_a_refilling_slot_waits_behind_a_pause_that_waits_for_the_pool(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    deployment.agent()
    run = deployment.running(deployment.user())
    pausing = Rival(connect, "pauser", pause, PauseSubject(pool=POOL), actor=ME)
    refilling = Rival(connect, "worker", settle_and_refill, run)

    with connect("other worker").engine.begin() as tx:
        tx.execute(statement("lock_pool_shared"), {"pool": POOL})
        queue_up(connect, [pausing, refilling])

    assert pausing.answer()
    refilling.answer()


def test_a_pull_agent_holds_no_pool_while_it_waits_for_a_lane(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    user = deployment.user()
    deployment.agent()
    deployment.agent(agent_id=PULL_AGENT, pool=PULL_POOL)
    run = deployment.running(user)
    for _ in range(2):
        deployment.task(user)

    def poll(db: Db) -> bool:
        claimed = claim_for_agent(
            db,
            PULL_POOL,
            agent=PULL_AGENT,
            claim_settings=ClaimSettings(CLAIM_TTL, LIVENESS, slots_max=5),
            serves=user,
            types=(),
        )
        return claimed is not None

    refilling = Rival(connect, "worker", settle_and_refill, run, 5)
    polling = Rival(connect, "agent", poll)
    with held_lane(connect, user):
        # The worker gets the lane first and then needs the slot cap.
        queue_up(connect, [refilling, polling])
    refilling.answer()

    assert polling.answer()


@pytest.mark.parametrize(
    "change",
    [
        lambda db: join(db, WorkerDescription(AGENT, POOL, ["gpu"], 4)),
        lambda db: leave(db, AGENT),
        lambda db: retire_agents(db, silence=timedelta(0)),
    ],
    ids=["join", "leave", "retire"],
)
def test_a_change_of_workers_and_a_settle_that_pays_from_a_budget_do_not_deadlock(
    deployment: Deployment, connect: Callable[..., Db], change: Callable[[Db], object]
) -> None:
    user = deployment.user()
    deployment.agent()
    deployment.run("UPDATE agents SET budget_remaining_usd = 5")
    run = deployment.running(user)
    deployment.run("UPDATE lanes SET skipped_by_pools = ARRAY['gone']")
    settling = Rival(connect, "worker", settle, run, Returned(cost_usd=1.0), agent=AGENT)
    changing = Rival(connect, "other worker", change)

    with held_lane(connect, user):
        queue_up(connect, [settling, changing])

    assert settling.answer()
    changing.answer()
    assert deployment.one("SELECT budget_remaining_usd AS usd FROM agents")["usd"] == 4


def test_the_trigger_sweep_waits_for_no_trigger_that_is_being_changed(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    """It holds no lane: if it waited for a trigger, it could be part of a deadlock."""
    user = deployment.user()
    deployment.agent()
    run = deployment.running(user)
    graph = NewGraph([NewTask("next", "echo")])
    add_trigger(deployment.app, user, run.dag_id, graph, LOOSE, actor=ME)
    deployment.settle(run, Returned())

    with connect("owner", role="overnight_owner").engine.begin() as tx:
        tx.exec_driver_sql("SELECT FROM dag_triggers FOR NO KEY UPDATE")
        assert fire_due(deployment.dispatcher, LOOSE) == 0
    assert fire_due(deployment.dispatcher, LOOSE) == 1


def test_the_watch_finds_a_transaction_that_waits_for_a_lane_under_a_pool(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    user = deployment.user()

    def wait_in_wrong_order(db: Db) -> None:
        with db.engine.begin() as tx:
            tx.execute(statement("lock_pool"), {"pool": POOL})
            lanes.lock(tx, [user])

    waiting = Rival(connect, "wrong", wait_in_wrong_order)
    watch = LockWatch()
    with held_lane(connect, user):
        queue_up(connect, [waiting])
        watch.look(connect("watcher", role=None))
    waiting.answer()

    assert watch.out_of_order == {("overnight.pools", "lanes"), ("overnight.pool", "lanes")}


def test_a_late_start_does_not_wait_for_a_task_that_is_ready_again(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    """A start holds no lane: if it waited for a ready task, it could be part of a deadlock."""
    task_id = deployment.task(deployment.user())

    with held_task(connect, task_id):
        late = Claim(task_id, 0, uuid4())
        assert start(deployment.dispatcher, late, holder=AGENT, lease=LEASE) is None
