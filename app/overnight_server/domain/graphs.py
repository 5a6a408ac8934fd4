"""Graphs: when an edge is met, how tasks end because of others, and the status of a graph.

An edge requires its parent to end in a certain way. If the parent ends otherwise, `on_unmet`
decides. The statement `resolve_dependents` in `store/sql/graphs.sql` does to rows what
`predict_ends` computes for a whole graph; a property test compares them.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from graphlib import TopologicalSorter
from typing import TypeVar

from overnight_server.domain.lifecycle import FINAL, State


class Condition(StrEnum):
    """How a parent must end for an edge to be met."""

    SUCCESS = "success"
    FINISHED = "finished"
    FAILURE = "failure"


class OnUnmet(StrEnum):
    """What happens to a child whose edge can never be met."""

    CANCEL = "cancel"
    CONTINUE = "continue"


class CancelReason(StrEnum):
    """Why a task was cancelled because another ended; of several reasons the last is stored."""

    NOT_NEEDED = "not_needed"
    UPSTREAM_CANCELLED = "upstream_cancelled"
    UPSTREAM_FAILED = "upstream_failed"


class GraphStatus(StrEnum):
    """The status of a graph."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class TriggerCondition(StrEnum):
    """How a graph must end to fire a trigger; `finished` is any end."""

    COMPLETED = "completed"
    FAILED = "failed"
    FINISHED = "finished"


#: The failure reason of a task that somebody cancelled.
STOPPED = "cancelled"
#: The failure reason of a task whose dead letter was resolved by `cancel`.
DISCARDED = "discarded"
REQUIRED_ENDS: Mapping[Condition, frozenset[State]] = {
    Condition.SUCCESS: frozenset({State.COMPLETED}),
    Condition.FINISHED: FINAL,
    Condition.FAILURE: frozenset({State.DEAD_LETTERED}),
}

T = TypeVar("T")


@dataclass(frozen=True)
class GraphEdge:
    """An edge: `child` waits for `parent`; both are indexes in a list of tasks."""

    parent: int
    child: int
    condition: Condition = Condition.SUCCESS
    on_unmet: OnUnmet = OnUnmet.CANCEL


@dataclass(frozen=True)
class TaskEnd:
    """How a task ended; `reason` only if it was cancelled."""

    state: State
    reason: str | None = None


def is_met(condition: Condition, on_unmet: OnUnmet, parent: State) -> bool:
    """Whether an edge is met by the state of its parent.

    >>> is_met(Condition.FAILURE, OnUnmet.CANCEL, State.DEAD_LETTERED)
    True
    """
    return parent in FINAL and (parent in REQUIRED_ENDS[condition] or on_unmet is OnUnmet.CONTINUE)


def is_met_by_success(condition: str, on_unmet: str) -> bool:
    """Whether an edge is met by a completed parent; that of a fallback is not.

    >>> is_met_by_success("failure", "cancel")
    False
    """
    return is_met(Condition(condition), OnUnmet(on_unmet), State.COMPLETED)


def cancel_reason(parent: TaskEnd) -> CancelReason:
    """Return the reason for which the child of an unmet edge is cancelled.

    All tasks below a failed task get the reason of the failure, at any depth.
    """
    if parent.state is State.DEAD_LETTERED:
        return CancelReason.UPSTREAM_FAILED
    if parent.state is State.COMPLETED:
        return CancelReason.NOT_NEEDED
    if parent.reason in set(CancelReason):
        return CancelReason(parent.reason)
    return CancelReason.UPSTREAM_CANCELLED


def predict_ends(
    runs: Sequence[State], edges: Iterable[GraphEdge], stopped: Collection[int] = ()
) -> list[TaskEnd]:
    """Return how each task ends, given how its run would end if it is run.

    `stopped` are tasks that somebody cancels before anything has run. A task with an edge that can
    never be met is cancelled too. Of several reasons the strongest is returned; the database stores
    the one that is known first.
    """
    above: dict[int, list[GraphEdge]] = defaultdict(list)
    order: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(range(len(runs)), ()))
    for edge in edges:
        above[edge.child].append(edge)
        order.add(edge.child, edge.parent)
    task_ends: dict[int, TaskEnd] = {}
    for task in order.static_order():
        if task in stopped:
            task_ends[task] = _end_of_run(State.CANCELLED)
            continue
        reasons = [
            cancel_reason(task_ends[edge.parent])
            for edge in above[task]
            if not is_met(edge.condition, edge.on_unmet, task_ends[edge.parent].state)
        ]
        task_ends[task] = (
            TaskEnd(State.CANCELLED, strongest_reason(reasons))
            if reasons
            else _end_of_run(runs[task])
        )
    return [task_ends[task] for task in range(len(runs))]


