"""Billing months: anchored, caught up in one step, started once, correct without beat."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from overnight_server.domain.billing_months import boundary, cycle_at
from overnight_server.domain.claims import Run
from overnight_server.domain.ids import UserId
from overnight_server.domain.results import Returned
from overnight_server.gate.claim import LANES_PER_REFRESH
from overnight_server.insight.limits import user_limits
from overnight_server.insight.queue_status import queue_status
from overnight_server.maintenance.reset import reset_cycles
from overnight_server.outcome.settle import settle
from overnight_server.store.db import Db
from tests.support.deployment import AGENT, Deployment
from tests.support.profiles import examples
from tests.support.rivals import Rival, held_task, queue_up

MONTH = timedelta(days=31)
HOUR = 3600
INSTANTS = st.datetimes(
    min_value=datetime.fromisoformat("2001-01-01"),
    max_value=datetime.fromisoformat("2099-12-31"),
    timezones=st.just(UTC),
)


def test_a_cycle_anchored_on_the_31st_returns_to_it_after_february(deployment: Deployment) -> None:
    sql = (
        "SELECT cycle_boundary('2026-01-31T22:15:00Z', cycle) AS at"
        "  FROM generate_series(0, 13) cycle"
    )

    days = [row["at"].strftime("%m-%d") for row in deployment.rows(sql)]

    assert days[:5] == ["01-31", "02-28", "03-31", "04-30", "05-31"]
    assert days[-2:] == ["01-31", "02-28"]


def test_a_cycle_may_start_on_february_29th(deployment: Deployment) -> None:
    at = deployment.one("SELECT cycle_boundary('2028-01-31T00:00:00Z', 1) AS at")["at"]

    assert at == datetime(2028, 2, 29, tzinfo=UTC)


@settings(
    max_examples=examples(50),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.tuples(INSTANTS, INSTANTS, st.integers(-30, 1200)), min_size=20, max_size=40))
def test_postgres_and_python_agree_on_every_month(
    db: Db, cases: list[tuple[datetime, datetime, int]]
) -> None:
    sql = text(
        "SELECT cycle_boundary(anchor, cycle) AS begins, cycle_at(anchor, instant) AS lies_in"
        "  FROM unnest(CAST(:anchors AS timestamptz[]), CAST(:instants AS timestamptz[]),"
        "              CAST(:cycles AS int[])) WITH ORDINALITY AS c(anchor, instant, cycle, place)"
        " ORDER BY place"
    )
    anchors, instants, cycles = (list(column) for column in zip(*cases, strict=True))

    with db.engine.begin() as tx:
        rows = tx.execute(sql, {"anchors": anchors, "instants": instants, "cycles": cycles}).all()

    assert [(row.begins, row.lies_in) for row in rows] == [
        (boundary(anchor, cycle), cycle_at(anchor, instant)) for anchor, instant, cycle in cases
    ]


def test_months_of_downtime_are_caught_up_in_one_step(deployment: Deployment) -> None:
    user = deployment.user(billing_anchor_at=datetime(2020, 1, 31, tzinfo=UTC))
    before = deployment.lane(user)
    deployment.move_clock(MONTH * 7)

    assert reset_cycles(deployment.dispatcher) == 1

    lane = deployment.lane(user)
    now = deployment.one("SELECT clock() AS now")["now"]
    anchor = datetime(2020, 1, 31, tzinfo=UTC)
    assert lane["cycle"] == cycle_at(anchor, now) >= before["cycle"] + 6
    assert lane["cycle_started_at"] == boundary(anchor, lane["cycle"]) <= now
    assert lane["resets_at"] == boundary(anchor, lane["cycle"] + 1) > now


def test_a_month_is_started_exactly_once(deployment: Deployment) -> None:
    deployment.user()
    deployment.move_clock(MONTH)
    first = reset_cycles(deployment.dispatcher)
    lane = deployment.one("SELECT * FROM lanes")

    second = reset_cycles(deployment.dispatcher)

    assert (first, second) == (1, 0)
    assert deployment.one("SELECT * FROM lanes") == lane


def test_a_month_that_is_not_over_is_not_reset(deployment: Deployment) -> None:
    deployment.user()
    deployment.move_clock(timedelta(days=27))

    assert reset_cycles(deployment.dispatcher) == 0


def test_a_submit_sees_the_hours_of_a_new_month(deployment: Deployment) -> None:
    user = _used_up(deployment)
    deployment.move_clock(MONTH)

    deployment.task(user)

    assert deployment.lane(user)["used_seconds"] == 0


def test_a_read_sees_the_hours_of_a_new_month(deployment: Deployment) -> None:
    user = _used_up(deployment)
    assert user_limits(deployment.app, user).monthly_agent_hours_used == 1
    assert queue_status(deployment.app, user).can_start_more is False
    deployment.move_clock(MONTH)

    limits, status = user_limits(deployment.app, user), queue_status(deployment.app, user)

    assert (limits.monthly_agent_hours_used, status.monthly_hours_used) == (0, 0)
    assert status.can_start_more is True
    assert limits.billing_cycle_resets_at > deployment.one("SELECT clock() AS now")["now"]


def test_the_gate_sees_the_hours_of_a_new_month(deployment: Deployment) -> None:
    user = _used_up(deployment, on_exhausted="hold")
    deployment.agent()
    deployment.task(user, timeout_seconds=60)
    assert deployment.claim().claims == []
    deployment.move_clock(MONTH)

    assert len(deployment.claim().claims) == 1


def _used_up(deployment: Deployment, **columns: object) -> UserId:
    user = deployment.user(monthly_agent_hours_limit=1, **columns)  # type: ignore[arg-type]
    deployment.run(
        "INSERT INTO usage_ledger (user_id, period_started_at, kind, seconds)"
        " SELECT user_id, cycle_started_at, 'adjustment', :seconds FROM lanes",
        seconds=HOUR,
    )
    return user


def test_reservations_are_carried_into_the_new_month(deployment: Deployment) -> None:
    user = deployment.user(monthly_agent_hours_limit=1)
    deployment.agent()
    deployment.running(user, timeout_seconds=3000)
    deployment.task(user, timeout_seconds=3000)
    deployment.move_clock(MONTH)

    reset_cycles(deployment.dispatcher)

    assert deployment.lane(user)["reserved_seconds"] == 3000
    assert deployment.claim().claims == []


def test_an_unstarted_month_is_not_measured_by_the_hours_of_the_last(
    deployment: Deployment,
) -> None:
    user = deployment.user(monthly_agent_hours_limit=1)
    deployment.agent()
    boundary_at = deployment.lane(user)["resets_at"]
    deployment.set_clock(boundary_at - timedelta(seconds=10))
    run = deployment.running(user, timeout_seconds=HOUR)
    deployment.task(user, timeout_seconds=60)
    for _ in range(LANES_PER_REFRESH):
        deployment.user()
    deployment.run(
        "UPDATE lanes SET resets_at = :at WHERE user_id <> :user",
        at=boundary_at - timedelta(days=1),
        user=user,
    )
    deployment.set_clock(boundary_at + timedelta(seconds=HOUR - 10))
    deployment.settle(run, Returned())

    # More lanes are due than one pass refreshes, and this lane is last.
    assert list(deployment.claim().claims) == []
    assert list(deployment.claim().claims) == []
    assert deployment.lane(user)["used_seconds"] == HOUR - 10


@pytest.mark.parametrize("reset_first", [True, False], ids=["reset first", "settle first"])
def test_a_run_across_the_boundary_charges_the_new_month_its_share(
    deployment: Deployment, *, reset_first: bool
) -> None:
    user, run, at = _across_the_boundary(deployment)

    if reset_first:
        reset_cycles(deployment.dispatcher)
        deployment.settle(run, Returned())
    else:
        deployment.settle(run, Returned())
        reset_cycles(deployment.dispatcher)

    ended_at = deployment.one("SELECT ended_at FROM attempts")["ended_at"]
    lane = deployment.lane(user)
    assert lane["cycle_started_at"] == at
    assert float(lane["used_seconds"]) == round((ended_at - at).total_seconds(), 3)


def test_a_reset_does_not_wait_for_a_settle_and_loses_no_charge(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    user, run, at = _across_the_boundary(deployment)
    worker = Rival(connect, "worker", settle, run, Returned(), agent=AGENT)

    with held_task(connect, run.claim.task_id):
        queue_up(connect, [worker])  # holds the lane, waits for the row
        during = reset_cycles(deployment.dispatcher)
    settled = worker.answer()
    after = reset_cycles(deployment.dispatcher)

    assert (during, settled, after) == (0, True, 1)
    new = deployment.one(
        "SELECT sum(seconds) AS n FROM usage_ledger WHERE period_started_at = :at", at=at
    )
    assert deployment.lane(user)["used_seconds"] == new["n"] > 0


def test_two_resets_at_once_start_each_month_once(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    for _ in range(20):
        deployment.user()
    deployment.move_clock(MONTH)
    rivals = [Rival(connect, f"beat-{n}", reset_cycles) for n in range(4)]

    for rival in rivals:
        rival.start()

    assert sum(rival.answer() for rival in rivals) == 20


def _across_the_boundary(deployment: Deployment) -> tuple[UserId, Run, datetime]:
    """A run that began 100 s before its user's month ended, an hour ago by now."""
    at = deployment.one("SELECT clock() + interval '100 seconds' AS at")["at"]
    user = deployment.user(billing_anchor_at=at)
    deployment.agent()
    run = deployment.running(user, timeout_seconds=2 * HOUR)
    deployment.move_clock(timedelta(seconds=100 + HOUR))
    return user, run, at
