"""The invariants report nothing for a normal history and report every planted violation."""

from datetime import timedelta

import pytest
from sqlalchemy import text

from overnight.models.enums import PlanTier
from overnight_server.control.users import change_plan, disable_user
from overnight_server.domain.ids import UserId, new_task_id
from overnight_server.domain.plans import PlanLimits
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.store.db import Db
from tests.support.deployment import Deployment
from tests.support.history import History, make_history, read_corruptions, without_constraints
from tests.support.invariants import (
    CHECKED_BY_AUDIT,
    INAPPLICABLE,
    INVARIANTS,
    CheckOptions,
    describe_violations,
    insert_recorded_actions,
    record_plan_history,
    violations,
    violations_in,
)

# These invariants concern arguments of the check, so their violations need no SQL.
WITHOUT_SQL = frozenset({"I01", "I02", "I10"})

VIOLATIONS = read_corruptions()


@pytest.fixture
def history(deployment: Deployment) -> History:
    return make_history(deployment)


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


def test_all_twenty_invariants_are_checked() -> None:
    codes = {invariant.code for invariant in INVARIANTS}

    checked = codes | CHECKED_BY_AUDIT.keys()
    assert {f"I{number:02}" for number in range(1, 21)} <= checked
    assert set().union(*CHECKED_BY_AUDIT.values()) <= codes
    assert not INAPPLICABLE


def test_every_violation_is_reported_by_its_invariant(
    history: History, postgres: EmbeddedPostgres, database_url: str
) -> None:
    db = without_constraints(postgres, database_url)

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

    assert violations(history.deployment.owner, codes={"I08", "charges"}) == {}


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
