"""Groups of dead letters: how they failed, what they share, and their attempts side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

from overnight.models.account import DeadLetter
from overnight_server.dashboard.clocks import lasting
from overnight_server.dashboard.render import safe_text
from overnight_server.domain.failure_titles import title_of_failures

MOST_FIELDS = 6
MOST_VALUE = 40


@dataclass(frozen=True)
class AttemptCell:
    """One failed attempt of a task: how long it lasted, and where it ran."""

    lasted: str
    agent: str
    error: str


@dataclass(frozen=True)
class DeadRow:
    """A dead letter and its attempts."""

    letter: DeadLetter
    attempts: Sequence[AttemptCell]


def title_of(letters: Sequence[DeadLetter], number: int, reason: str | None) -> str:
    """Return the title of a group by a rule for its class of errors."""
    title = safe_text(letters[0].title, 120) if letters else "One task"
    return title_of_failures(reason, number, title)


def in_common(letters: Sequence[DeadLetter]) -> list[str]:
    """Return what all letters of a group share: type, agent, graph and fields of the payload."""
    if not letters:
        return []
    first = letters[0]
    found = [f"type {safe_text(first.type, MOST_VALUE)}"]
    agents = {attempt.get("agent") for letter in letters for attempt in letter.failure_history}
    if len(agents) == 1 and (agent := agents.pop()):
        found.append(f"worker {safe_text(agent, MOST_VALUE)}")
    if len(letters) == 1:
        return found
    if len({letter.dag_id for letter in letters}) == 1:
        found.append("the same graph")
    shared = [
        f"payload.{safe_text(name, MOST_VALUE)} {safe_text(value, MOST_VALUE)}"
        for name, value in first.payload.items()
        if not isinstance(value, dict | list)
        and all(letter.payload.get(name) == value for letter in letters)
    ]
    return found + shared[:MOST_FIELDS]


def rows_of(letters: Sequence[DeadLetter]) -> list[DeadRow]:
    """Return the rows of a group's table."""
    return [
        DeadRow(
            letter,
            [
                AttemptCell(
                    lasting(attempt.get("duration_sec")),
                    safe_text(attempt.get("agent"), 40),
                    safe_text(attempt.get("error"), 400),
                )
                for attempt in letter.failure_history
            ],
        )
        for letter in letters
    ]
