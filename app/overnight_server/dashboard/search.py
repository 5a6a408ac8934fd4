"""The search of tasks: words of the title, and qualifiers such as `state:dead cost:>1 age:<12h`.

The same text is the filter of the list, of operations on all that match, and of the address.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import partial
from typing import Any

from overnight.models.bulk import TaskFilter
from overnight_server.dashboard.clocks import Clock
from overnight_server.domain.ids import MalformedId, parse_dag
from overnight_server.domain.lifecycle import ACTIVE, WAITING, State, states_of
from overnight_server.domain.reasons import ReasonCode

MAX_QUERY = 500
QUALIFIERS = (
    "state",
    "status",
    "type",
    "tag",
    "project",
    "graph",
    "lock",
    "source",
    "by",
    "error",
    "waits",
    "title",
    "made",
    "ended",
    "cost",
    "age",
    "attempts",
)
#: Words for several states at once; the tabs of the list use them.
GROUPS: dict[str, frozenset[State]] = {
    "waiting": WAITING,
    "active": ACTIVE,
    "done": frozenset({State.COMPLETED}),
    "dead": frozenset({State.DEAD_LETTERED}),
    "open": WAITING | ACTIVE,
}
Reader = Callable[[str, Clock], dict[str, Any]]
FindGraph = Callable[[str], str | None]
_TOKEN = re.compile(r'(?:([a-z]+):)?(?:"([^"]*)"?|(\S+))', re.IGNORECASE)
_PLAIN = {"type": "type", "tag": "tag", "project": "project_id", "source": "source"}
_TEXTS = {**_PLAIN, "by": "created_by", "error": "error", "lock": "lock"}
_SPAN = re.compile(r"([<>]?)(\d{1,6})([mhdw])")
_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 604800}
_COST = re.compile(r"([<>]=?)?\$?(\d{1,7}(?:\.\d{1,4})?)")
_ATTEMPTS = re.compile(r"(>=?)?(\d{1,4})")
_DAY = re.compile(r"([<>]?)(\d{4}-\d{2}-\d{2})")
_INSTANT = re.compile(r"([<>])(\d{4}-\d{2}-\d{2}T\d{2}:\d{2})Z", re.IGNORECASE)
#: What `waits:` may name, by the word and by the code of `explain`.
WAITS = {
    "hours": "monthly_hours",
    "money": "budget",
    "plan": "plan_concurrency",
    "start": "start_at",
    "retry": "retry_at",
    "task": "dependency",
    "queue": "behind",
    "worker": "no_worker",
}
_OF_TASK = {"dependency", "start_at", "retry_at", "approval", "lock"}
EVENING, NOON = timedelta(hours=18), timedelta(hours=12)


@dataclass(frozen=True)
class Chip:
    """One qualifier of a search, and the search without it."""

    name: str
    value: str
    without: str


@dataclass(frozen=True)
class Search:
    """A search as it was understood.

    `waits_for` is a reason that concerns all tasks of the user: the list must ask whether it holds.
    """

    text: str = ""
    words: str = ""
    states: frozenset[State] | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    chips: tuple[Chip, ...] = ()
    problems: tuple[str, ...] = ()
    waits_for: str | None = None

    @property
    def filter(self) -> TaskFilter:
        """The filter of the API that selects the same tasks, without the states."""
        return TaskFilter(**self.fields)

    @property
    def is_empty(self) -> bool:
        """Whether it selects every task."""
        return self.states is None and not self.fields


def parse_search(text: str, clock: Clock, find_graph: FindGraph = lambda _: None) -> Search:
    """Return a search from what was typed; what is not understood is named, and left out.

    `find_graph` returns the id of the graph whose id ends with a text.
    """
    found = Search(text=text[:MAX_QUERY].strip())
    tokens = [match for match in _TOKEN.finditer(found.text) if match.group()]
    readers: dict[str, Reader] = {**_READERS, "graph": partial(_graph, find_graph)}
    words: list[str] = []
    for match in tokens:
        name = (match[1] or "").lower()
        value = match[2] if match[2] is not None else match[3]
        if not name:
            words.append(value)
            continue
        rest = " ".join(other.group() for other in tokens if other is not match)
        before = found
        try:
            found = _take(found, name, value, partial(_fields, readers, name, value, clock))
        except ValueError as error:
            found = _with_problem(found, f"{name}:{value}: {error}")
        else:
            found = replace(found, chips=(*before.chips, Chip(name, value, rest)))
    if words:
        joined = " ".join(words)
        found = replace(found, words=joined)
        try:
            found = _with_fields(found, {"title": joined})
        except ValueError as error:
            found = _with_problem(found, f"{joined}: {error}")
    return found


def instant_text(instant: datetime) -> str:
    """Return an instant as `made:` and `ended:` read it after `<` or `>`.

    >>> instant_text(datetime(2026, 11, 16, 22, tzinfo=UTC))
    '2026-11-16T22:00Z'
    """
    return f"{instant.astimezone(UTC):%Y-%m-%dT%H:%MZ}"


def _take(
    search: Search, name: str, value: str, read_fields: Callable[[], dict[str, Any]]
) -> Search:
    """Return a search with one qualifier more; raise ValueError if it is not understood."""
    if name not in QUALIFIERS:
        raise ValueError(_nearest(name))
    if name in {"state", "status"}:
        if search.states is not None:
            raise ValueError(
                "is left out: name several states with commas, such as state:ready,done"
            )
        return replace(search, states=_states(value))
    if name == "waits":
        return _take_wait(search, value)
    return _with_fields(search, read_fields())


def _with_fields(search: Search, fields: Mapping[str, Any]) -> Search:
    """Return a search with further fields; raise ValueError if one of them has a value already."""
    if fields.keys() & search.fields.keys():
        raise ValueError("is left out: a search takes one value, and an earlier part gives it")
    return replace(search, fields={**search.fields, **fields})


def _with_problem(search: Search, problem: str) -> Search:
    return replace(search, problems=(*search.problems, problem))


def _nearest(name: str) -> str:
    near = get_close_matches(name, QUALIFIERS, 1)
    return f"there is no {name}:" + (f", the nearest is {near[0]}:" if near else "")


def _states(value: str) -> frozenset[State]:
    names = value.lower().split(",")
    try:
        return frozenset().union(*(GROUPS.get(name) or states_of(name) for name in names))
    except ValueError:
        known = ", ".join([*GROUPS, *State])
        raise ValueError(f"is no state; there are {known}") from None


def _take_wait(search: Search, value: str) -> Search:
    code = WAITS.get(value.lower(), value.lower())
    if code not in set(ReasonCode):
        raise ValueError(f"is no cause; there are {', '.join([*WAITS, *sorted(_OF_TASK)])}")
    if code in _OF_TASK:
        return _with_fields(search, {"waits_for": code})
    return replace(_with_fields(search, {"waits_for": "ready"}), waits_for=code)


def _fields(readers: Mapping[str, Reader], name: str, value: str, clock: Clock) -> dict[str, Any]:
    if not value:
        raise ValueError("has no value")
    if name in _TEXTS:
        return {_TEXTS[name]: value}
    return readers[name](value, clock)


def _graph(find_graph: FindGraph, value: str, _clock: Clock) -> dict[str, Any]:
    try:
        parse_dag(value)
    except MalformedId:
        found = find_graph(value)
        if found is None:
            raise ValueError("is neither the id of a graph of yours nor the end of one") from None
        return {"dag_id": found}
    return {"dag_id": value}


def _cost(value: str, _clock: Clock) -> dict[str, Any]:
    match = _COST.fullmatch(value)
    if match is None:
        raise ValueError("is no amount, such as >1 or <0.50")
    amount = float(match[2])
    return {"below_cost_usd": amount} if (match[1] or ">")[0] == "<" else {"min_cost_usd": amount}


def _attempts(value: str, _clock: Clock) -> dict[str, Any]:
    match = _ATTEMPTS.fullmatch(value)
    if match is None:
        raise ValueError("is no number of attempts, such as 2 or >2")
    return {"min_attempts": int(match[2]) + (match[1] == ">")}


def _age(value: str, clock: Clock) -> dict[str, Any]:
    match = _SPAN.fullmatch(value)
    if match is None:
        raise ValueError("is no age, such as <12h or >2d")
    at = clock.now - timedelta(seconds=int(match[2]) * _SECONDS[match[3]])
    return {"created_before": at} if match[1] == ">" else {"created_after": at}


def _time(after: str, before: str) -> "Callable[[str, Clock], dict[str, Any]]":
    def read(value: str, clock: Clock) -> dict[str, Any]:
        begin, end = _period(value.lower(), clock)
        period = {after: begin, before: end}
        return {name: at for name, at in period.items() if at is not None}

    return read


def _period(value: str, clock: Clock) -> tuple[datetime | None, datetime | None]:
    """Return the beginning and end of a day, a night, or the time since or until one."""
    today = clock.local(clock.now).replace(hour=0, minute=0, second=0, microsecond=0)
    day = timedelta(days=1)
    named = {
        "today": (today, today + day),
        "yesterday": (today - day, today),
        "last-night": (today - day + EVENING, today + NOON),
        "tonight": (today + EVENING, today + day + NOON),
    }
    if value in named:
        begin, end = named[value]
        return begin.astimezone(UTC), end.astimezone(UTC)
    span = _SPAN.fullmatch(value)
    if span is not None:
        at = clock.now - timedelta(seconds=int(span[2]) * _SECONDS[span[3]])
        return (None, at) if span[1] == ">" else (at, None)
    instant = _INSTANT.fullmatch(value)
    if instant is not None:
        at = datetime.fromisoformat(instant[2].upper()).replace(tzinfo=UTC)
        return (None, at) if instant[1] == "<" else (at, None)
    match = _DAY.fullmatch(value)
    if match is None:
        raise ValueError("is no time: today, yesterday, last-night, 2026-11-16, >2026-11-16, <12h")
    begin = datetime.fromisoformat(match[2]).replace(tzinfo=clock.tz)
    if match[1] == "<":
        return None, begin.astimezone(UTC)
    return begin.astimezone(UTC), None if match[1] == ">" else (begin + day).astimezone(UTC)


_READERS: dict[str, Reader] = {
    "title": lambda value, _clock: {"title": value},
    "cost": _cost,
    "attempts": _attempts,
    "age": _age,
    "made": _time("created_after", "created_before"),
    "ended": _time("ended_after", "ended_before"),
}
