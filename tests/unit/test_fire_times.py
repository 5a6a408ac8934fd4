"""Fire times: cron in local time when clocks change, intervals, one-off times, jitter, catch-up."""

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overnight_server.domain.fire_times import (
    Cron,
    DueTime,
    FireTimes,
    Interval,
    Once,
    check_cron,
    due_time,
    due_times,
)
from overnight_server.domain.schedules import (
    CatchUp,
    CatchUpRule,
    FireKind,
    plan_fires,
    template_values,
)
from tests.support.fire_times import cron_times
from tests.support.profiles import examples

ID = UUID(int=7)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
ZONES = [
    *("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Havana"),
    *("America/St_Johns", "Pacific/Apia", "Africa/Casablanca", "Asia/Kathmandu", "UTC"),
]
NUMBERS = {0: 59, 1: 23, 2: 28, 3: 12, 4: 6}
INSTANTS = st.datetimes(
    datetime.fromisoformat("2005-01-01"),
    datetime.fromisoformat("2036-12-31"),
    timezones=st.just(UTC),
).map(lambda at: at.replace(second=0, microsecond=0))


def field(index: int) -> st.SearchStrategy[str]:
    """Return a field of a cron expression; the first two are often lists, the others often `*`."""
    number = st.integers(int(index in {2, 3}), NUMBERS[index])
    some = st.lists(number, min_size=1, max_size=3).map(lambda found: ",".join(map(str, found)))
    return st.one_of(some, st.just("*"), st.sampled_from(["*/2", "*/5"]))


CRONS = (
    st.tuples(*(field(index) for index in range(5)))
    .map(" ".join)
    .filter(lambda expression: check_cron(expression) is None)
)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def cron(expression: str, zone: str = "Europe/Berlin") -> FireTimes:
    return FireTimes(Cron(expression, zone))


def local_times(times: FireTimes, after: str, count: int, zone: str = "Europe/Berlin") -> list[str]:
    found = times.next_times(at(after), count)
    return [f"{instant.astimezone(ZoneInfo(zone)):%d %H:%M%z}" for instant in found]


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("30 2 * * *", "2027-03-27T12:00Z", ["28 03:00+0200", "29 02:30+0200"]),
        ("*/15 2 * * *", "2027-03-27T12:00Z", ["28 03:00+0200", "29 02:00+0200"]),
        ("0 2,3 * * *", "2027-03-27T12:00Z", ["28 03:00+0200", "29 02:00+0200"]),
        ("30 2 * * *", "2026-10-24T12:00Z", ["25 02:30+0200", "26 02:30+0100"]),
        ("0 */2 * * *", "2026-10-24T23:00Z", ["25 02:00+0200", "25 04:00+0100"]),
        ("*/30 * * * *", "2027-03-28T00:00Z", ["28 01:30+0100", "28 03:00+0200"]),
        (
            "*/30 * * * *",
            "2026-10-25T00:10Z",
            ["25 02:30+0200", "25 02:00+0100", "25 02:30+0100", "25 03:00+0100"],
        ),
        ("15 * * * *", "2026-10-25T00:30Z", ["25 02:15+0100", "25 03:15+0100"]),
    ],
)
def test_cron_follows_the_clocks(expression: str, after: str, expected: list[str]) -> None:
    assert local_times(cron(expression), after, len(expected)) == expected


@settings(max_examples=examples(150), deadline=None)
@given(CRONS, st.sampled_from(ZONES), INSTANTS)
def test_fire_times_are_those_of_every_minute_tried(
    expression: str, zone: str, start: datetime
) -> None:
    """Compare with a rule that looks at each minute of three days by itself."""
    end = start + 3 * DAY

    found = list(cron(expression, zone).between(start, end))

    assert found == cron_times(expression, ZoneInfo(zone), start, end)
    assert all(earlier < later for earlier, later in pairwise(found))


@settings(max_examples=examples(100), deadline=None)
@given(CRONS, st.sampled_from(ZONES), INSTANTS)
def test_the_time_before_is_the_one_whose_next_time_follows(
    expression: str, zone: str, instant: datetime
) -> None:
    times = cron(expression, zone)

    before = times.last_before(instant)

    if before is not None:
        assert before < instant
        following = times.first_after(before)
        assert following is None or following >= instant


@settings(max_examples=examples(300))
@given(st.text(alphabet="0123456789*/,-#LWlwMONJANmon ?@", max_size=40))
def test_any_text_is_a_cron_expression_or_has_a_fault(text: str) -> None:
    fault = check_cron(text)

    if fault is None:
        assert list(islice(cron(text, "UTC").after(at("2026-01-01T00:00Z")), 2))
    else:
        assert fault


@pytest.mark.parametrize(
    "expression",
    [
        "*/0 * * * *",
        "0 0 30 2 *",
        "0 0 31 4,6 *",
        "@reboot",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
    ],
)
def test_an_expression_that_never_fires_is_a_fault(expression: str) -> None:
    assert check_cron(expression) is not None


def test_an_interval_counts_elapsed_time() -> None:
    times = FireTimes(Interval(DAY, at("2027-03-27T20:00Z")))

    assert times.next_times(at("2027-03-27T20:00Z"), 2) == [
        at("2027-03-28T20:00Z"),
        at("2027-03-29T20:00Z"),
    ]
    assert times.first_after(at("2027-03-01T00:00Z")) == at("2027-03-27T20:00Z")
    assert times.first_after(at("2027-04-01T19:59:59.5Z")) == at("2027-04-01T20:00Z")


