"""Graphs without a database: met edges, ends of tasks, and the status of the graph."""

import pytest

from overnight_server.domain.graphs import (
    CancelReason,
    Condition,
    GraphEdge,
    GraphStatus,
    OnUnmet,
    TaskEnd,
    cancel_reason,
    descendants,
    is_met,
    predict_ends,
    status,
    tasks_to_rerun,
)
from overnight_server.domain.lifecycle import FINAL, OPEN, State

COMPLETED, DEAD, CANCELLED = State.COMPLETED, State.DEAD_LETTERED, State.CANCELLED
STOPPED = TaskEnd(CANCELLED, "cancelled")
DONE = TaskEnd(COMPLETED)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (Condition.SUCCESS, {COMPLETED}),
        (Condition.FINISHED, {COMPLETED, DEAD, CANCELLED}),
        (Condition.FAILURE, {DEAD}),
    ],
)
def test_an_edge_is_met_by_a_state_of_its_condition(
    condition: Condition, expected: set[State]
) -> None:
    assert {state for state in FINAL if is_met(condition, OnUnmet.CANCEL, state)} == expected
    assert all(is_met(condition, OnUnmet.CONTINUE, state) for state in FINAL)


@pytest.mark.parametrize("parent", sorted(OPEN))
def test_a_parent_that_has_not_ended_meets_no_edge(parent: State) -> None:
    assert not any(
        is_met(condition, policy, parent) for condition in Condition for policy in OnUnmet
    )


@pytest.mark.parametrize(
    ("parent", "reason"),
    [
        (TaskEnd(DEAD), CancelReason.UPSTREAM_FAILED),
        (DONE, CancelReason.NOT_NEEDED),
        (STOPPED, CancelReason.UPSTREAM_CANCELLED),
        (TaskEnd(CANCELLED, "budget_exceeded"), CancelReason.UPSTREAM_CANCELLED),
        (TaskEnd(CANCELLED, "upstream_failed"), CancelReason.UPSTREAM_FAILED),
        (TaskEnd(CANCELLED, "not_needed"), CancelReason.NOT_NEEDED),
    ],
)
def test_the_cancel_reason_follows_from_the_parent(parent: TaskEnd, reason: CancelReason) -> None:
    assert cancel_reason(parent) is reason


def test_a_fallback_runs_only_if_it_is_needed() -> None:
    fallback = [GraphEdge(0, 1, Condition.FAILURE)]

    assert predict_ends([COMPLETED, COMPLETED], fallback)[1] == TaskEnd(
        CANCELLED, CancelReason.NOT_NEEDED
    )
    assert predict_ends([DEAD, COMPLETED], fallback)[1] == DONE
    assert predict_ends([CANCELLED, COMPLETED], fallback)[1] == TaskEnd(
        CANCELLED, CancelReason.UPSTREAM_CANCELLED
    )


def test_a_clean_up_runs_behind_a_chain_that_was_cancelled() -> None:
    links = [GraphEdge(0, 1), GraphEdge(1, 2), GraphEdge(2, 3, Condition.FINISHED), GraphEdge(3, 4)]

    assert predict_ends([DEAD, COMPLETED, COMPLETED, COMPLETED, COMPLETED], links) == [
        TaskEnd(DEAD),
        *[TaskEnd(CANCELLED, CancelReason.UPSTREAM_FAILED)] * 2,
        *[DONE] * 2,
    ]


def test_an_unmet_edge_with_continue_counts_as_met() -> None:
    links = [GraphEdge(0, 2, on_unmet=OnUnmet.CONTINUE), GraphEdge(1, 2)]

    assert predict_ends([DEAD, COMPLETED, COMPLETED], links)[2] == DONE
    assert predict_ends([COMPLETED, DEAD, COMPLETED], links)[2] == TaskEnd(
        CANCELLED, CancelReason.UPSTREAM_FAILED
    )


def test_one_unmet_edge_cancels_the_child_whatever_the_others_are() -> None:
    links = [GraphEdge(0, 2, Condition.FAILURE), GraphEdge(1, 2)]

    assert (
        predict_ends([COMPLETED, COMPLETED, COMPLETED], links)[2].reason == CancelReason.NOT_NEEDED
    )
    assert (
        predict_ends([COMPLETED, DEAD, COMPLETED], links)[2].reason == CancelReason.UPSTREAM_FAILED
    )


@pytest.mark.parametrize(
    ("tasks", "outcome"),
    [
        ([], GraphStatus.PENDING),
        ([DONE, TaskEnd(State.PENDING)], GraphStatus.RUNNING),
        ([TaskEnd(DEAD), TaskEnd(State.RETRYING)], GraphStatus.RUNNING),
        ([DONE, DONE], GraphStatus.COMPLETED),
        ([DONE, TaskEnd(CANCELLED, CancelReason.NOT_NEEDED)], GraphStatus.COMPLETED),
        ([DONE, STOPPED], GraphStatus.CANCELLED),
        ([STOPPED, TaskEnd(CANCELLED, CancelReason.UPSTREAM_CANCELLED)], GraphStatus.CANCELLED),
        ([TaskEnd(DEAD), DONE], GraphStatus.FAILED),
        ([TaskEnd(DEAD), STOPPED], GraphStatus.FAILED),
    ],
)
def test_the_status_of_a_graph_follows_from_its_tasks(
    tasks: list[TaskEnd], outcome: GraphStatus
) -> None:
    assert status(tasks) is outcome


def test_descendants_are_all_tasks_reachable_from_a_task() -> None:
    edges = [(0, 1), (1, 3), (0, 2), (2, 3), (3, 4), (5, 4)]

    assert descendants(1, edges) == {3, 4}
    assert descendants(4, edges) == set()


def test_a_fork_runs_descendants_and_their_missing_parents() -> None:
    edges = [(0, 1), (1, 2), (3, 2), (4, 3), (0, 5)]
    states = {0: COMPLETED, 1: COMPLETED, 2: CANCELLED, 3: CANCELLED, 4: COMPLETED, 5: DEAD}

    # task 5 did not complete, and no task that runs again needs it
    assert tasks_to_rerun(1, states, edges) == {1, 2, 3}
    assert tasks_to_rerun(0, states, edges) == {0, 1, 2, 3, 5}
