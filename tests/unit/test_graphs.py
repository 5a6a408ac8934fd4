"""Graphs without a database: when edges are met, how tasks end, what the whole came to."""

import pytest

from overnight_server.domain.graphs import (
    Because,
    Condition,
    End,
    GraphStatus,
    Link,
    OnUnmet,
    after,
    because_of,
    ends,
    is_met,
    status,
    to_run_again,
)
from overnight_server.domain.lifecycle import FINAL, OPEN, State

COMPLETED, DEAD, CANCELLED = State.COMPLETED, State.DEAD_LETTERED, State.CANCELLED
STOPPED = End(CANCELLED, "cancelled")
DONE = End(COMPLETED)


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        (Condition.SUCCESS, {COMPLETED}),
        (Condition.FINISHED, {COMPLETED, DEAD, CANCELLED}),
        (Condition.FAILURE, {DEAD}),
    ],
)
def test_an_edge_is_met_by_the_end_it_wants(condition: Condition, wanted: set[State]) -> None:
    assert {one for one in FINAL if is_met(condition, OnUnmet.CANCEL, one)} == wanted
    assert all(is_met(condition, OnUnmet.CONTINUE, one) for one in FINAL)


@pytest.mark.parametrize("parent", sorted(OPEN))
def test_nothing_is_met_by_a_parent_that_has_not_ended(parent: State) -> None:
    assert not any(is_met(one, policy, parent) for one in Condition for policy in OnUnmet)


@pytest.mark.parametrize(
    ("parent", "reason"),
    [
        (End(DEAD), Because.UPSTREAM_FAILED),
        (DONE, Because.NOT_NEEDED),
        (STOPPED, Because.UPSTREAM_CANCELLED),
        (End(CANCELLED, "budget_exceeded"), Because.UPSTREAM_CANCELLED),
        (End(CANCELLED, "upstream_failed"), Because.UPSTREAM_FAILED),
        (End(CANCELLED, "not_needed"), Because.NOT_NEEDED),
    ],
)
def test_consequences_keep_the_name_of_what_began_them(parent: End, reason: Because) -> None:
    assert because_of(parent) is reason


def test_a_fallback_runs_only_if_it_is_needed() -> None:
    fallback = [Link(0, 1, Condition.FAILURE)]

    assert ends([COMPLETED, COMPLETED], fallback)[1] == End(CANCELLED, Because.NOT_NEEDED)
    assert ends([DEAD, COMPLETED], fallback)[1] == DONE
    assert ends([CANCELLED, COMPLETED], fallback)[1] == End(CANCELLED, Because.UPSTREAM_CANCELLED)


def test_a_clean_up_runs_behind_a_chain_that_was_cancelled() -> None:
    links = [Link(0, 1), Link(1, 2), Link(2, 3, Condition.FINISHED), Link(3, 4)]

    assert ends([DEAD, COMPLETED, COMPLETED, COMPLETED, COMPLETED], links) == [
        End(DEAD),
        *[End(CANCELLED, Because.UPSTREAM_FAILED)] * 2,
        *[DONE] * 2,
    ]


def test_an_edge_that_continues_lets_its_child_go_on() -> None:
    links = [Link(0, 2, on_unmet=OnUnmet.CONTINUE), Link(1, 2)]

    assert ends([DEAD, COMPLETED, COMPLETED], links)[2] == DONE
    assert ends([COMPLETED, DEAD, COMPLETED], links)[2] == End(CANCELLED, Because.UPSTREAM_FAILED)


def test_one_edge_in_vain_outweighs_all_that_are_met() -> None:
    links = [Link(0, 2, Condition.FAILURE), Link(1, 2)]

    assert ends([COMPLETED, COMPLETED, COMPLETED], links)[2].reason == Because.NOT_NEEDED
    assert ends([COMPLETED, DEAD, COMPLETED], links)[2].reason == Because.UPSTREAM_FAILED


@pytest.mark.parametrize(
    ("tasks", "outcome"),
    [
        ([], GraphStatus.PENDING),
        ([DONE, End(State.PENDING)], GraphStatus.RUNNING),
        ([End(DEAD), End(State.RETRYING)], GraphStatus.RUNNING),
        ([DONE, DONE], GraphStatus.COMPLETED),
        ([DONE, End(CANCELLED, Because.NOT_NEEDED)], GraphStatus.COMPLETED),
        ([DONE, STOPPED], GraphStatus.CANCELLED),
        ([STOPPED, End(CANCELLED, Because.UPSTREAM_CANCELLED)], GraphStatus.CANCELLED),
        ([End(DEAD), DONE], GraphStatus.FAILED),
        ([End(DEAD), STOPPED], GraphStatus.FAILED),
    ],
)
def test_a_graph_is_what_its_tasks_make_it(tasks: list[End], outcome: GraphStatus) -> None:
    assert status(tasks) is outcome


def test_after_a_task_comes_everything_it_leads_to() -> None:
    edges = [(0, 1), (1, 3), (0, 2), (2, 3), (3, 4), (5, 4)]

    assert after(1, edges) == {3, 4}
    assert after(4, edges) == set()


def test_a_fork_runs_what_comes_after_and_what_that_still_lacks() -> None:
    edges = [(0, 1), (1, 2), (3, 2), (4, 3), (0, 5)]
    states = {0: COMPLETED, 1: COMPLETED, 2: CANCELLED, 3: CANCELLED, 4: COMPLETED, 5: DEAD}

    # 5 neither completed nor is needed by anything that runs anew
    assert to_run_again(1, states, edges) == {1, 2, 3}
    assert to_run_again(0, states, edges) == {0, 1, 2, 3, 5}
