"""The headline of a night: one honest sentence, by rules.

A night is called good only if every task is done. What failed, what was left, and what kept the
slots empty stand in the headline whenever there is something of the kind.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from overnight_server.domain.reasons import ReasonCode, format_duration, join_names

_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
# What kept slots empty is named in the headline if it did so for this long.
WORTH_NAMING = 10 * 60
# Causes are named, the longest first, until together they have this share of the time.
MAIN_SHARE = 0.75
# From this share on, the causes that are named are as good as all.
WHOLE_SHARE = 0.95
MOST_CAUSES = 3


class Mood(StrEnum):
    """How a night went, for the colour of a page; the headline says the same in words."""

    GOOD = "good"
    MIXED = "mixed"
    BAD = "bad"
    QUIET = "quiet"
    OPEN = "open"


@dataclass(frozen=True)
class NightOutcome:
    """What became of a night.

    `waits` are the causes that kept slots empty while tasks waited, each with its seconds, the
    longest first.
    """

    done: int = 0
    dead: int = 0
    cancelled: int = 0
    running: int = 0
    waiting: int = 0
    needs: int = 0
    is_over: bool = True
    lost_runs: int = 0
    waits: tuple[tuple[str, float], ...] = ()

    @property
    def total(self) -> int:
        """All tasks of the night."""
        return self.done + self.dead + self.cancelled + self.running + self.waiting


def mood_of(outcome: NightOutcome) -> Mood:
    """Return how a night went.

    >>> mood_of(NightOutcome(done=3)), mood_of(NightOutcome(dead=3)), mood_of(NightOutcome())
    (<Mood.GOOD: 'good'>, <Mood.BAD: 'bad'>, <Mood.QUIET: 'quiet'>)
    """
    if not outcome.total:
        return Mood.QUIET
    if not outcome.is_over and outcome.running + outcome.waiting:
        return Mood.OPEN
    if outcome.done == outcome.total:
        return Mood.GOOD
    return Mood.MIXED if outcome.done > outcome.total / 2 else Mood.BAD


def headline(outcome: NightOutcome) -> str:
    """Return the headline of a night.

    >>> headline(NightOutcome(done=28, dead=4, waiting=5, running=1, cancelled=2, needs=5))
    '28 of 40 done, 4 failed, 6 not finished, and five things need you.'
    """
    return f"{_sentence(outcome)}{_needs(outcome.needs)}."


def count_in_words(number: int) -> str:
    """Return a small number in words.

    >>> count_in_words(5), count_in_words(12)
    ('five', '12')
    """
    return _NUMBERS[number] if number < len(_NUMBERS) else str(number)


def _sentence(outcome: NightOutcome) -> str:
    total, left = outcome.total, outcome.running + outcome.waiting
    if not total:
        return "Nothing was queued"
    if not outcome.is_over and left:
        parts = [f"Still going: {outcome.done} of {total} done"]
        parts += [f"{outcome.dead} failed"] if outcome.dead else []
        parts.append(f"{outcome.running} running, {outcome.waiting} waiting")
        return ", ".join(parts) + _blame(outcome, "")
    if outcome.done == total:
        return "The only task is done" if total == 1 else f"All {total} tasks are done"
    if outcome.dead == total:
        return "The only task failed" if total == 1 else f"All {total} tasks failed"
    first = f"{outcome.done} of {total} done" if outcome.done else f"None of {total} tasks is done"
    parts = [first]
    parts += [f"{outcome.dead} failed"] if outcome.dead else []
    parts += [f"{left} not finished"] if left else []
    parts += [f"{outcome.cancelled} cancelled"] if outcome.cancelled and not outcome.dead else []
    return ", ".join(parts) + _blame(outcome, "waited ")


def _blame(outcome: NightOutcome, verb: str) -> str:
    """Return why the plan's slots stood empty while tasks waited, if it is worth naming.

    `verb` says that tasks waited, where the sentence has not said so. One cause is blamed only if
    it took most of the time, and as the only one only if it took all.
    """
    whole = sum(seconds for _, seconds in outcome.waits)
    lost = f", and {_times(outcome.lost_runs)} a worker was lost" if outcome.lost_runs else ""
    if not outcome.waiting or whole < WORTH_NAMING:
        return lost
    named = _main_causes(outcome.waits, whole)
    is_whole = sum(seconds for _, seconds in named) >= whole * WHOLE_SHARE
    (code, seconds), *others = named
    phrase = _PHRASES.get(ReasonCode(code))
    if others or phrase is None:
        causes = join_names([_CAUSES[ReasonCode(cause)] for cause, _ in named])
        return f" ({verb}{'' if is_whole else 'mainly '}for {causes})"
    lasted = format_duration(seconds)
    return f": {phrase} for {lasted}" if is_whole else f", mostly because {phrase} ({lasted})"


def _main_causes(waits: Sequence[tuple[str, float]], whole: float) -> list[tuple[str, float]]:
    """Return the longest causes that together took most of the time, but no more than a few."""
    named: list[tuple[str, float]] = []
    for cause in waits[:MOST_CAUSES]:
        named.append(cause)
        if sum(seconds for _, seconds in named) >= whole * MAIN_SHARE:
            break
    return named


_PHRASES: Mapping[ReasonCode, str] = {
    ReasonCode.NO_WORKER: "no worker was alive",
    ReasonCode.NO_CAPABLE_AGENT: "no worker could run what waited",
    ReasonCode.HANDLER: "no worker knew what waited",
    ReasonCode.MONTHLY_HOURS: "the month's hours were too few",
    ReasonCode.BUDGET: "the budget was used up",
    ReasonCode.APPROVAL: "your answer about money was missing",
    ReasonCode.PAUSED: "starts were paused",
}
_CAUSES: Mapping[ReasonCode, str] = {
    ReasonCode.STATE: "their preparation",
    ReasonCode.DEPENDENCY: "other tasks",
    ReasonCode.START_AT: "their start time",
    ReasonCode.RETRY_AT: "the next try",
    ReasonCode.APPROVAL: "your answer",
    ReasonCode.DEADLINE: "a deadline that had passed",
    ReasonCode.BUDGET: "money",
    ReasonCode.LOCK: "a lock",
    ReasonCode.PLAN_CONCURRENCY: "a slot of the plan",
    ReasonCode.MONTHLY_HOURS: "monthly hours",
    ReasonCode.WINDOW: "the night window",
    ReasonCode.PAUSED: "the end of a pause",
    ReasonCode.NO_WORKER: "a worker",
    ReasonCode.NO_CAPABLE_AGENT: "a capable worker",
    ReasonCode.HANDLER: "a handler",
    ReasonCode.SLOTS: "a free worker",
    ReasonCode.SLOTS_MAX: "a free worker",
    ReasonCode.BEHIND: "their turn",
}


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{count_in_words(number)} times")


def _needs(number: int) -> str:
    if not number:
        return ""
    verb = "thing needs" if number == 1 else "things need"
    return f", and {count_in_words(number)} {verb} you"
