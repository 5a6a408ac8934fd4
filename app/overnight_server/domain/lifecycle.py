"""The states of a task and the legal moves between them; the database holds the same list."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache


class State(StrEnum):
    """The exact state of a task, as Postgres stores it and the API returns it as `state`."""

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
        """Whether the task has ended; only an operator can revive it."""
        return self in FINAL

    @property
    def status(self) -> "Status":
        """The public status of this state."""
        return STATUS_OF[self]


class Status(StrEnum):
    """The public status of a task, fewer than its states; the API returns it as `status`."""

    PENDING = "pending"
    CLAIMED = "claimed"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class LifecycleEvent(StrEnum):
    """An event that moves a task to another state."""

    RESOLVE = "resolve"
    UNBLOCK = "unblock"
    POSTPONE = "postpone"
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
    DISCARD = "discard"
    REVIVE = "revive"
    OVERRULE = "overrule"


class Actor(StrEnum):
    """Who makes a move: the deployment, or only a person (the owner or an operator)."""

    SYSTEM = "system"
    PERSON = "person"


@dataclass(frozen=True)
class Move:
    """A legal move from any of `sources` to `target`, through `via` in the same transaction."""

    sources: frozenset[State]
    target: State
    via: State | None = None
    by: Actor = Actor.SYSTEM


# States with a claim: the task occupies a slot and holds its lock keys.
ACTIVE = frozenset({State.CLAIMED, State.RUNNING, State.VALIDATING})
# States that count against the cap on pending tasks.
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


MOVES: dict[LifecycleEvent, Move] = {
    LifecycleEvent.RESOLVE: _move({State.CREATED}, State.PENDING),
    LifecycleEvent.UNBLOCK: _move({State.PENDING}, State.READY),
    # A later start_at was set before anybody claimed the task.
    LifecycleEvent.POSTPONE: _move({State.READY}, State.PENDING),
    LifecycleEvent.CLAIM: _move({State.READY}, State.CLAIMED),
    LifecycleEvent.START: _move({State.CLAIMED}, State.RUNNING),
    # A slot that claims for itself claims and starts in one statement.
    LifecycleEvent.TAKE: _move({State.READY}, State.RUNNING, via=State.CLAIMED),
    LifecycleEvent.CHECK: _move({State.RUNNING}, State.VALIDATING),
    LifecycleEvent.COMPLETE: _move({State.RUNNING, State.VALIDATING}, State.COMPLETED),
    LifecycleEvent.RETRY: _move(
        {State.RUNNING, State.VALIDATING}, State.RETRYING, via=State.FAILED
    ),
    # A run that failed for good, or a task that was not started by its deadline.
    LifecycleEvent.DEAD_LETTER: _move(
        {State.RUNNING, State.VALIDATING, State.PENDING, State.READY, State.RETRYING},
        State.DEAD_LETTERED,
        via=State.FAILED,
    ),
    LifecycleEvent.HAND_BACK: _move(ACTIVE, State.READY),
    LifecycleEvent.SUSPEND: _move({State.RUNNING, State.VALIDATING}, State.PENDING),
    LifecycleEvent.PROMOTE: _move({State.RETRYING}, State.READY),
    LifecycleEvent.CANCEL: _move(OPEN, State.CANCELLED),
    # A dead letter that is resolved by `cancel`; its task has ended already.
    LifecycleEvent.DISCARD: _move({State.DEAD_LETTERED}, State.CANCELLED, by=Actor.PERSON),
    LifecycleEvent.REVIVE: _move(
        {State.DEAD_LETTERED, State.CANCELLED}, State.PENDING, by=Actor.PERSON
    ),
    # A person accepts the output that a validator rejected.
    LifecycleEvent.OVERRULE: _move(
        {State.DEAD_LETTERED, State.RETRYING}, State.COMPLETED, by=Actor.PERSON
    ),
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

# Names from other queue designs, accepted on input.
ALIASES: dict[str, str] = {
    "dispatching": "claimed",
    "leased": "claimed",
    "working": "running",
    "dead": "dead_lettered",
    "queued": "pending",
}


@cache
def sources(event: LifecycleEvent) -> list[str]:
    """Return the states in which `event` is legal, sorted, as a parameter for SQL."""
    return sorted(MOVES[event].sources)


def target(event: LifecycleEvent) -> str:
    """Return the state after `event`."""
    return MOVES[event].target.value


def legal_moves() -> list[tuple[str, str]]:
    """Return every legal (from, to) pair, sorted; the database keeps the same list."""
    return sorted(
        {(source.value, move.target.value) for move in MOVES.values() for source in move.sources}
    )


def states_of(name: str) -> frozenset[State]:
    """Return the states that a status, a state or an alias names; raise ValueError for others.

    >>> sorted(states_of("leased"))
    [<State.CLAIMED: 'claimed'>]
    """
    name = ALIASES.get(name, name)
    if name in set(Status):
        return frozenset(state for state, status in STATUS_OF.items() if status == name)
    return frozenset({State(name)})


def states_named(names: str) -> frozenset[State]:
    """Return the states of one name, or of several with commas; raise ValueError for others.

    >>> sorted(state.value for state in states_named("claimed,dead_lettered"))
    ['claimed', 'dead_lettered']
    """
    return frozenset().union(*(states_of(name.strip()) for name in names.lower().split(",")))


def names_of(states: frozenset[State]) -> str | None:
    """Return the names, with commas, for which `states_named` returns these states.

    None if there are none: the state `pending` has the name of a status of several states.

    >>> names_of(ACTIVE), names_of(WAITING), names_of(frozenset({State.READY, State.CANCELLED}))
    ('claimed,running', 'pending', 'cancelled,ready')
    """
    names, covered = [], frozenset[State]()
    for name in [*Status, *State]:
        found = states_of(name)
        if found <= states and not found <= covered:
            names.append(name.value)
            covered |= found
    return ",".join(names) if names and covered == states else None