def status(tasks: Collection[TaskEnd]) -> GraphStatus:
    """Return the status of a graph, as the database derives it from its counters.

    A dead-lettered task makes it failed, even if a fallback completed. Else a task that somebody
    cancelled makes it cancelled. Tasks that were cancelled because of others, such as a fallback
    that was not needed, do not change the status.
    """
    if not tasks:
        return GraphStatus.PENDING
    if any(task.state not in FINAL for task in tasks):
        return GraphStatus.RUNNING
    if any(task.state is State.DEAD_LETTERED for task in tasks):
        return GraphStatus.FAILED
    if any(
        task.state is State.CANCELLED and task.reason not in set(CancelReason) for task in tasks
    ):
        return GraphStatus.CANCELLED
    return GraphStatus.COMPLETED


def descendants(task: T, edges: Iterable[tuple[T, T]]) -> set[T]:
    """Return all tasks below a task, without itself; edges are (parent, child).

    >>> sorted(descendants("b", [("a", "b"), ("b", "c"), ("c", "d")]))
    ['c', 'd']
    """
    children: dict[T, list[T]] = defaultdict(list)
    for parent, child in edges:
        children[parent].append(child)
    found: set[T] = set()
    ahead = [task]
    while ahead:
        new = set(children[ahead.pop()]) - found
        found |= new
        ahead.extend(new)
    return found


def parents_first(tasks: Collection[T], edges: Iterable[tuple[T, T]]) -> list[T]:
    """Return the tasks in an order in which each comes after all its parents among them.

    >>> parents_first(["c", "b", "a"], [("a", "b"), ("b", "c"), ("x", "a")])
    ['a', 'b', 'c']
    """
    children: dict[T, list[T]] = defaultdict(list)
    open_parents = dict.fromkeys(tasks, 0)
    for parent, child in edges:
        if parent in open_parents and child in open_parents:
            children[parent].append(child)
            open_parents[child] += 1
    ordered = [task for task, count in open_parents.items() if count == 0]
    for task in ordered:
        for child in children[task]:
            open_parents[child] -= 1
            if open_parents[child] == 0:
                ordered.append(child)
    return ordered


def shortest_path(edges: Iterable[tuple[T, T]], start: T, goal: T) -> list[T] | None:
    """Return a shortest path along (parent, child) edges, both ends included, or None.

    >>> shortest_path([(1, 2), (2, 3), (1, 3)], 1, 3)
    [1, 3]
    """
    children: dict[T, list[T]] = defaultdict(list)
    for parent, child in edges:
        children[parent].append(child)
    paths: dict[T, list[T]] = {start: [start]}
    queue = deque([start])
    while queue and goal not in paths:
        node = queue.popleft()
        for child in children[node]:
            if child not in paths:
                paths[child] = [*paths[node], child]
                queue.append(child)
    return paths.get(goal)


def spawned_by(spawners: Mapping[T, T], tasks: Collection[T]) -> set[T]:
    """Return all tasks that these tasks spawned, directly or through others.

    >>> sorted(spawned_by({"b": "a", "c": "b", "d": "x"}, ["a"]))
    ['b', 'c']
    """
    found: set[T] = set()
    # Repeated until nothing is added, because the mapping may be in any order.
    while new := {
        task
        for task, spawner in spawners.items()
        if task not in found and (spawner in tasks or spawner in found)
    }:
        found |= new
    return found


def tasks_to_rerun(
    task: T, states: Mapping[T, State], edges: Collection[tuple[T, T]]
) -> frozenset[T]:
    """Return the tasks that a fork from `task` runs again.

    These are the task, all tasks below it, and those of their parents that have not completed;
    results of completed parents are copied.
    """
    again = {task} | descendants(task, edges)
    parents: dict[T, list[T]] = defaultdict(list)
    for parent, child in edges:
        parents[child].append(parent)
    ahead = list(again)
    while ahead:
        above = set(parents[ahead.pop()]) - again
        incomplete = {parent for parent in above if states[parent] is not State.COMPLETED}
        again |= incomplete
        ahead.extend(incomplete)
    return frozenset(again)


def strongest_reason(reasons: Iterable[CancelReason]) -> CancelReason:
    """Return the last of some reasons in the order of `CancelReason`.

    >>> strongest_reason([CancelReason.UPSTREAM_FAILED, CancelReason.NOT_NEEDED]).value
    'upstream_failed'
    """
    order = list(CancelReason)
    return max(reasons, key=order.index)


def _end_of_run(state: State) -> TaskEnd:
    return TaskEnd(state, STOPPED if state is State.CANCELLED else None)