def test_a_single_instant_fires_once() -> None:
    times = FireTimes(Once(at("2027-01-01T00:00Z")))

    assert times.next_times(at("2026-01-01T00:00Z"), 5) == [at("2027-01-01T00:00Z")]
    assert times.first_after(at("2027-01-01T00:00Z")) is None


def test_fire_times_keep_within_their_bounds() -> None:
    times = FireTimes(Cron("0 22 * * *", "UTC"), at("2027-01-02T22:00Z"), at("2027-01-04T22:00Z"))

    found = times.next_times(at("2026-01-01T00:00Z"), 9)

    assert found == [at(f"2027-01-0{day}T22:00Z") for day in (2, 3, 4)]


def test_jitter_is_the_same_for_everybody_and_ends_before_the_next_fire_time() -> None:
    fire = at("2027-01-01T22:00Z")
    delays = {due_time(UUID(int=n), fire, HOUR, fire + MINUTE).due_at - fire for n in range(200)}

    assert len(delays) > 40
    assert min(delays) < timedelta(seconds=5)
    assert timedelta(seconds=50) < max(delays) < MINUTE
    assert due_time(ID, fire, HOUR, None) == due_time(ID, fire, HOUR, None)
    assert due_time(ID, fire, timedelta(), None).due_at == fire


def test_due_times_are_returned_in_parts() -> None:
    times, first = cron("* * * * *", "UTC"), at("2027-01-01T00:00Z")

    def part(now: datetime, limit: int) -> tuple[list[DueTime], DueTime | None]:
        return due_times(
            times, schedule_id=ID, fire_at=first, jitter=timedelta(), now=now, limit=limit
        )

    whole, following = part(first + 5 * MINUTE, 100)
    some, rest = part(first + 5 * MINUTE, 2)
    none, same = part(first - MINUTE, 2)

    assert [due.fire_at for due in whole] == [first + n * MINUTE for n in range(6)]
    assert following == DueTime(first + 6 * MINUTE, first + 6 * MINUTE)
    assert (some, rest) == (whole[:2], whole[2])
    assert (none, same) == ([], whole[0])


def test_after_the_last_due_time_there_is_no_next_one() -> None:
    instant = at("2027-01-01T00:00Z")
    due, following = due_times(
        FireTimes(Once(instant)),
        schedule_id=ID,
        fire_at=instant,
        jitter=HOUR,
        now=instant + HOUR,
        limit=5,
    )

    assert ([time.fire_at for time in due], following) == ([instant], None)


NOW = at("2027-01-01T12:00Z")


def dues(*minutes_ago: int) -> list[DueTime]:
    return [DueTime(NOW - ago * MINUTE, NOW - ago * MINUTE) for ago in minutes_ago]


def ago(*minutes: int) -> list[datetime]:
    return [NOW - minute * MINUTE for minute in minutes]


@pytest.mark.parametrize(
    ("policy", "due", "skipped", "runs"),
    [
        (CatchUp.NONE, (1,), (), (1,)),
        (CatchUp.NONE, (30, 20, 1), (30, 20), (1,)),
        (CatchUp.NONE, (30,), (30,), ()),
        (CatchUp.LAST, (30, 20), (30,), (20,)),
        (CatchUp.LAST, (30, 20, 1), (30, 20), (1,)),
        (CatchUp.ALL, (40, 30, 20, 1), (40,), (30, 20, 1)),
        (CatchUp.ALL, (20,), (), (20,)),
    ],
)
def test_missed_times_run_as_the_policy_says(
    policy: CatchUp, due: tuple[int, ...], skipped: tuple[int, ...], runs: tuple[int, ...]
) -> None:
    later = DueTime(NOW + MINUTE, NOW + MINUTE)

    plan = plan_fires(dues(*due), later, NOW, CatchUpRule(policy, 2, 5 * MINUTE))

    assert (list(plan.skipped), list(plan.runs)) == (ago(*skipped), ago(*runs))
    assert plan.next_time == later


def test_missed_times_that_may_be_the_latest_wait_until_all_are_known() -> None:
    [following] = dues(20)

    plan = plan_fires(dues(60, 50, 40, 30), following, NOW, CatchUpRule(CatchUp.ALL, 2, MINUTE))

    assert (list(plan.skipped), list(plan.runs)) == (ago(60, 50), [])
    assert plan.next_time == dues(40)[0]


def test_templates_get_the_times_around_a_fire_time() -> None:
    values = template_values(
        name="nightly",
        schedule_id="schedule_1",
        zone="Europe/Berlin",
        times=cron("0 0 * * *"),
        fire_at=at("2027-03-27T23:00Z"),
        kind=FireKind.SCHEDULED,
    )

    assert values == {
        "fire_time": "2027-03-27T23:00:00Z",
        "fire_time_local": "2027-03-28T00:00:00+01:00",
        "fire_date": "2027-03-28",
        "fire_unix": 1806188400,
        "previous_fire_time": "2027-03-26T23:00:00Z",
        "next_fire_time": "2027-03-28T22:00:00Z",
        "fire_kind": "scheduled",
        "schedule": "nightly",
        "schedule_id": "schedule_1",
        "zone": "Europe/Berlin",
    }
