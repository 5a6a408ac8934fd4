"""Priorities: four words on the wire, a hundred and one scores behind them."""

from itertools import pairwise

import pytest

from app.domain.priority import (
    CRITICAL_BELOW,
    DEFAULT_SCORE,
    SCORE_OF,
    priority_of,
    score,
    tier,
)

SCORES = range(101)


@pytest.mark.parametrize(("word", "stored"), [(1, 5), (2, 20), (3, 50), (4, 70)])
def test_a_word_of_the_wire_has_its_score(word: int, stored: int) -> None:
    assert score(word) == stored


@pytest.mark.parametrize("word", sorted(SCORE_OF))
def test_a_word_comes_back_as_itself(word: int) -> None:
    assert priority_of(score(word)) == word


def test_both_defaults_are_the_same_priority() -> None:
    assert score(3) == DEFAULT_SCORE


@pytest.mark.parametrize("word", [0, 5, -1])
def test_there_is_no_other_word(word: int) -> None:
    with pytest.raises(KeyError):
        score(word)


@pytest.mark.parametrize(
    ("first", "last", "name", "word"),
    [
        (0, 9, "critical", 1),
        (10, 29, "high", 2),
        (30, 59, "normal", 3),
        (60, 79, "low", 4),
        (80, 100, "background", 4),
    ],
)
def test_a_band_reaches_from_end_to_end(first: int, last: int, name: str, word: int) -> None:
    band = range(first, last + 1)

    assert {tier(stored) for stored in band} == {name}
    assert {priority_of(stored) for stored in band} == {word}


def test_every_score_has_a_word_and_lower_is_never_less_urgent() -> None:
    words = [priority_of(stored) for stored in SCORES]

    assert all(earlier <= later for earlier, later in pairwise(words))


def test_critical_is_the_band_that_ageing_leaves_alone() -> None:
    assert {tier(stored) for stored in SCORES if stored < CRITICAL_BELOW} == {"critical"}
    assert tier(CRITICAL_BELOW) != "critical"
