"""The table of moves: what it allows, and what it can never allow."""

import pytest

from overnight_server.domain.lifecycle import (
    ACTIVE,
    ALIASES,
    FINAL,
    MOVES,
    OPEN,
    STATUS_OF,
    WAITING,
    Actor,
    LifecycleEvent,
    State,
    Status,
    legal_moves,
    sources,
    states_of,
    target,
)

STORED = frozenset(State) - {State.FAILED}


def test_there_are_eleven_states() -> None:
    assert [state.value for state in State] == [
        "created",
        "pending",
        "ready",
        "claimed",
        "running",
        "validating",
        "completed",
        "failed",
        "retrying",
        "dead_lettered",
        "cancelled",
    ]


def test_every_event_has_exactly_one_move() -> None:
    assert set(MOVES) == set(LifecycleEvent)
    assert all(move.sources for move in MOVES.values())


def test_only_a_revive_makes_an_ended_task_run_again() -> None:
    leaving = {
        event for event, move in MOVES.items() if move.sources & FINAL and move.target not in FINAL
    }

    assert leaving == {LifecycleEvent.REVIVE}


def test_only_a_person_moves_an_ended_task() -> None:
    moving = {event for event, move in MOVES.items() if move.sources & FINAL}
    by_person = {event for event, move in MOVES.items() if move.by is Actor.PERSON}

    assert by_person == {LifecycleEvent.DISCARD, LifecycleEvent.REVIVE, LifecycleEvent.OVERRULE}
    assert moving == by_person


def test_nothing_ever_leaves_completed() -> None:
    assert not [event for event, move in MOVES.items() if State.COMPLETED in move.sources]


def test_no_move_stays_where_it_is() -> None:
    assert not [event for event, move in MOVES.items() if move.target in move.sources]


def test_failed_is_only_passed_through() -> None:
    stored = {state for move in MOVES.values() for state in (move.target, *move.sources)}
    passing = {event for event, move in MOVES.items() if move.via is State.FAILED}

    assert State.FAILED not in stored
    assert passing == {LifecycleEvent.RETRY, LifecycleEvent.DEAD_LETTER}


def test_every_stored_state_can_be_reached() -> None:
    assert _reachable_from(State.CREATED) | {State.CREATED} == STORED


@pytest.mark.parametrize("state", sorted(STORED - FINAL))
def test_every_open_state_can_end_in_every_final_one(state: State) -> None:
    assert _reachable_from(state) >= FINAL


@pytest.mark.parametrize("state", sorted(OPEN))
def test_every_open_task_can_be_cancelled_at_once(state: State) -> None:
    assert state in MOVES[LifecycleEvent.CANCEL].sources


def test_only_a_claim_makes_a_task_active() -> None:
    entering = {
        event for event, move in MOVES.items() if move.target in ACTIVE and move.sources - ACTIVE
    }

    assert entering == {LifecycleEvent.CLAIM, LifecycleEvent.TAKE}


def test_no_active_state_can_be_skipped_on_the_way_to_success() -> None:
    assert sources(LifecycleEvent.START) == ["claimed"]
    assert MOVES[LifecycleEvent.TAKE].via is State.CLAIMED
    assert sources(LifecycleEvent.CHECK) == ["running"]
    assert sources(LifecycleEvent.COMPLETE) == ["running", "validating"]


def test_the_groups_divide_all_states() -> None:
    groups = [WAITING, ACTIVE, FINAL, frozenset({State.FAILED})]

    assert sorted(state for group in groups for state in group) == sorted(State)
    assert OPEN == WAITING | ACTIVE


@pytest.mark.parametrize("state", list(State))
def test_final_means_in_the_final_group(state: State) -> None:
    assert state.is_final == (state in {"completed", "dead_lettered", "cancelled"})


@pytest.mark.parametrize(
    ("status", "states"),
    [
        ("pending", {"created", "pending", "ready", "retrying"}),
        ("claimed", {"claimed"}),
        ("running", {"running", "validating"}),
        ("completed", {"completed"}),
        ("failed", {"failed", "dead_lettered"}),
        ("cancelled", {"cancelled"}),
    ],
)
def test_a_status_covers_its_states(status: str, states: set[str]) -> None:
    assert {state for state in State if state.status == status} == states
    assert states_of(status) == states


def test_every_state_has_a_status_and_every_status_a_state() -> None:
    assert set(STATUS_OF) == set(State)
    assert set(STATUS_OF.values()) == set(Status)


@pytest.mark.parametrize(
    ("alias", "states"),
    [
        ("dispatching", {"claimed"}),
        ("leased", {"claimed"}),
        ("working", {"running", "validating"}),
        ("dead", {"dead_lettered"}),
        ("queued", {"created", "pending", "ready", "retrying"}),
    ],
)
def test_an_alias_stands_for_the_states_of_its_document(alias: str, states: set[str]) -> None:
    assert states_of(alias) == states


def test_no_alias_equals_a_state_or_status() -> None:
    assert not ALIASES.keys() & (set(State) | set(Status))


@pytest.mark.parametrize("state", sorted(frozenset(State) - set(Status)))
def test_a_state_that_is_no_status_means_itself(state: State) -> None:
    assert states_of(state.value) == {state}


@pytest.mark.parametrize("state_name", ["", "PENDING", "done", "pending "])
def test_an_unknown_state_name_is_refused(state_name: str) -> None:
    with pytest.raises(ValueError, match="is not a valid State"):
        states_of(state_name)


@pytest.mark.parametrize("event", list(LifecycleEvent))
def test_sources_are_the_states_of_the_move(event: LifecycleEvent) -> None:
    assert sources(event) == sorted(state.value for state in MOVES[event].sources)
    assert target(event) == MOVES[event].target.value


def test_the_legal_moves_are_all_moves_once() -> None:
    pairs = [(source, target(event)) for event in LifecycleEvent for source in sources(event)]

    assert legal_moves() == sorted(set(pairs))


def _reachable_from(start: State) -> set[State]:
    """Every state that moves of the system alone can lead to."""
    seen: set[State] = set()
    frontier = {start}
    while frontier:
        frontier = {
            move.target
            for move in MOVES.values()
            if move.by is Actor.SYSTEM and move.sources & frontier
        } - seen
        seen |= frontier
    return seen
