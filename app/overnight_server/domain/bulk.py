"""Bulk operations: what can be done to many tasks at once, and to which of them it applies."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from overnight.errors import InvalidRequest, Refused
from overnight_server.domain.lifecycle import MOVES, OPEN, WAITING, Event, State


class Action(StrEnum):
    """What a bulk operation does to each task."""

    RETRY = "retry"
    CANCEL = "cancel"
    REPRIORITISE = "reprioritise"


class Progress(StrEnum):
    """Where a bulk operation stands."""

    RUNNING = "running"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


#: Why a task is refused a retry that waits for another which has ended otherwise.
UPSTREAM_ENDED: Final = "UPSTREAM_ENDED"
#: The states in which each action has something to do; a task in any other is passed over.
APPLIES_TO: Final[Mapping[Action, frozenset[State]]] = {
    Action.RETRY: MOVES[Event.REVIVE].sources,
    Action.CANCEL: OPEN,
    Action.REPRIORITISE: WAITING,
}


def applies_to(action: Action) -> list[str]:
    """Return the states in which an action has something to do, as SQL wants them.

    >>> applies_to(Action.RETRY)
    ['cancelled', 'dead_lettered']
    """
    return sorted(state.value for state in APPLIES_TO[action])


def is_newest_first(action: Action) -> bool:
    """Whether an action goes from the newest task to the oldest.

    A graph's later tasks are cancelled before those they wait for, or they would end in consequence
    and not by themselves; and they are retried after them, or they would wait for an ended one.
    """
    return action is not Action.RETRY


def reason_of(refusal: Refused) -> str:
    """Return the word under which a refusal is counted."""
    # The moves of bulk operations refuse no other field.
    return UPSTREAM_ENDED if isinstance(refusal, InvalidRequest) else refusal.code
