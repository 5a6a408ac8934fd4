"""docs/lifecycle.md draws exactly the states and moves that the code knows."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from overnight_server.domain.lifecycle import ALIASES, FINAL, MOVES, STATUS_OF, Actor, Event, State
from tests.rules.sources import read

PAGE = read(Path("docs/lifecycle.md"))
WORD = re.compile(r"`(\w+)`")
ARROW = re.compile(r"^ *(\S+) --> (\S+?)(?:: (.+))?$", flags=re.MULTILINE)
OUTSIDE = "[*]"


def rows(*heading: str) -> Iterator[list[str]]:
    """The cells of every row of the page's one table with these columns."""
    _, found, after = PAGE.partition("| " + " | ".join(heading) + " |\n")
    assert found, f"the page has no table {heading}"
    for line in after.splitlines()[1:]:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split("|")]


def arrows() -> list[tuple[str, str, str]]:
    """Source, target and label of every arrow in the page's pictures."""
    pictures = re.findall(r"```mermaid\n(.*?)```", PAGE, flags=re.DOTALL)
    return [arrow for picture in pictures for arrow in ARROW.findall(picture)]


TABLE = {
    WORD.findall(event)[0]: (sources, target, who, meaning)
    for event, sources, target, who, meaning in rows("Event", "From", "To", "Who", "Meaning")
}


def test_the_table_has_every_event_once() -> None:
    listed = [row[0] for row in rows("Event", "From", "To", "Who", "Meaning")]

    assert sorted(listed) == sorted(f"`{event}`" for event in Event)


@pytest.mark.parametrize("event", list(Event))
def test_the_table_tells_each_move_as_the_code_does(event: Event) -> None:
    move = MOVES[event]
    sources, target, who, meaning = TABLE[event]

    assert sorted(WORD.findall(sources)) == sorted(move.sources)
    assert target == f"`{move.target}`" + (f" via `{move.via}`" if move.via else "")
    assert (who == "operator") == (move.by is Actor.OPERATOR)
    assert who
    assert meaning


def test_the_pictures_have_every_move_once_and_no_other() -> None:
    drawn = [arrow for arrow in arrows() if OUTSIDE not in arrow]
    known = [
        (source.value, move.target.value, event.value)
        for event, move in MOVES.items()
        for source in move.sources
    ]

    assert sorted(drawn) == sorted(known)


def test_the_pictures_end_in_every_final_state_only() -> None:
    ends = [source for source, target, _ in arrows() if target == OUTSIDE]

    assert sorted(ends) == sorted(FINAL)


def test_every_state_is_told_with_its_status() -> None:
    told = {
        State(WORD.findall(state)[0]): WORD.findall(status)[0]
        for state, status, _ in rows("State", "Status", "Meaning")
    }

    assert told == STATUS_OF


def test_every_alias_is_told() -> None:
    told = {
        alias: WORD.findall(means)[0]
        for aliases, means in rows("Alias", "Means")
        for alias in WORD.findall(aliases)
    }

    assert told == ALIASES
