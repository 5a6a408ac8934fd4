"""The words of schedules: plain words become timings, and timings become sentences."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overnight.errors import InvalidRequest
from overnight_server.domain.fire_times import Cron, FireTimes, Interval, Once
from overnight_server.domain.payload_templates import NAMES, Value, fill
from overnight_server.domain.schedule_words import describe, parse_when, time_in_words
from tests.support.profiles import examples

BERLIN = "Europe/Berlin"
NOW = datetime(2026, 7, 1, 12, 0, 30, 500, tzinfo=UTC)


@pytest.mark.parametrize(
    ("words", "expression"),
    [
        ("every weekday at 22:00", "0 22 * * 1-5"),
        ("  Every  Weekday at 10 PM ", "0 22 * * 1-5"),
        ("at 22:00 on weekdays", "0 22 * * 1-5"),
        ("22:00 every day", "0 22 * * *"),
        ("at noon", "0 12 * * *"),
        ("9am", "0 9 * * *"),
        ("daily at 12am and 12pm", "0 0,12 * * *"),
        ("every monday, wednesday, and friday at 08:00 and 20:00", "0 8,20 * * 1,3,5"),
        ("mondays at 7:05", "5 7 * * 1"),
        ("monday to friday at 6:00", "0 6 * * 1-5"),
        ("fri-mon at 6:00", "0 6 * * 0,1,5,6"),
        ("every weekend at midnight", "0 0 * * 0,6"),
        ("on the 1st and 15th of every month at 06:00", "0 6 1,15 * *"),
        ("monthly on the 31st at 06:00", "0 6 31 * *"),
        ("on the last day of the month at 23:00", "0 23 L * *"),
        ("every first monday at 09:00", "0 9 * * 1#1"),
        ("on the last friday of the month at 17:00", "0 17 * * 5L"),
        ("every year on 24 december at 18:00", "0 18 24 12 *"),
        ("on march 1st at 8:00", "0 8 1 3 *"),
        ("every minute", "* * * * *"),
        ("every 15 minutes", "*/15 * * * *"),
        ("hourly", "0 * * * *"),
        ("every 2 hours", "0 */2 * * *"),
        ("@daily", "0 0 * * *"),
        ("0 22 * * 1-5", "0 22 * * 1-5"),
        ("0  22 * * MON-FRI", "0 22 * * MON-FRI"),
        ("30 9 1 jan mon", "30 9 1 jan mon"),
    ],
)
def test_plain_words_become_a_cron_expression(words: str, expression: str) -> None:
    assert parse_when(words, BERLIN, NOW) == Cron(expression, BERLIN)


@pytest.mark.parametrize(
    ("words", "every"),
    [
        ("every 90 minutes", timedelta(minutes=90)),
        ("every 5 hours", timedelta(hours=5)),
        ("every 2 days", timedelta(days=2)),
        ("every 1 week", timedelta(days=7)),
    ],
)
def test_what_no_cron_expression_says_becomes_an_interval(words: str, every: timedelta) -> None:
    assert parse_when(words, BERLIN, NOW) == Interval(every, NOW.replace(microsecond=0))


@pytest.mark.parametrize(
    ("words", "instant"),
    [
        ("2030-01-31T07:00Z", "2030-01-31T07:00Z"),
        ("2030-01-31T07:00+02:00", "2030-01-31T05:00Z"),
        ("2030-01-31 07:00", "2030-01-31T06:00Z"),
        ("once on 2030-01-31 at 7am", "2030-01-31T06:00Z"),
        ("tomorrow at 07:00", "2026-07-02T05:00Z"),
        ("tonight at 22:00", "2026-07-01T20:00Z"),
        ("in 3 hours", "2026-07-01T15:00:30Z"),
        # A time that the clocks skip, and one that occurs twice.
        ("2027-03-28 02:30", "2027-03-28T01:00Z"),
        ("2026-10-25 02:30", "2026-10-25T00:30Z"),
    ],
)
def test_one_instant_is_written_in_several_ways(words: str, instant: str) -> None:
    assert parse_when(words, BERLIN, NOW) == Once(datetime.fromisoformat(instant))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("every monday", "names no time of day"),
        ("nonsense", "names no time of day"),
        ("every day at 25:00", "'25:00' is no time of day"),
        ("every day at 13pm", "'13pm' is no time of day"),
        ("every day at 8:00 and 9:30", "a schedule for each"),
        ("every blue moon at 9:00", "is not understood"),
        ("every month at 9:00", "is not understood"),
        ("* * * *", "five fields"),
        ("*/5 * * * * *", "five fields"),
        ("*/0 * * * *", "Bad minute"),
        ("0 0 30 2 *", "Bad day-of-month"),
        ("@reboot", "is no time"),
        ("every 0 minutes", "too short or too long"),
        ("every 500 days", "too short or too long"),
        ("2020-01-01 00:00", "has passed"),
        ("today at 10:00", "has passed"),
        ("2030-02-30 07:00", "day is out of range"),
        ("in 999999 weeks", "out of range"),
        ("9999-12-31T23:59-01:00", "out of range"),
        ("4000-01-01 00:00", "too late"),
    ],
)
def test_a_text_that_is_no_time_is_refused_with_examples(words: str, why: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        parse_when(words, BERLIN, NOW)

    [fault] = error.value.fields
    assert fault.field == "when"
    assert why in fault.message
    assert fault.legal


def test_an_unknown_zone_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="zone: 'Mars/Olympus' is no time zone"):
        parse_when("every day at 9:00", "Mars/Olympus", NOW)


WORDS = """every at on the and in , day days weekday monday fri last first 1st 31 of month year
    january 9am 25:00 22:00 noon minutes hours 5 90 0 * */2 1-5 @daily to - once today
    2030-01-31 2030-01-31T07:00Z"""


def _next_time(words: str) -> datetime | None:
    timing = parse_when(words, BERLIN, NOW)
    assert describe(timing)
    return FireTimes(timing).first_after(NOW)


@settings(max_examples=examples(300))
@given(st.lists(st.sampled_from(WORDS.split()), max_size=8).map(" ".join))
def test_every_text_is_a_timing_or_is_refused(words: str) -> None:
    with suppress(InvalidRequest):
        assert _next_time(words)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("0 22 * * 1-5", "At 22:00 on Monday through Friday, Europe/Berlin time"),
        (
            "0 0 2,21,31 * *",
            "At 00:00 on the second, the 21st, and the 31st day of month, UTC time",
        ),
        ("every 90 minutes", "Every 90 minutes"),
        ("every 24 hours", "Every day"),
        ("2030-01-31 07:00", "Once, on 2030-01-31 at 06:00 UTC"),
    ],
)
def test_a_timing_is_described_in_a_sentence(words: str, sentence: str) -> None:
    zone = "UTC" if "UTC time" in sentence else BERLIN
    assert describe(parse_when(words, zone, NOW)) == sentence


def test_an_instant_is_written_in_the_zone_of_a_user() -> None:
    instant = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)

    assert time_in_words(instant, BERLIN) == "Sun 25 Oct 2026, 02:30 CEST"
    assert time_in_words(instant, "America/New_York") == "Sat 24 Oct 2026, 20:30 EDT"
    assert time_in_words(instant.replace(second=7), "UTC") == "Sun 25 Oct 2026, 00:30:07 UTC"


VALUES: dict[str, Value] = {name: name.upper() for name in NAMES}


def test_templates_become_text_or_json_values() -> None:
    template = {
        "whole": "{{fire_unix}}",
        "none": "{{ previous_fire_time }}",
        "inside": "report of {{ fire_date }} ({{ previous_fire_time }})",
        "literal": r"\{{ fire_date }} {",
        "{{ keys }}": ["stay", 1, None, True, {"zone": "{{ zone }}"}],
    }

    filled = fill(template, {**VALUES, "fire_unix": 7, "previous_fire_time": None}, "payload")

    assert filled == {
        "whole": 7,
        "none": None,
        "inside": "report of FIRE_DATE ()",
        "literal": "{{ fire_date }} {",
        "{{ keys }}": ["stay", 1, None, True, {"zone": "ZONE"}],
    }


@pytest.mark.parametrize(
    "text",
    ["{{ user }}", "a {{ fire_time | upper }}", "{{ 1 + 1 }}", "{{", "{{ fire_time }", "{{}}"],
)
def test_an_unknown_name_is_refused_and_nothing_is_evaluated(text: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        fill({"a": [text]}, VALUES, "task")

    [fault] = error.value.fields
    assert fault.field == "task.a.0"
    assert "fire_time" in fault.legal


@given(st.text())
def test_a_value_is_not_filled_again(text: str) -> None:
    assert fill("<{{ schedule }}>", {**VALUES, "schedule": text}, "task") == f"<{text}>"
