"""Operations of every kind at once: no deadlock, no lock out of order, no task left behind."""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import pytest

from overnight.errors import NotAwaitingApproval
from overnight.models.enums import PlanTier
from overnight_server.control import budgets
from overnight_server.control.pauses import EVERYTHING, PauseSubject, resume
from overnight_server.control.users import change_plan
from overnight_server.domain.ids import parse_task
from overnight_server.domain.results import Returned
from overnight_server.gate.claim import ClaimSettings, claim
from overnight_server.insight.budgets import list_approvals
from overnight_server.maintenance.audit_checks import AREAS
from overnight_server.outcome.presence import join, leave
from overnight_server.outcome.settle import settle
from overnight_server.outcome.start import start_all
from overnight_server.store.db import Db
from tests.support.deployment import CLAIM_TTL, LEASE, LIVENESS, Deployment
from tests.support.invariants import describe_violations, record_plan_history, violations
from tests.support.lock_order import lock_watch
from tests.support.mixed_load import (
    ACTOR,
    LASTING,
    PASSING,
    POOLS,
    SLOTS_MAX,
    SWEEPS,
    Caller,
    SharedState,
    callers,
    lasting_worker,
    prepare,
)
from tests.support.wait import wait_until

CALLERS = 10
MINUTES = timedelta(minutes=10)
MANY_SLOTS = 200
MAX_ROUNDS = 100
DEADLOCKS = "SELECT deadlocks AS n FROM pg_stat_database WHERE datname = current_database()"
CONNECTED = (
    "SELECT count(*) AS n FROM pg_stat_activity"
    " WHERE datname = current_database() AND application_name = 'mixed-load'"
)
LEFT = "SELECT sum(waiting + active) AS n FROM lanes"
REMAINING = (
    "SELECT t.id, t.user_id, t.state, t.type, t.unmet, t.awaits_budget, t.awaits_start, t.locks,"
    "       t.required_capabilities, t.deadline_at, t.parent_id, l.eligible, l.skipped_by_pools"
    "  FROM tasks t JOIN lanes l USING (user_id) WHERE t.finished_at IS NULL ORDER BY t.id"
)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("seconds", "slots_max"),
    [
        (20, SLOTS_MAX),
        pytest.param(180, SLOTS_MAX, marks=pytest.mark.proof),
        pytest.param(60, None, marks=pytest.mark.proof),
    ],
)
def test_operations_of_every_kind_at_once_leave_no_deadlock_and_no_task_behind(
    deployment: Deployment,
    connect: Callable[..., Db],
    database_url: str,
    seconds: int,
    slots_max: int | None,
) -> None:
    record_plan_history(deployment.owner)
    deployment.move_clock(timedelta(0))  # so that no statement meets the clock while it is replaced
    shared = prepare(deployment, slots_max)

    with (
        lock_watch(connect("watcher", role=None, pool_size=1)) as watch,
        callers(database_url, shared, CALLERS) as stop,
    ):
        stop.wait(seconds)
    # Postgres adds what a connection counted when it is closed.
    wait_until(lambda: deployment.one(CONNECTED)["n"] == 0, what="the callers to disconnect")

    assert deployment.one(DEADLOCKS)["n"] == 0
    assert watch.out_of_order == set()
    # The callers ran the audit among their operations; a busy deployment is no finding.
    ended = "SELECT area FROM audit_positions WHERE round_ended_at IS NOT NULL"
    assert len(deployment.rows(ended)) == len(AREAS)
    assert deployment.rows("SELECT * FROM audit_findings") == []
    finish(deployment, shared)
    assert deployment.rows(REMAINING) == []
    broken = violations(deployment.owner, drained=True)
    assert not broken, describe_violations(broken)
    assert deployment.rows("SELECT * FROM audit_findings") == []
    names = {operation.__name__ for operation in Caller(database_url, shared, 0).operations}
    assert set(shared.done) == names


def finish(deployment: Deployment, shared: SharedState) -> None:
    """Remove what keeps tasks waiting, and run everything that is left."""
    db = deployment.dispatcher
    for subject in (EVERYTHING, *(PauseSubject(pool=pool) for pool in POOLS)):
        resume(db, subject, actor=ACTOR)
    for user in shared.users:
        resume(db, PauseSubject(user_id=user), actor=ACTOR)
        change_plan(deployment.app, user, PlanTier.ENTERPRISE)
        budgets.set_night_budget(deployment.app, user, None, actor=ACTOR)
    for pool in POOLS:
        leave(db, PASSING[pool])
        join(db, lasting_worker(pool, MANY_SLOTS))
        budgets.set_agent_budget(db, LASTING[pool], None, actor=ACTOR)
    for _ in range(MAX_ROUNDS):
        if not deployment.one(LEFT)["n"]:
            return
        deployment.move_clock(MINUTES)
        for sweep in SWEEPS:
            sweep(db)
        for pool in POOLS:
            join(db, lasting_worker(pool, MANY_SLOTS))
        # Of tasks with the same lock, each claim takes one.
        while sum(_run_next(db, pool) for pool in POOLS):
            pass
        for approval in list_approvals(deployment.owner):
            with suppress(NotAwaitingApproval):  # another approval may have raised its budget
                budgets.approve(deployment.app, parse_task(approval.task_id), 100.0, actor=ACTOR)


def _run_next(db: Db, pool: str) -> int:
    """Run what may start now to its end; return the number of tasks."""
    agent = LASTING[pool]
    taken = claim(db, pool, holder="finish", claim_settings=ClaimSettings(CLAIM_TTL, LIVENESS))
    claims = [claimed.claim for claimed in taken.claims]
    for run in start_all(db, claims, holder=agent, lease=LEASE):
        settle(db, run, Returned(), agent=agent)
    return len(claims)
