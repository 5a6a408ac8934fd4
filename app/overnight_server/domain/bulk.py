"""Bulk operations: actions on many tasks, and the states in which each applies."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from overnight.errors import InvalidRequest, Refused
from overnight_server.domain.lifecycle import MOVES, OPEN, WAITING, LifecycleEvent, State


class Action(StrEnum):
    """What a bulk operation does to each task."""

    RETRY = "retry"
    CANCEL = "cancel"
    REPRIORITISE = "reprioritise"


class Progress(StrEnum):
    """The state of a bulk operation."""

    RUNNING = "running"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


#: The refusal of a retry whose task depends on another that has ended otherwise than required.
UPSTREAM_ENDED: Final = "UPSTREAM_ENDED"
#: The states in which each action changes a task; tasks in other states are skipped.
APPLIES_TO: Final[Mapping[Action, frozenset[State]]] = {
    Action.RETRY: MOVES[LifecycleEvent.REVIVE].sources,
    Action.CANCEL: OPEN,
    Action.REPRIORITISE: WAITING,
}


def applies_to(action: Action) -> list[str]:
    """Return the states in which an action changes a task, as a parameter for SQL.

    >>> applies_to(Action.RETRY)
    ['cancelled', 'dead_lettered']
    """
    return sorted(state.value for state in APPLIES_TO[action])


def is_newest_first(action: Action) -> bool:
    """Whether an action starts with the newest task.

    Tasks of a graph are cancelled before their parents, because the end of a parent would cancel
    them with another reason. They are retried after their parents, because a task whose parent has
    failed cannot be retried.
    """
    return action is not Action.RETRY


def reason_of(refusal: Refused) -> str:
    """Return the code under which a refusal is counted."""
    # The only InvalidRequest that the actions raise is about a parent that has ended.
    return UPSTREAM_ENDED if isinstance(refusal, InvalidRequest) else refusal.code
