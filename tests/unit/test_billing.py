"""Billing months: when they start, and which month an instant belongs to."""

from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overnight_server.domain.billing_months import boundary, cycle_at


def instants(first: date, last: date) -> st.SearchStrategy[datetime]:
    return st.builds(datetime.combine, st.dates(first, last), st.times(), st.just(UTC))


ANCHORS = instants(date(1970, 1, 1), date(2200, 12, 31))
INSTANTS = instants(date(1960, 1, 1), date(2600, 12, 31))
# As far from the anchor as a datetime can still be, with room on both sides.
CYCLES = st.integers(min_value=-500, max_value=5000)


def day(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("anchor", "cycle", "begins"),
    [
        ("2026-01-31", 0, "2026-01-31"),
        ("2026-01-31", 1, "2026-02-28"),
        ("2026-01-31", 2, "2026-03-31"),
        ("2026-01-31", 3, "2026-04-30"),
        ("2026-01-31", 11, "2026-12-31"),
        ("2026-01-31", 12, "2027-01-31"),
        ("2027-12-31", 2, "2028-02-29"),
        ("2028-02-29", 12, "2029-02-28"),
        ("2028-02-29", 48, "2032-02-29"),
        ("2026-11-15", 2, "2027-01-15"),
        ("2026-12-01", 1, "2027-01-01"),
        ("2026-03-30", -1, "2026-02-28"),
        ("2026-01-15", -1, "2025-12-15"),
    ],
)
def test_a_cycle_begins_on_the_anchored_day(anchor: str, cycle: int, begins: str) -> None:
    assert boundary(day(anchor), cycle) == day(begins)


def test_the_hour_of_the_anchor_is_kept() -> None:
    anchor = day("2026-01-31T22:15:07.5")

    assert boundary(anchor, 1) == day("2026-02-28T22:15:07.5")


def test_the_anchor_is_read_in_utc() -> None:
    east = timezone(timedelta(hours=2))
    # Already the first of February there, still January in UTC.
    anchor = datetime(2026, 2, 1, 1, 0, tzinfo=east)

    assert boundary(anchor, 1) == day("2026-02-28T23:00")
    assert boundary(anchor, 1).tzinfo is UTC


@pytest.mark.parametrize(
    ("anchor", "instant", "cycle"),
    [
        ("2026-01-31", "2026-01-31", 0),
        ("2026-01-31", "2026-02-27T23:59:59.999999", 0),
        ("2026-01-31", "2026-02-28", 1),
        ("2026-01-31", "2026-03-30T23:59", 1),
        ("2026-01-31", "2026-03-31", 2),
        ("2026-01-31", "2026-01-30T23:59", -1),
        ("2026-12-15", "2027-01-14", 0),
        ("2026-12-15", "2027-01-15", 1),
    ],
)
def test_an_instant_lies_in_the_cycle_that_started_last(
    anchor: str, instant: str, cycle: int
) -> None:
    assert cycle_at(day(anchor), day(instant)) == cycle


@given(ANCHORS)
def test_cycle_zero_begins_at_the_anchor(anchor: datetime) -> None:
    assert boundary(anchor, 0) == anchor


@given(ANCHORS, CYCLES)
def test_each_cycle_begins_after_the_one_before(anchor: datetime, cycle: int) -> None:
    length = boundary(anchor, cycle + 1) - boundary(anchor, cycle)

    assert timedelta(days=28) <= length <= timedelta(days=31)


@given(ANCHORS, CYCLES)
def test_no_boundary_drifts_from_the_anchored_day(anchor: datetime, cycle: int) -> None:
    begins = boundary(anchor, cycle)
    tomorrow = begins + timedelta(days=1)

    assert begins.timetz() == anchor.timetz()
    # Earlier than the anchored day only on the last day of a month that has no such day.
    assert begins.day == anchor.day or (begins.day < anchor.day and tomorrow.day == 1)


@given(ANCHORS, CYCLES)
def test_a_year_later_is_the_same_month(anchor: datetime, cycle: int) -> None:
    now, later = boundary(anchor, cycle), boundary(anchor, cycle + 12)

    assert (later.year, later.month) == (now.year + 1, now.month)


@given(ANCHORS, CYCLES)
def test_boundary_and_cycle_at_are_inverse(anchor: datetime, cycle: int) -> None:
    begins = boundary(anchor, cycle)

    assert cycle_at(anchor, begins) == cycle
    assert cycle_at(anchor, begins - timedelta(microseconds=1)) == cycle - 1


@given(ANCHORS, INSTANTS)
def test_every_instant_lies_in_exactly_one_cycle(anchor: datetime, instant: datetime) -> None:
    cycle = cycle_at(anchor, instant)

    assert boundary(anchor, cycle) <= instant < boundary(anchor, cycle + 1)


@given(ANCHORS, INSTANTS, st.integers(min_value=-14, max_value=14))
def test_the_time_zone_of_an_instant_does_not_matter(
    anchor: datetime, instant: datetime, hours: int
) -> None:
    elsewhere = instant.astimezone(timezone(timedelta(hours=hours)))

    assert cycle_at(anchor, elsewhere) == cycle_at(anchor, instant)
