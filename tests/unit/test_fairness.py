"""The fairness of each user: the part of an even share that each user got."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overnight_server.domain.fairness_report import (
    TaskInterval,
    UserFairness,
    even_shares,
    fairness_of_users,
    jain,
)

MANY = {"ada": 10, "bob": 10}


def fairness_of(of_users: list[UserFairness], user: str) -> UserFairness:
    [each] = [each for each in of_users if each.user == user]
    return each


def test_waits_and_shares_are_counted_for_each_user() -> None:
    spells = [
        TaskInterval("ada", 0, 10, 40),
        TaskInterval("ada", 0, 30, 60),
        TaskInterval("bob", 50, 50, 90),
        TaskInterval("bob", 70, None, None),
    ]

    of_users = fairness_of_users(spells, MANY, 0, 100)

    ada, bob = fairness_of(of_users, "ada"), fairness_of(of_users, "bob")
    assert [each.user for each in of_users] == ["ada", "bob"]
    assert (ada.started, ada.longest_wait, ada.median_wait) == (2, 30, 20)
    assert (bob.started, bob.waiting, bob.longest_wait, bob.median_wait) == (1, 1, 30, 0)
    assert (ada.slot_seconds, bob.slot_seconds, ada.slot_share) == (60, 40, 0.6)


def test_a_user_whose_whole_demand_runs_is_fully_served() -> None:
    of_users = fairness_of_users(
        [TaskInterval("ada", 0, 0, 100), TaskInterval("bob", 0, 0, 50)], MANY, 0, 100
    )

    assert [each.service for each in of_users] == [1, 1]


def test_a_user_who_waits_while_another_has_every_slot_is_not_served() -> None:
    hog = [TaskInterval("ada", 0, 0, 100) for _ in range(2)]

    of_users = fairness_of_users([*hog, TaskInterval("bob", 0, None, None)], MANY, 0, 100)

    assert fairness_of(of_users, "ada").service == 1
    assert fairness_of(of_users, "bob").service == 0


def test_even_shares_are_fair_at_any_demand() -> None:
    """Ada asks for ten times as much; each gets one of two slots."""
    crowd = [TaskInterval("ada", 0, None, None) for _ in range(20)]
    runs = [
        TaskInterval("ada", 0, 0, 100),
        TaskInterval("bob", 0, 0, 100),
        TaskInterval("bob", 0, None, None),
    ]

    of_users = fairness_of_users([*crowd, *runs], MANY, 0, 100)

    assert [each.service for each in of_users] == [1, 1]


def test_demand_is_limited_by_locks_and_plan() -> None:
    queue = [TaskInterval("ada", 0, None, None, locks=("red",)) for _ in range(9)]
    runs = [
        TaskInterval("ada", 0, 0, 100, locks=("red",)),
        *(TaskInterval("bob", 0, 0, 100) for _ in range(5)),
    ]
    small = [
        TaskInterval("cyd", 0, 0, 100),
        *(TaskInterval("cyd", 0, None, None) for _ in range(9)),
    ]

    of_users = fairness_of_users([*queue, *runs, *small], {**MANY, "cyd": 1}, 0, 100)

    assert {each.user: each.service for each in of_users} == {
        "ada": 1,
        "bob": 1,
        "cyd": 1,
    }


def test_tasks_that_cannot_start_count_as_no_demand() -> None:
    paused = [TaskInterval("bob", 0, None, None, is_owed=False), TaskInterval("bob", 0, 0, 100)]
    hog = [TaskInterval("ada", 0, 0, 100) for _ in range(3)]

    bob = fairness_of(fairness_of_users([*hog, *paused], MANY, 0, 100), "bob")

    assert (bob.service, bob.waiting, bob.longest_wait) == (1, 1, 100)


def test_demand_under_several_locks_counts_only_as_far_as_it_ran() -> None:
    """Ada's paths may exclude each other, so her demand is one slot or what she actually ran."""
    nested = [TaskInterval("ada", 0, None, None, locks=(f"path:src/{n}",)) for n in range(5)]
    others = [TaskInterval("bob", 0, 0, 100) for _ in range(4)]

    def served(*runs: TaskInterval) -> dict[str, float | None]:
        of_users = fairness_of_users([*nested, *runs, *others], MANY, 0, 100)
        return {each.user: each.service for each in of_users}

    assert served() == {"ada": 0, "bob": 1}
    assert served(TaskInterval("ada", 0, 0, 100, locks=("path:a",))) == {"ada": 1, "bob": 1}
    two = [TaskInterval("ada", 0, 0, 100, locks=("repo:a", f"repo:{n}")) for n in range(2)]
    assert served(*two) == {"ada": 1, "bob": 1}
    assert served(TaskInterval("ada", 0, 0, 100, locks=("red",))) == {"ada": 1, "bob": 1}


def test_changes_between_two_samples_are_not_counted() -> None:
    [each] = fairness_of_users([TaskInterval("ada", 5, 5, 5.001)], MANY, 0, 86_400)

    assert each.service is None
    assert each.started == 1


@pytest.mark.parametrize(("values", "index"), [([], None), ([0, 0], 1), ([3], 1), ([1, 3], 0.8)])
def test_jains_index_of_known_shares(values: list[float], index: float | None) -> None:
    assert jain(values) == index


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 50), max_size=8), st.integers(0, 100))
def test_even_shares_use_all_slots_and_exceed_no_demand(
    demands: dict[str, int], slots: int
) -> None:
    shares = even_shares(demands, slots)

    assert sum(shares.values()) == pytest.approx(min(slots, sum(demands.values())))
    assert all(shares[user] <= demands[user] for user in demands)
    most = max(shares.values(), default=0)
    assert all(shares[user] in (demands[user], pytest.approx(most)) for user in demands)
