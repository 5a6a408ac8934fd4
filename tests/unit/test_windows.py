"""Night windows: opened and closed by local time, also when the clocks change."""

from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overnight.errors import InvalidRequest
from overnight.models.enums import AtClosing
from overnight_server.domain.windows import (
    NightWindow,
    instant_of,
    is_zone,
    parse_window,
    window_state,
)
from tests.support.profiles import examples

BERLIN = NightWindow("Europe/Berlin", time(22), time(6))
MINUTE = timedelta(minutes=1)
# Half an hour of summer time, a jump at midnight, a minute past it, a day that was skipped whole,
# a year with four changes, and two that have none.
ZONES = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Havana",
    "America/St_Johns",
    "Pacific/Apia",
    "Africa/Casablanca",
    "Asia/Kathmandu",
    "UTC",
]
WALLS = st.times().map(lambda at: at.replace(second=0, microsecond=0))
WINDOWS = st.builds(NightWindow, st.sampled_from(ZONES), WALLS, WALLS).filter(
    lambda window: window.opens != window.closes
)
INSTANTS = st.datetimes(
    datetime.fromisoformat("2005-01-01"),
    datetime.fromisoformat("2036-12-31"),
    timezones=st.just(UTC),
)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_a_night_spans_midnight() -> None:
    evening, night, morning = (
        window_state(BERLIN, at(f"2026-07-{moment}+00:00"))
        for moment in ("01T19:59", "01T20:00", "02T04:00")
    )

    assert (evening.is_open, night.is_open, morning.is_open) == (False, True, False)
    assert evening.changes_at == at("2026-07-01T20:00+00:00")
    assert night.changes_at == at("2026-07-02T04:00+00:00")
    assert morning.changes_at == at("2026-07-02T20:00+00:00")
    assert morning.closed_at == at("2026-07-02T04:00+00:00")


def test_a_window_may_lie_within_one_day() -> None:
    lunch = NightWindow("Asia/Kathmandu", time(12), time(13, 30))

    state = window_state(lunch, at("2026-07-01T12:15+05:45"))

    assert state.is_open
    assert state.closes_at == at("2026-07-01T13:30+05:45")


@pytest.mark.parametrize(
    ("evening", "length"),
    [("2026-07-01", 8), ("2027-03-27", 7), ("2026-10-24", 9)],
    ids=["a plain night", "clocks go forward", "clocks go back"],
)
def test_the_length_of_a_night_follows_clock_changes(evening: str, length: int) -> None:
    state = window_state(BERLIN, at(f"{evening}T23:00+00:00"))

    assert state.closes_at - state.opens_at == timedelta(hours=length)


@pytest.mark.parametrize(
    ("noon", "minutes"),
    [("2026-07-01", 24 * 60), ("2027-03-27", 23 * 60), ("2026-10-24", 25 * 60)],
)
def test_a_window_of_nearly_a_day_has_23_or_25_hours(noon: str, minutes: int) -> None:
    nearly_always = NightWindow("Europe/Berlin", time(12), time(11, 59))

    state = window_state(nearly_always, at(f"{noon}T20:00+00:00"))

    assert state.closes_at - state.opens_at == (minutes - 1) * MINUTE


def test_a_skipped_local_time_is_the_instant_of_the_clock_change() -> None:
    jump = at("2027-03-28T01:00+00:00")

    opening = window_state(NightWindow("Europe/Berlin", time(2, 30), time(5)), jump - MINUTE)
    closing = window_state(NightWindow("Europe/Berlin", time(22), time(2, 30)), jump - MINUTE)

    assert opening.opens_at == jump
    assert closing.closes_at == jump


def test_a_repeated_local_time_is_its_first_instant() -> None:
    first = at("2026-10-25T00:30+00:00")

    opening = window_state(NightWindow("Europe/Berlin", time(2, 30), time(5)), first - MINUTE)
    closing = window_state(NightWindow("Europe/Berlin", time(22), time(2, 30)), first - MINUTE)
    later = window_state(
        NightWindow("Europe/Berlin", time(22), time(2, 30)), first + timedelta(hours=1)
    )

    assert opening.opens_at == first
    assert closing.closes_at == first
    assert later.is_open is False


def test_a_night_inside_a_clock_change_is_left_out() -> None:
    within_the_jump = NightWindow("Europe/Berlin", time(2, 10), time(2, 50))

    state = window_state(within_the_jump, at("2027-03-28T00:00+00:00"))

    assert state.opens_at == at("2027-03-29T02:10+02:00")


def test_a_day_that_a_zone_skipped_raises_no_error() -> None:
    samoa = NightWindow("Pacific/Apia", time(22), time(6))

    before = window_state(samoa, at("2011-12-30T09:59:59+00:00"))
    after = window_state(samoa, at("2011-12-30T10:00:00+00:00"))

    assert before.closes_at == after.opens_at == at("2011-12-31T00:00+14:00")
    assert after.closes_at == at("2011-12-31T06:00+14:00")


