"""Billing months: anchored, caught up in one step, begun once, and right if beat never ran."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from overnight_server.domain.billing import boundary, cycle_at
from overnight_server.domain.claims import Run
from overnight_server.domain.ids import UserId
from overnight_server.domain.results import Returned
from overnight_server.gate.claim import CYCLES_PER_PASS
from overnight_server.insight.queue import queue_status, user_limits
from overnight_server.maintenance.reset import reset_cycles
from overnight_server.outcome.settle import settle
from overnight_server.store.db import Db
from tests.support.house import AGENT, House
from tests.support.profiles import examples
from tests.support.rivals import Rival, held_task, queue_up

MONTH = timedelta(days=31)
HOUR = 3600
INSTANTS = st.datetimes(
    min_value=datetime.fromisoformat("2001-01-01"),
    max_value=datetime.fromisoformat("2099-12-31"),
    timezones=st.just(UTC),
)


def test_the_31st_comes_back_after_february(house: House) -> None:
    sql = (
        "SELECT cycle_boundary('2026-01-31T22:15:00Z', cycle) AS at"
        "  FROM generate_series(0, 13) cycle"
    )

    days = [row["at"].strftime("%m-%d") for row in house.rows(sql)]

    assert days[:5] == ["01-31", "02-28", "03-31", "04-30", "05-31"]
    assert days[-2:] == ["01-31", "02-28"]


def test_a_leap_february_has_its_29th(house: House) -> None:
    at = house.one("SELECT cycle_boundary('2028-01-31T00:00:00Z', 1) AS at")["at"]

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


def test_months_of_downtime_are_caught_up_in_one_step(house: House) -> None:
    user = house.user(billing_anchor_at=datetime(2020, 1, 31, tzinfo=UTC))
    before = house.lane(user)
    house.move_clock(MONTH * 7)

    assert reset_cycles(house.dispatcher) == 1

    lane = house.lane(user)
    now = house.one("SELECT clock() AS now")["now"]
    anchor = datetime(2020, 1, 31, tzinfo=UTC)
    assert lane["cycle"] == cycle_at(anchor, now) >= before["cycle"] + 6
    assert lane["cycle_started_at"] == boundary(anchor, lane["cycle"]) <= now
    assert lane["resets_at"] == boundary(anchor, lane["cycle"] + 1) > now


def test_a_month_is_begun_exactly_once(house: House) -> None:
    house.user()
    house.move_clock(MONTH)
    first = reset_cycles(house.dispatcher)
    lane = house.one("SELECT * FROM lanes")

    second = reset_cycles(house.dispatcher)

    assert (first, second) == (1, 0)
    assert house.one("SELECT * FROM lanes") == lane


def test_a_month_that_is_not_over_is_left_alone(house: House) -> None:
    house.user()
    house.move_clock(timedelta(days=27))

    assert reset_cycles(house.dispatcher) == 0


def test_a_new_month_gives_the_hours_back_to_a_submit(house: House) -> None:
    user = _used_up(house)
    house.move_clock(MONTH)

    house.task(user)

    assert house.lane(user)["used_seconds"] == 0


def test_a_new_month_gives_the_hours_back_to_whoever_looks(house: House) -> None:
    user = _used_up(house)
    assert user_limits(house.app, user).monthly_agent_hours_used == 1
    assert queue_status(house.app, user).can_start_more is False
    house.move_clock(MONTH)

    limits, status = user_limits(house.app, user), queue_status(house.app, user)

    assert (limits.monthly_agent_hours_used, status.monthly_hours_used) == (0, 0)
    assert status.can_start_more is True
    assert limits.billing_cycle_resets_at > house.one("SELECT clock() AS now")["now"]


def test_a_new_month_gives_the_hours_back_to_the_gate(house: House) -> None:
    user = _used_up(house, on_exhausted="hold")
    house.agent()
    house.task(user, timeout_seconds=60)
    assert house.claim().claims == []
    house.move_clock(MONTH)

    assert len(house.claim().claims) == 1


def _used_up(house: House, **columns: object) -> UserId:
    user = house.user(monthly_agent_hours_limit=1, **columns)  # type: ignore[arg-type]
    house.run(
        "INSERT INTO usage_ledger (user_id, period_started_at, kind, seconds)"
        " SELECT user_id, cycle_started_at, 'adjustment', :seconds FROM lanes",
        seconds=HOUR,
    )
    return user


def test_reservations_are_carried_into_the_new_month(house: House) -> None:
    user = house.user(monthly_agent_hours_limit=1)
    house.agent()
    house.running(user, timeout_seconds=3000)
    house.task(user, timeout_seconds=3000)
    house.move_clock(MONTH)

    reset_cycles(house.dispatcher)

    assert house.lane(user)["reserved_seconds"] == 3000
    assert house.claim().claims == []


def test_a_month_nobody_has_begun_yet_is_not_judged_by_the_last_ones_hours(house: House) -> None:
    user = house.user(monthly_agent_hours_limit=1)
    house.agent()
    boundary_at = house.lane(user)["resets_at"]
    house.set_clock(boundary_at - timedelta(seconds=10))
    run = house.running(user, timeout_seconds=HOUR)
    house.task(user, timeout_seconds=60)
    for _ in range(CYCLES_PER_PASS):
        house.user()
    house.run(
        "UPDATE lanes SET resets_at = :at WHERE user_id <> :user",
        at=boundary_at - timedelta(days=1),
        user=user,
    )
    house.set_clock(boundary_at + timedelta(seconds=HOUR - 10))
    house.settle(run, Returned())

    # More lanes are due than one pass brings to the present, and this one comes last.
    assert list(house.claim().claims) == []
    assert list(house.claim().claims) == []
    assert house.lane(user)["used_seconds"] == HOUR - 10


@pytest.mark.parametrize("reset_first", [True, False], ids=["reset first", "settle first"])
def test_a_run_across_the_boundary_charges_the_new_month_its_share(
    house: House, *, reset_first: bool
) -> None:
    user, run, at = _across_the_boundary(house)

    if reset_first:
        reset_cycles(house.dispatcher)
        house.settle(run, Returned())
    else:
        house.settle(run, Returned())
        reset_cycles(house.dispatcher)

    ended_at = house.one("SELECT ended_at FROM attempts")["ended_at"]
    lane = house.lane(user)
    assert lane["cycle_started_at"] == at
    assert float(lane["used_seconds"]) == round((ended_at - at).total_seconds(), 3)


def test_a_reset_does_not_wait_for_a_settle_and_misses_nothing(
    house: House, connect: Callable[..., Db]
) -> None:
    user, run, at = _across_the_boundary(house)
    worker = Rival(connect, "worker", settle, run, Returned(), agent=AGENT)

    with held_task(connect, run.claim.task_id):
        queue_up(connect, [worker])  # holds the lane, waits for the row
        during = reset_cycles(house.dispatcher)
    settled = worker.answer()
    after = reset_cycles(house.dispatcher)

    assert (during, settled, after) == (0, True, 1)
    new = house.one(
        "SELECT sum(seconds) AS n FROM usage_ledger WHERE period_started_at = :at", at=at
    )
    assert house.lane(user)["used_seconds"] == new["n"] > 0


def test_two_resets_at_once_begin_each_month_once(house: House, connect: Callable[..., Db]) -> None:
    for _ in range(20):
        house.user()
    house.move_clock(MONTH)
    rivals = [Rival(connect, f"beat-{n}", reset_cycles) for n in range(4)]

    for rival in rivals:
        rival.start()

    assert sum(rival.answer() for rival in rivals) == 20


def _across_the_boundary(house: House) -> tuple[UserId, Run, datetime]:
    """A run that began 100 s before its user's month ended, an hour ago by now."""
    at = house.one("SELECT clock() + interval '100 seconds' AS at")["at"]
    user = house.user(billing_anchor_at=at)
    house.agent()
    run = house.running(user, timeout_seconds=2 * HOUR)
    house.move_clock(timedelta(seconds=100 + HOUR))
    return user, run, at
