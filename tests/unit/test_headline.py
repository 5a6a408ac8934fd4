"""The headline of a night is honest by rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overnight_server.domain.headline import (
    MAIN_SHARE,
    WHOLE_SHARE,
    Mood,
    NightOutcome,
    headline,
    mood_of,
)
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
            waits=((ReasonCode.NO_WORKER, 5 * HOURS),),
        ),
        "3 of 8 done, 5 not finished: no worker was alive for 5 h.",
        Mood.BAD,
    ),
    "hours gone": (
        NightOutcome(
            done=5,
            waiting=4,
            needs=1,
            waits=((ReasonCode.MONTHLY_HOURS, 2 * HOURS),),
        ),
        (
            "5 of 9 done, 4 not finished: the month's hours were too few for 2 h,"
            " and one thing needs you."
        ),
        Mood.MIXED,
    ),
    "three causes that weigh the same": (
        NightOutcome(
            done=28,
            dead=4,
            running=1,
            waiting=5,
            cancelled=2,
            needs=5,
            waits=(
                (ReasonCode.APPROVAL, 2.9 * HOURS),
                (ReasonCode.LOCK, 2.5 * HOURS),
                (ReasonCode.MONTHLY_HOURS, 2.4 * HOURS),
            ),
        ),
        (
            "28 of 40 done, 4 failed, 6 not finished (waited for your answer, a lock and"
            " monthly hours), and five things need you."
        ),
        Mood.MIXED,
    ),
    "a main cause among others": (
        NightOutcome(
            done=5,
            waiting=4,
            waits=((ReasonCode.BUDGET, 4 * HOURS), (ReasonCode.LOCK, HOURS)),
        ),
        "5 of 9 done, 4 not finished, mostly because the budget was used up (4 h).",
        Mood.MIXED,
    ),
    "many small causes": (
        NightOutcome(
            done=1,
            waiting=9,
            waits=tuple(
                (code, HOURS)
                for code in (
                    ReasonCode.DEPENDENCY,
                    ReasonCode.LOCK,
                    ReasonCode.RETRY_AT,
                    ReasonCode.SLOTS,
                    ReasonCode.PAUSED,
                )
            ),
        ),
        "1 of 10 done, 9 not finished (waited mainly for other tasks, a lock and the next try).",
        Mood.BAD,
    ),
    "still running, for several causes": (
        NightOutcome(
            done=1,
            running=1,
            waiting=2,
            is_over=False,
            waits=((ReasonCode.LOCK, HOURS), (ReasonCode.DEPENDENCY, HOURS)),
        ),
        "Still going: 1 of 4 done, 1 running, 2 waiting (for a lock and other tasks).",
        Mood.OPEN,
    ),
    "only a lock": (
        NightOutcome(done=3, waiting=1, waits=((ReasonCode.LOCK, 2 * HOURS),)),
        "3 of 4 done, 1 not finished (waited for a lock).",
        Mood.MIXED,
    ),
}


@pytest.mark.parametrize("name", NIGHTS)
def test_the_headlines_of_nights(name: str) -> None:
    outcome, sentence, mood = NIGHTS[name]

    assert (headline(outcome), mood_of(outcome)) == (sentence, mood)


COUNTS = st.integers(0, 50)


def by_length(waits: dict[ReasonCode, float]) -> tuple[tuple[str, float], ...]:
    """Return causes with their times, the longest first."""
    return tuple(sorted(waits.items(), key=lambda wait: -wait[1]))


@given(
    waits=st.dictionaries(st.sampled_from(ReasonCode), st.floats(700, 30_000), min_size=2).map(
        by_length
    )
)
def test_one_cause_is_blamed_alone_only_if_it_took_nearly_all_of_the_time(
    waits: tuple[tuple[str, float], ...],
) -> None:
    sentence = headline(NightOutcome(done=1, waiting=1, waits=waits))

    share = waits[0][1] / sum(seconds for _, seconds in waits)
    if share < WHOLE_SHARE:
        assert ": " not in sentence
    assert ("mostly" in sentence) <= (MAIN_SHARE <= share < WHOLE_SHARE)


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
        waits=st.dictionaries(st.sampled_from(ReasonCode), st.floats(0, 30_000)).map(by_length),
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