@given(WINDOWS, INSTANTS)
def test_the_state_of_a_window_is_consistent(window: NightWindow, instant: datetime) -> None:
    state = window_state(window, instant)

    assert state.opens_at < state.closes_at
    assert state.is_open == (state.opens_at <= instant < state.closes_at)
    assert state.closed_at <= min(instant, state.opens_at)
    assert instant < state.changes_at
    assert state.changes_at - instant < timedelta(hours=49)


@given(WINDOWS, INSTANTS)
def test_nights_follow_each_other_without_overlap(window: NightWindow, instant: datetime) -> None:
    state = window_state(window, instant)
    last = window_state(window, state.closes_at)

    assert last.opens_at >= state.closes_at == last.closed_at
    assert window_state(window, state.opens_at).closes_at == state.closes_at
    assert (
        window_state(window, state.closes_at - timedelta(microseconds=1)).opens_at == state.opens_at
    )


@given(st.sampled_from(ZONES), st.dates(date(2005, 1, 1), date(2036, 12, 31)), WALLS)
def test_no_instant_is_before_the_wall_clock_shows_the_time(
    name: str, day: date, wall: time
) -> None:
    zone = ZoneInfo(name)

    instant = instant_of(zone, day, wall)

    wanted = datetime.combine(day, wall)
    assert instant.astimezone(zone).replace(tzinfo=None) >= wanted
    before = (instant - timedelta(seconds=1)).astimezone(zone).replace(tzinfo=None)
    assert before < wanted


# The nights at which each zone's clocks change, and one at which none do.
CHANGES = [
    ("Europe/Berlin", "2027-03-28"),
    ("Europe/Berlin", "2026-10-25"),
    ("America/New_York", "2027-03-14"),
    ("America/New_York", "2026-11-01"),
    ("Australia/Lord_Howe", "2026-10-04"),
    ("Australia/Lord_Howe", "2027-04-04"),
    ("America/Havana", "2027-03-14"),
    ("America/Havana", "2026-11-01"),
    ("America/St_Johns", "2010-03-14"),
    ("Pacific/Apia", "2011-12-30"),
    ("Africa/Casablanca", "2026-02-15"),
    ("UTC", "2026-06-01"),
]


@pytest.mark.parametrize(("name", "day"), CHANGES)
@settings(max_examples=examples(20))
@given(opens=WALLS, closes=WALLS)
def test_each_minute_of_a_clock_change_is_open_by_the_wall_clock(
    name: str, day: str, opens: time, closes: time
) -> None:
    if opens == closes:
        return
    window = NightWindow(name, opens, closes)
    # Eleven-minute steps meet every hour at another minute, and keep the test quick.
    for instant, wall in _watched(name, day)[::11]:
        assert window_state(window, instant).is_open == _is_night(window, wall), instant


@cache
def _watched(name: str, day: str) -> list[tuple[datetime, datetime]]:
    """Each minute around a day, and the latest that the wall clock has shown by then."""
    zone = ZoneInfo(name)
    begin = datetime.combine(date.fromisoformat(day), time(), UTC) - timedelta(days=2)
    latest = datetime.fromisoformat("0001-01-01")
    watched = []
    for minute in range(4 * 24 * 60):
        instant = begin + minute * MINUTE
        latest = max(latest, instant.astimezone(zone).replace(tzinfo=None))
        watched.append((instant, latest))
    return watched


def _is_night(window: NightWindow, wall: datetime) -> bool:
    if window.opens < window.closes:
        return window.opens <= wall.time() < window.closes
    return wall.time() >= window.opens or wall.time() < window.closes


def test_a_window_is_parsed() -> None:
    window = parse_window("Europe/Berlin", "22:00", "06:30", "stop")

    assert window == NightWindow("Europe/Berlin", time(22), time(6, 30), AtClosing.STOP)
    assert str(window) == "22:00-06:30 Europe/Berlin"


@pytest.mark.parametrize(
    ("fields", "field", "legal"),
    [
        (("Mars/Phobos", "22:00", "06:00", "stop"), "zone", "Europe/Berlin"),
        (("Europe", "22:00", "06:00", "stop"), "zone", "Europe/Berlin"),
        (("../etc/passwd", "22:00", "06:00", "stop"), "zone", "Europe/Berlin"),
        (("", "22:00", "06:00", "stop"), "zone", "Europe/Berlin"),
        (("UTC", "10pm", "06:00", "stop"), "from", "22:00"),
        (("UTC", "24:00", "06:00", "stop"), "from", "22:00"),
        (("UTC", "22:00", "6:00", "stop"), "to", "22:00"),
        (("UTC", "22:00", "22:00", "stop"), "to", "another time"),
        (("UTC", "22:00", "06:00", "panic"), "at_closing", "continue, finish, stop"),
    ],
)
def test_a_wrong_field_is_named_with_a_legal_value(
    fields: tuple[str, str, str, str], field: str, legal: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_window(*fields)

    assert refused.value.fields[0].field == field
    assert legal in refused.value.message


def test_only_time_zones_known_to_this_machine_are_accepted() -> None:
    assert is_zone("Europe/Berlin")
    assert not is_zone("Europe/Atlantis")
    assert not is_zone("a\x00b")
