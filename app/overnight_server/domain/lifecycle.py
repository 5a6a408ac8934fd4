"""The life of a task: eleven states, and the only ways from one to another."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache


class State(StrEnum):
    """Where a task stands; the values are what Postgres stores and the wire calls `state`."""

    CREATED = "created"
    PENDING = "pending"
    READY = "ready"
    CLAIMED = "claimed"
    RUNNING = "running"
    VALIDATING = "validating"
    COMPLETED = "completed"
    FAILED = "failed"
    RETRYING = "retrying"
    DEAD_LETTERED = "dead_lettered"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether only an operator can move the task on from here."""
        return self in FINAL

    @property
    def status(self) -> "Status":
        """The small public word for this state."""
        return STATUS_OF[self]


class Status(StrEnum):
    """The small public set of words for where a task stands; the wire calls it `status`."""

    PENDING = "pending"
    CLAIMED = "claimed"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Event(StrEnum):
    """What can happen to a task."""

    RESOLVE = "resolve"
    UNBLOCK = "unblock"
    CLAIM = "claim"
    START = "start"
    TAKE = "take"
    CHECK = "check"
    COMPLETE = "complete"
    RETRY = "retry"
    DEAD_LETTER = "dead_letter"
    HAND_BACK = "hand_back"
    SUSPEND = "suspend"
    PROMOTE = "promote"
    CANCEL = "cancel"
    REVIVE = "revive"


class Actor(StrEnum):
    """Who may make a move."""

    SYSTEM = "system"
    OPERATOR = "operator"


@dataclass(frozen=True)
class Move:
    """One legal way on: from any of `sources` to `target`, passing `via` in the same instant."""

    sources: frozenset[State]
    target: State
    via: State | None = None
    by: Actor = Actor.SYSTEM


# Holding a claim: these states own a slot, a lock key, an epoch and a token.
ACTIVE = frozenset({State.CLAIMED, State.RUNNING, State.VALIDATING})
# Counted against the cap on waiting work.
WAITING = frozenset({State.CREATED, State.PENDING, State.READY, State.RETRYING})
FINAL = frozenset({State.COMPLETED, State.DEAD_LETTERED, State.CANCELLED})
OPEN = WAITING | ACTIVE


def _move(
    sources: Iterable[State],
    target: State,
    *,
    via: State | None = None,
    by: Actor = Actor.SYSTEM,
) -> Move:
    return Move(frozenset(sources), target, via, by)


MOVES: dict[Event, Move] = {
    Event.RESOLVE: _move({State.CREATED}, State.PENDING),
    Event.UNBLOCK: _move({State.PENDING}, State.READY),
    Event.CLAIM: _move({State.READY}, State.CLAIMED),
    Event.START: _move({State.CLAIMED}, State.RUNNING),
    # A slot that goes on by itself claims and starts at once.
    Event.TAKE: _move({State.READY}, State.RUNNING, via=State.CLAIMED),
    Event.CHECK: _move({State.RUNNING}, State.VALIDATING),
    Event.COMPLETE: _move({State.RUNNING, State.VALIDATING}, State.COMPLETED),
    Event.RETRY: _move({State.RUNNING, State.VALIDATING}, State.RETRYING, via=State.FAILED),
    # A run that fails for good, and a waiting task that can no longer meet its deadline.
    Event.DEAD_LETTER: _move(
        {State.RUNNING, State.VALIDATING, State.PENDING, State.READY, State.RETRYING},
        State.DEAD_LETTERED,
        via=State.FAILED,
    ),
    Event.HAND_BACK: _move(ACTIVE, State.READY),
    Event.SUSPEND: _move({State.RUNNING}, State.PENDING),
    Event.PROMOTE: _move({State.RETRYING}, State.READY),
    Event.CANCEL: _move(OPEN, State.CANCELLED),
    Event.REVIVE: _move({State.DEAD_LETTERED, State.CANCELLED}, State.PENDING, by=Actor.OPERATOR),
}

STATUS_OF: dict[State, Status] = {
    State.CREATED: Status.PENDING,
    State.PENDING: Status.PENDING,
    State.READY: Status.PENDING,
    State.RETRYING: Status.PENDING,
    State.CLAIMED: Status.CLAIMED,
    State.RUNNING: Status.RUNNING,
    State.VALIDATING: Status.RUNNING,
    State.COMPLETED: Status.COMPLETED,
    State.FAILED: Status.FAILED,
    State.DEAD_LETTERED: Status.FAILED,
    State.CANCELLED: Status.CANCELLED,
}

# Words of the other design documents, accepted on input.
ALIASES: dict[str, str] = {
    "dispatching": "claimed",
    "leased": "claimed",
    "working": "running",
    "dead": "dead_lettered",
    "queued": "pending",
}


@cache
def sources(event: Event) -> list[str]:
    """Return the states `event` may leave, as SQL wants them."""
    return sorted(MOVES[event].sources)


def target(event: Event) -> str:
    """Return the state `event` leads to."""
    return MOVES[event].target.value


def legal_moves() -> list[tuple[str, str]]:
    """Return every legal (from, to) pair, sorted; the database keeps the same list."""
    return sorted(
        {(source.value, move.target.value) for move in MOVES.values() for source in move.sources}
    )


def states_of(word: str) -> frozenset[State]:
    """Return the states a public word means: a status, a state or an alias of either.

    >>> sorted(states_of("leased"))
    [<State.CLAIMED: 'claimed'>]
    """
    known = ALIASES.get(word, word)
    if known in set(Status):
        return frozenset(state for state, status in STATUS_OF.items() if status == known)
    return frozenset({State(known)})
