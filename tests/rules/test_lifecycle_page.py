"""Compare docs/lifecycle.md with the states and moves of the code."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from overnight_server.domain.lifecycle import (
    ALIASES,
    FINAL,
    MOVES,
    STATUS_OF,
    Actor,
    LifecycleEvent,
    State,
)
from tests.rules.sources import read

PAGE = read(Path("docs/lifecycle.md"))
NAME = re.compile(r"`(\w+)`")
ARROW = re.compile(r"^ *(\S+) --> (\S+?)(?:: (.+))?$", flags=re.MULTILINE)
OUTSIDE = "[*]"


def rows(*heading: str) -> Iterator[list[str]]:
    """Yield the cells of every row of the page's table with these columns."""
    _, heading_line, after = PAGE.partition("| " + " | ".join(heading) + " |\n")
    assert heading_line, f"the page has no table {heading}"
    for line in after.splitlines()[1:]:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split("|")]


def arrows() -> list[tuple[str, str, str]]:
    """Return source, target and label of every arrow in the page's diagrams."""
    diagrams = re.findall(r"```mermaid\n(.*?)```", PAGE, flags=re.DOTALL)
    return [arrow for diagram in diagrams for arrow in ARROW.findall(diagram)]


TABLE = {
    NAME.findall(event)[0]: (sources, target, who, meaning)
    for event, sources, target, who, meaning in rows("Event", "From", "To", "Who", "Meaning")
}


def test_the_table_has_every_event_once() -> None:
    listed = [row[0] for row in rows("Event", "From", "To", "Who", "Meaning")]

    assert sorted(listed) == sorted(f"`{event}`" for event in LifecycleEvent)


@pytest.mark.parametrize("event", list(LifecycleEvent))
def test_the_table_has_each_move_as_the_code_defines_it(event: LifecycleEvent) -> None:
    move = MOVES[event]
    sources, target, who, meaning = TABLE[event]

    assert sorted(NAME.findall(sources)) == sorted(move.sources)
    assert target == f"`{move.target}`" + (f" via `{move.via}`" if move.via else "")
    assert (who == "owner, operator") == (move.by is Actor.PERSON)
    assert who
    assert meaning


def test_the_diagrams_have_every_move_once_and_no_other() -> None:
    drawn = [arrow for arrow in arrows() if OUTSIDE not in arrow]
    expected = [
        (source.value, move.target.value, event.value)
        for event, move in MOVES.items()
        for source in move.sources
    ]

    assert sorted(drawn) == sorted(expected)


def test_the_diagrams_end_exactly_in_the_final_states() -> None:
    ends = [source for source, target, _ in arrows() if target == OUTSIDE]

    assert sorted(ends) == sorted(FINAL)


def test_the_page_lists_every_state_with_its_status() -> None:
    listed = {
        State(NAME.findall(state)[0]): NAME.findall(status)[0]
        for state, status, _ in rows("State", "Status", "Meaning")
    }

    assert listed == STATUS_OF


def test_the_page_lists_every_alias() -> None:
    listed = {
        alias: NAME.findall(means)[0]
        for aliases, means in rows("Alias", "Means")
        for alias in NAME.findall(aliases)
    }

    assert listed == ALIASES
