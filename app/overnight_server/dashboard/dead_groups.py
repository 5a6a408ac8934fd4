"""Groups of dead letters: how they failed, what they share, and their attempts side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from overnight.models.account import DeadLetter
from overnight_server.dashboard.clocks import count, lasting
from overnight_server.dashboard.render import safe_text

MOST_FIELDS = 6
MOST_VALUE = 40
#: What a class of errors means, for the title of a group of one or of several.
TITLES: Mapping[str, tuple[str, str]] = {
    "context_overflow": (
        "{} is longer than the model can read",
        "{} are longer than the model can read",
    ),
    "auth_failure": ("{} was refused by a service", "{} were refused by a service"),
    "rate_limit": ("{} asked too often", "{} asked too often"),
    "timeout": ("{} took too long", "{} took too long"),
    "crash": ("{} kills its process", "{} kill their process"),
    "worker_lost": ("{} lost its worker", "{} lost their worker"),
    "out_of_memory": ("{} needs more memory", "{} need more memory"),
    "budget_exceeded": ("{} cost more than allowed", "{} cost more than allowed"),
    "invalid_output": ("The output of {} was rejected", "The output of {} was rejected"),
    "deadline_exceeded": ("{} did not start in time", "{} did not start in time"),
}
OTHERWISE = ("{} failed", "{} failed in the same way")


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
    one, many = TITLES.get(reason or "", OTHERWISE)
    if number == 1 and letters:
        return one.format(safe_text(letters[0].title, 120))
    return many.format(count(number, "task")).capitalize()


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
