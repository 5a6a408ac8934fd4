"""The invariants report nothing for a normal history and report every planted violation."""

import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from overnight.models.bulk import TaskFilter
from overnight.models.enums import PlanTier
from overnight_server.control.bulk import BulkOrder
from overnight_server.control.bulk import start as start_bulk
from overnight_server.control.cancel import cancel
from overnight_server.control.claim_tokens import issue
from overnight_server.control.dead_letters import retry
from overnight_server.control.users import change_plan, disable_user
from overnight_server.domain.bulk import Action
from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import DagId, TaskId, UserId, new_task_id
from overnight_server.domain.plans import PlanLimits
from overnight_server.domain.results import Interrupted, Raised, Returned
from overnight_server.intake.new_graph import NewGraph, NewTask
from overnight_server.intake.triggers import add_trigger
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.maintenance.bulk import run_bulks
from overnight_server.maintenance.promote import promote
from overnight_server.maintenance.reap import reap
from overnight_server.maintenance.triggers import fire_due
from overnight_server.store.db import Db
from tests.support.deployment import LOOSE, Deployment
from tests.support.graphs import begin, graph
from tests.support.invariants import (
    INAPPLICABLE,
    INVARIANTS,
    CheckOptions,
    describe_violations,
    insert_recorded_actions,
    record_plan_history,
    violations,
    violations_in,
)
from tests.support.recorded_actions import RecordedAction, token_suffix

SUPPORT = Path(__file__).parents[1] / "support"
# These invariants concern arguments of the check, so their violations need no SQL.
WITHOUT_SQL = frozenset({"I01", "I02", "I10"})

NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


def _read_violations() -> dict[str, list[str]]:
    """Return the SQL that violates each invariant."""
    _, *parts = NAME.split((SUPPORT / "corrupt_rows.sql").read_text())
    return {
        code: [sql.strip() for sql in statements.split(";") if sql.strip()]
        for code, statements in zip(parts[::2], parts[1::2], strict=True)
    }


VIOLATIONS = _read_violations()
# The working time of a run that waited some minutes in its bundle.
TURN_SECONDS = 7.0
MOVE_UP = BulkOrder(Action.REPRIORITISE, TaskFilter(type="echo"), priority=20)


@dataclass(frozen=True)
class History:
    """A deployment with tasks in every state, and their names."""

    deployment: Deployment
    names: dict[str, UserId | TaskId]

    @property
    def tasks(self) -> list[TaskId]:
        return [TaskId(row["id"]) for row in self.deployment.rows("SELECT id FROM tasks")]

    @property
    def recorded_actions(self) -> list[RecordedAction]:
        """Return the record that the handlers would have written; the lost run has no end."""
        runs = self.deployment.rows(
            "SELECT task_id, epoch, token, outcome, extract(epoch FROM ended_at - started_at) AS s"
            "  FROM attempts WHERE started_at IS NOT NULL"
        )
        return [
            RecordedAction(
                TaskId(run["task_id"]),
                run["epoch"],
                token_suffix(issue(Claim(run["task_id"], run["epoch"], run["token"]))),
                self._worked(run["task_id"], run["s"], run["outcome"]),
                run["outcome"] and run["outcome"] == "completed",
            )
            for run in runs
        ]

    def _worked(self, task_id: UUID, lasted: float | None, outcome: str | None) -> float | None:
        if task_id == self.names["bundled"]:
            return TURN_SECONDS
        return None if lasted is None or outcome == "worker_lost" else float(lasted)


