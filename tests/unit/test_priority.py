"""Priorities: four numbers in the API, 101 stored scores."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overnight_server.domain.priority import (
    CRITICAL_BELOW,
    DEADLINE_HORIZON,
    DEADLINE_POINTS,
    DEFAULT_SCORE,
    MAX_DEPENDENCY_BOOST,
    SCORE_OF,
    critical_path_weights,
    deadline_urgency,
    effective_priority,
    priority_of,
    score,
    sort_key,
    tier,
)

SCORES = range(101)


@pytest.mark.parametrize(("priority_number", "stored"), [(1, 5), (2, 20), (3, 50), (4, 70)])
def test_each_api_priority_has_its_score(priority_number: int, stored: int) -> None:
    assert score(priority_number) == stored


@pytest.mark.parametrize("priority_number", sorted(SCORE_OF))
def test_a_priority_survives_storing(priority_number: int) -> None:
    assert priority_of(score(priority_number)) == priority_number


def test_both_defaults_are_the_same_priority() -> None:
    assert score(3) == DEFAULT_SCORE


@pytest.mark.parametrize("priority_number", [0, 5, -1])
def test_other_priorities_are_refused(priority_number: int) -> None:
    with pytest.raises(KeyError):
        score(priority_number)


@pytest.mark.parametrize(
    ("first", "last", "name", "priority_number"),
    [
        (0, 9, "critical", 1),
        (10, 29, "high", 2),
        (30, 59, "normal", 3),
        (60, 79, "low", 4),
        (80, 100, "background", 4),
    ],
)
def test_a_band_reaches_from_end_to_end(
    first: int, last: int, name: str, priority_number: int
) -> None:
    band = range(first, last + 1)

    assert {tier(stored) for stored in band} == {name}
    assert {priority_of(stored) for stored in band} == {priority_number}


def test_every_score_has_a_priority_in_order() -> None:
    priorities = [priority_of(stored) for stored in SCORES]

    assert all(earlier <= later for earlier, later in pairwise(priorities))


def test_critical_is_the_band_that_ageing_leaves_alone() -> None:
    assert {tier(stored) for stored in SCORES if stored < CRITICAL_BELOW} == {"critical"}
    assert tier(CRITICAL_BELOW) != "critical"


NOW = datetime(2026, 7, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def test_a_background_task_is_normal_after_a_little_over_five_hours() -> None:
    five, and_a_little = (
        effective_priority(90, boost_per_minute=0.1, age=minutes * MINUTE)
        for minutes in (5 * 60, 5 * 60 + 11)
    )

    assert tier(round(five)) == "low"
    assert tier(int(and_a_little)) == "normal"


def test_a_deadline_weighs_more_the_nearer_it_is() -> None:
    points = [deadline_urgency(minutes * MINUTE) for minutes in range(0, 24 * 60, 10)]

    assert points[0] == DEADLINE_POINTS
    assert all(near > far for near, far in pairwise(points))
    assert deadline_urgency(-MINUTE) == DEADLINE_POINTS


def test_a_deadline_beyond_the_horizon_weighs_next_to_nothing() -> None:
    assert deadline_urgency(DEADLINE_HORIZON) < 0.01
    assert deadline_urgency(timedelta(days=100_000)) == pytest.approx(0)


def test_a_task_with_a_longer_chain_behind_it_weighs_more() -> None:
    chain = critical_path_weights(5, [(n, n + 1) for n in range(4)])

    assert all(above > below for above, below in pairwise(chain))
    assert chain[-1] == 0


def test_among_equal_chains_the_one_that_more_wait_for_weighs_more() -> None:
    narrow, wide, *_ = critical_path_weights(6, [(0, 2), (1, 3), (1, 4), (1, 5)])

    assert narrow < wide < narrow + 1


def test_wide_and_deep_graphs_are_weighed_quickly_and_within_bounds() -> None:
    deep = critical_path_weights(10_000, [(n, n + 1) for n in range(9_999)])
    fan = [(0, n) for n in range(1, 9_999)] + [(n, 9_999) for n in range(1, 9_999)]
    wide = critical_path_weights(10_000, fan)

    assert max(deep) == MAX_DEPENDENCY_BOOST
    assert wide[0] == pytest.approx(3, abs=0.001)
    assert critical_path_weights(0, []) == []


@given(st.integers(2, 12).flatmap(lambda size: st.tuples(st.just(size), _edges(size))))
def test_a_child_weighs_less_than_its_parent(
    graph: tuple[int, list[tuple[int, int]]],
) -> None:
    size, edges = graph

    weights = critical_path_weights(size, edges)

    assert all(weights[parent] > weights[child] for parent, child in edges)
    assert all((weight == 0) == (n not in dict(edges)) for n, weight in enumerate(weights))


def _edges(size: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    pairs = [(parent, child) for parent in range(size) for child in range(parent + 1, size)]
    return st.lists(st.sampled_from(pairs), unique=True)


TASKS = st.tuples(st.integers(0, 100), st.integers(0, 10_000), st.floats(0, 20))


@given(TASKS, TASKS, st.integers(0, 100_000))
def test_the_stored_order_is_that_of_any_later_moment(
    one: tuple[int, int, float], other: tuple[int, int, float], later: int
) -> None:
    """For tasks that age equally, time does not change the order, so the key can be stored."""
    keys, urgencies = [], []
    for stored, made, weight in (one, other):
        made_at = NOW + made * MINUTE
        keys.append(
            sort_key(
                stored, boost_per_minute=0.1, made_at=made_at, now=NOW, dependency_boost=weight
            )
        )
        age = NOW + (10_000 + later) * MINUTE - made_at
        urgencies.append(
            effective_priority(stored, boost_per_minute=0.1, age=age, dependency_boost=weight)
        )

    assert keys[0] - keys[1] == pytest.approx(urgencies[0] - urgencies[1], abs=1e-4)


def test_faster_ageing_moves_a_task_forward_within_a_limit() -> None:
    rates = (0.0, 0.1, 0.5, 2.0)
    keys = [sort_key(50, boost_per_minute=rate, made_at=NOW, now=NOW) for rate in rates]
    much_later = sort_key(50, boost_per_minute=2.0, made_at=NOW + timedelta(days=90), now=NOW)

    assert keys == sorted(keys, reverse=True)
    assert max(keys) < much_later


@given(TASKS, st.integers(0, 9), st.integers(0, 10_000))
def test_nothing_overtakes_a_critical_task(
    other: tuple[int, int, float], critical: int, made: int
) -> None:
    stored, made_before, weight = max(other, (CRITICAL_BELOW, *other[1:]))

    first = sort_key(critical, boost_per_minute=10, made_at=NOW + made * MINUTE, now=NOW)
    second = sort_key(
        stored,
        boost_per_minute=0.1,
        made_at=NOW - made_before * MINUTE,
        now=NOW,
        dependency_boost=weight,
        deadline_at=NOW,
    )

    assert first < second
