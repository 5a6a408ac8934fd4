"""The headline of a night is honest by rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overnight_server.domain.headline import Mood, NightOutcome, headline, mood_of
from overnight_server.domain.reasons import ReasonCode

HOURS = 3600
NIGHTS = {
    "all done": (NightOutcome(done=40), "All 40 tasks are done.", Mood.GOOD),
    "all failed": (
        NightOutcome(dead=6, needs=2),
        "All 6 tasks failed, and two things need you.",
        Mood.BAD,
    ),
    "nothing queued": (NightOutcome(), "Nothing was queued.", Mood.QUIET),
    "still running": (
        NightOutcome(done=12, running=3, waiting=25, is_over=False),
        "Still going: 12 of 40 done, 3 running, 25 waiting.",
        Mood.OPEN,
    ),
    "worker died": (
        NightOutcome(
            done=3,
            waiting=5,
            lost_runs=1,
            blame=ReasonCode.NO_WORKER,
            blame_seconds=5 * HOURS,
        ),
        "3 of 8 done, 5 not finished: no worker was alive for 5 h.",
        Mood.BAD,
    ),
    "hours gone": (
        NightOutcome(
            done=5,
            waiting=4,
            needs=1,
            blame=ReasonCode.MONTHLY_HOURS,
            blame_seconds=2 * HOURS,
        ),
        (
            "5 of 9 done, 4 not finished: the month's hours were too few for 2 h,"
            " and one thing needs you."
        ),
        Mood.MIXED,
    ),
}


@pytest.mark.parametrize("name", NIGHTS)
def test_the_headlines_of_six_nights(name: str) -> None:
    outcome, sentence, mood = NIGHTS[name]

    assert (headline(outcome), mood_of(outcome)) == (sentence, mood)


COUNTS = st.integers(0, 50)


@given(
    outcome=st.builds(
        NightOutcome,
        done=COUNTS,
        dead=COUNTS,
        cancelled=COUNTS,
        running=COUNTS,
        waiting=COUNTS,
        needs=st.integers(0, 12),
        is_over=st.booleans(),
        lost_runs=st.integers(0, 3),
        blame=st.sampled_from([None, *(code.value for code in ReasonCode)]),
        blame_seconds=st.floats(0, 30_000),
    )
)
def test_a_bad_night_never_reads_like_a_good_one(outcome: NightOutcome) -> None:
    sentence = headline(outcome)

    is_good = outcome.total > 0 and outcome.done == outcome.total
    assert sentence.startswith(("All ", "The only task is done")) == (
        is_good or (outcome.dead == outcome.total and outcome.dead > 1)
    )
    assert ("are done" in sentence or "is done." in sentence) <= (is_good or "None of" in sentence)
    if outcome.dead:
        assert "failed" in sentence
    if outcome.needs:
        assert "you." in sentence
    assert (mood_of(outcome) is Mood.GOOD) == is_good