@pytest.fixture
def history(deployment: Deployment) -> History:
    record_plan_history(deployment.owner)
    user, other = deployment.user(PlanTier.PRO), deployment.user(PlanTier.FREE)
    deployment.agent()
    done = deployment.running(user, timeout_seconds=600)
    deployment.move_clock(timedelta(minutes=5))
    deployment.settle(done, Returned(cost_usd=0.5))
    bundled = deployment.running(user, timeout_seconds=600)
    deployment.move_clock(timedelta(minutes=5))
    deployment.settle(bundled, Returned(ran_seconds=TURN_SECONDS))
    lost = deployment.running(user, timeout_seconds=600)
    deployment.move_clock(timedelta(minutes=5))
    assert (reap(deployment.dispatcher), promote(deployment.dispatcher)) == (1, 1)
    deployment.settle(*begin(deployment, lost.claim.task_id), Returned())
    dead = deployment.running(user, max_attempts=1)
    deployment.settle(dead, Raised("error", "no luck"))
    revived = deployment.running(user, max_attempts=1)
    deployment.settle(revived, Raised("error", "no luck"))
    retry(deployment.app, revived.claim.task_id, actor="human:operator")
    cancel(deployment.app, user, revived.claim.task_id, actor=f"user:{user}")
    handed_back = deployment.running(user)
    deployment.settle(handed_back, Interrupted())
    [again] = begin(deployment, handed_back.claim.task_id)
    deployment.settle(again, Returned())
    parent, child = graph(deployment, user, 2, [(0, 1)])
    deployment.settle(*begin(deployment, parent), Returned())
    begin(deployment, child)
    first, member = graph(deployment, user, 2, [(0, 1)])
    deployment.settle(*begin(deployment, first), Returned())
    deployment.settle(*begin(deployment, member), Returned(cost_usd=0.25))
    add_trigger(
        deployment.app,
        user,
        DagId(deployment.row(member)["dag_id"]),
        NewGraph([NewTask("after it", "echo")]),
        LOOSE,
        actor="human:me",
    )
    assert fire_due(deployment.dispatcher, LOOSE) == 1
    half_a_month = deployment.running(other, timeout_seconds=60)
    deployment.run(
        "INSERT INTO usage_ledger (user_id, period_started_at, kind, seconds)"
        " SELECT user_id, cycle_started_at, 'adjustment', 18000 FROM lanes WHERE user_id = :user",
        user=other,
    )
    deployment.settle(half_a_month, Returned())
    running = deployment.running(user)
    _, blocked = graph(deployment, user, 2, [(0, 1)])
    names = {
        "user": user,
        "other": other,
        "done": done.claim.task_id,
        "bundled": bundled.claim.task_id,
        "lost": lost.claim.task_id,
        "dead": dead.claim.task_id,
        "revived": revived.claim.task_id,
        "handed_back": handed_back.claim.task_id,
        "child": child,
        "member": member,
        "running": running.claim.task_id,
        "blocked": blocked,
        "waiting": deployment.task(other),
    }
    start_bulk(deployment.app, other, MOVE_UP, actor=f"user:{other}")
    assert run_bulks(deployment.dispatcher) == 1
    return History(deployment, names)


def test_a_normal_history_violates_no_invariant(history: History) -> None:
    broken = violations(
        history.deployment.dispatcher,
        acked=history.tasks,
        sweep_time=timedelta(0),
        recorded_actions=history.recorded_actions,
    )

    assert not broken, describe_violations(broken)


def test_every_invariant_has_a_violating_example() -> None:
    assert WITHOUT_SQL | VIOLATIONS.keys() == {invariant.code for invariant in INVARIANTS}


def test_all_twenty_invariants_are_checked_or_listed_as_inapplicable() -> None:
    codes = {invariant.code for invariant in INVARIANTS}

    assert {f"I{number:02}" for number in range(1, 21)} - codes == {"I17"}
    assert INAPPLICABLE.keys() == {"I17", "I19"}
    assert all(INAPPLICABLE.values())


def test_the_inapplicable_invariants_have_no_subject(deployment: Deployment) -> None:
    tables = deployment.rows(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
        " AND relname ~ 'schedule|cron|outbox|webhook'"
    )

    assert tables == []


