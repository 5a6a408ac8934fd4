"""Graphs: when an edge is met, how tasks end in consequence, and what a graph came to.

An edge waits for its parent to end in a certain way. A parent that has ended otherwise will never
meet it: then the edge's policy decides. The statement `follow` in `store/sql/graphs.sql` does to
rows what `ends` says here of a whole graph; a property test holds the two together.
"""

from collections import defaultdict
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
    """What becomes of a child whose edge can never be met."""

    CANCEL = "cancel"
    CONTINUE = "continue"


class Because(StrEnum):
    """Why a task was cancelled in consequence of another's end, the weightiest last."""

    NOT_NEEDED = "not_needed"
    UPSTREAM_CANCELLED = "upstream_cancelled"
    UPSTREAM_FAILED = "upstream_failed"


class GraphStatus(StrEnum):
    """What a graph has come to."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class When(StrEnum):
    """How a graph must end to set off another; `finished` is any end."""

    COMPLETED = "completed"
    FAILED = "failed"
    FINISHED = "finished"


#: The reason of a task that somebody stopped.
STOPPED = "cancelled"
WANTED: Mapping[Condition, frozenset[State]] = {
    Condition.SUCCESS: frozenset({State.COMPLETED}),
    Condition.FINISHED: FINAL,
    Condition.FAILURE: frozenset({State.DEAD_LETTERED}),
}

T = TypeVar("T")


@dataclass(frozen=True)
class Link:
    """One edge: `child` waits for `parent`; both are places in a list of tasks."""

    parent: int
    child: int
    condition: Condition = Condition.SUCCESS
    on_unmet: OnUnmet = OnUnmet.CANCEL


@dataclass(frozen=True)
class End:
    """How a task ended; `reason` only for one that was cancelled."""

    state: State
    reason: str | None = None


def is_met(condition: Condition, on_unmet: OnUnmet, parent: State) -> bool:
    """Whether an edge counts as met now that its parent stands there.

    >>> is_met(Condition.FAILURE, OnUnmet.CANCEL, State.DEAD_LETTERED)
    True
    """
    return parent in FINAL and (parent in WANTED[condition] or on_unmet is OnUnmet.CONTINUE)


def is_met_by_success(condition: str, on_unmet: str) -> bool:
    """Whether the child of an edge runs if all goes well; a fallback does not.

    >>> is_met_by_success("failure", "cancel")
    False
    """
    return is_met(Condition(condition), OnUnmet(on_unmet), State.COMPLETED)


def because_of(parent: End) -> Because:
    """Return why the child of an edge that this end can never meet is cancelled.

    Consequences keep the name of what began them: whatever lies behind a failed task was
    cancelled because it failed, however far behind.
    """
    if parent.state is State.DEAD_LETTERED:
        return Because.UPSTREAM_FAILED
    if parent.state is State.COMPLETED:
        return Because.NOT_NEEDED
    if parent.reason in set(Because):
        return Because(parent.reason)
    return Because.UPSTREAM_CANCELLED


def ends(runs: Sequence[State], links: Iterable[Link], stopped: Collection[int] = ()) -> list[End]:
    """Return how each task ends, given how its run would end if it came to one.

    `stopped` are those that somebody cancels before anything has run. One that is never run,
    because an edge can never be met, is cancelled too. Where several edges say why, the weightiest
    reason stands here; in the database that of the first to be known.
    """
    above: dict[int, list[Link]] = defaultdict(list)
    order: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(range(len(runs)), ()))
    for link in links:
        above[link.child].append(link)
        order.add(link.child, link.parent)
    found: dict[int, End] = {}
    for task in order.static_order():
        if task in stopped:
            found[task] = _run(State.CANCELLED)
            continue
        why = [
            because_of(found[link.parent])
            for link in above[task]
            if not is_met(link.condition, link.on_unmet, found[link.parent].state)
        ]
        found[task] = End(State.CANCELLED, heaviest(why)) if why else _run(runs[task])
    return [found[task] for task in range(len(runs))]


def status(tasks: Collection[End]) -> GraphStatus:
    """Return what a graph has come to, as the database derives it from its counts.

    A dead task makes it failed, even if another took over: somebody should look at it. A task that
    somebody stopped makes it cancelled. What was cancelled in consequence adds nothing to its
    cause, and a fallback that was not needed is no blemish.
    """
    if not tasks:
        return GraphStatus.PENDING
    if any(task.state not in FINAL for task in tasks):
        return GraphStatus.RUNNING
    if any(task.state is State.DEAD_LETTERED for task in tasks):
        return GraphStatus.FAILED
    if any(task.state is State.CANCELLED and task.reason not in set(Because) for task in tasks):
        return GraphStatus.CANCELLED
    return GraphStatus.COMPLETED


def after(task: T, edges: Iterable[tuple[T, T]]) -> set[T]:
    """Return what comes after a task, however far, without itself; edges are (parent, child).

    >>> sorted(after("b", [("a", "b"), ("b", "c"), ("c", "d")]))
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


def spawned_by(spawners: Mapping[T, T], tasks: Collection[T]) -> set[T]:
    """Return what any of these tasks spawned, or what was spawned by that, and so on.

    >>> sorted(spawned_by({"b": "a", "c": "b", "d": "x"}, ["a"]))
    ['b', 'c']
    """
    found: set[T] = set()
    # A spawner is older than what it spawned, but the order of a mapping is nobody's promise.
    while new := {
        one
        for one, spawner in spawners.items()
        if one not in found and (spawner in tasks or spawner in found)
    }:
        found |= new
    return found


def to_run_again(
    task: T, states: Mapping[T, State], edges: Collection[tuple[T, T]]
) -> frozenset[T]:
    """Return what a fork from `task` runs anew: it, all after it, and what those still lack.

    What they wait for and has completed is taken over; what has not must run with them.
    """
    again = {task} | after(task, edges)
    parents: dict[T, list[T]] = defaultdict(list)
    for parent, child in edges:
        parents[child].append(parent)
    ahead = list(again)
    while ahead:
        above = set(parents[ahead.pop()]) - again
        lacking = {one for one in above if states[one] is not State.COMPLETED}
        again |= lacking
        ahead.extend(lacking)
    return frozenset(again)


def heaviest(reasons: Iterable[Because]) -> Because:
    """Return the reason that says most.

    >>> heaviest([Because.UPSTREAM_FAILED, Because.NOT_NEEDED]).value
    'upstream_failed'
    """
    order = list(Because)
    return max(reasons, key=order.index)


def _run(state: State) -> End:
    return End(state, STOPPED if state is State.CANCELLED else None)