def test_every_violation_is_reported_by_its_invariant(
    history: History, postgres: EmbeddedPostgres, database_url: str
) -> None:
    db = _without_constraints(postgres, database_url)

    missed = [
        f"{code} does not report: {sql}"
        for code, statements in VIOLATIONS.items()
        for sql in statements
        if code not in _reported_after(db, sql, history)
    ]

    db.close()
    assert missed == []


def test_a_lost_submission_is_reported(history: History) -> None:
    assert violations(history.deployment.app, acked=[new_task_id()]).keys() == {"I01"}


def test_a_task_that_is_open_after_a_drain_is_reported_as_stuck(history: History) -> None:
    assert violations(history.deployment.app, drained=True).keys() == {"I02"}


def test_an_expired_claim_that_is_not_reaped_is_reported(history: History) -> None:
    history.deployment.move_clock(timedelta(minutes=2))

    within_an_hour = violations(history.deployment.app, sweep_time=timedelta(hours=1))
    within_seconds = violations(history.deployment.app, sweep_time=timedelta(seconds=20))

    assert (within_an_hour.keys(), within_seconds.keys()) == (set(), {"I10"})


def test_a_charge_that_only_the_worker_measured_or_that_ends_with_a_heartbeat_is_accepted(
    history: History,
) -> None:
    history.deployment.run(
        "UPDATE usage_ledger SET seconds = 0 WHERE task_id IN (:lost, :bundled)", **history.names
    )

    assert violations(history.deployment.owner, codes={"I08"}) == {}


def test_runs_started_before_a_downgrade_violate_nothing(history: History) -> None:
    user = UserId(history.names["user"])
    change_plan(history.deployment.app, user, PlanTier.FREE, limits=PlanLimits(1, 30, 0))

    assert violations(history.deployment.dispatcher) == {}


def test_without_a_history_of_plans_the_current_limits_apply(deployment: Deployment) -> None:
    user = deployment.user(PlanTier.PRO)
    deployment.agent()
    deployment.running(user)
    deployment.running(user)

    before = violations(deployment.dispatcher)
    change_plan(deployment.app, user, PlanTier.FREE)

    assert (before, violations(deployment.dispatcher).keys()) == ({}, {"I06"})


@pytest.mark.parametrize("has_history", [False, True])
def test_runs_started_before_their_user_was_disabled_violate_nothing(
    deployment: Deployment, *, has_history: bool
) -> None:
    if has_history:
        record_plan_history(deployment.owner)
    user = deployment.user()
    deployment.agent()
    run = deployment.running(user)

    disable_user(deployment.app, user)
    at_once = violations(deployment.dispatcher)
    deployment.run(
        "UPDATE attempts SET claimed_at = clock() WHERE task_id = :id", id=run.claim.task_id
    )

    assert (at_once, violations(deployment.dispatcher, codes={"I06"}).keys()) == ({}, {"I06"})


def _reported_after(db: Db, sql: str, history: History) -> set[str]:
    """Execute a violating statement, return the reported invariants, and roll back."""
    with db.engine.connect() as tx:
        # Triggers and foreign keys are off, so that they neither repair nor refuse the violation.
        tx.execute(text("SET LOCAL session_replication_role = replica"))
        insert_recorded_actions(tx, history.recorded_actions)
        changed = tx.execute(text(sql), history.names)
        assert changed.rowcount > 0, f"changes nothing: {sql}"
        return set(violations_in(tx, CheckOptions(recorded_actions=())))


def _without_constraints(postgres: EmbeddedPostgres, database_url: str) -> Db:
    """Return the test's database as its superuser, without constraints that could refuse a row."""
    database = make_url(database_url).database
    url = make_url(postgres.superuser_url).set(database=database)
    db = Db.connect(url.render_as_string(hide_password=False), role=None)
    with db.engine.begin() as tx:
        tx.execute(text((SUPPORT / "no_guards.sql").read_text()))
    return db
