r"""Templates of tasks that events make, and filters of events; nothing is evaluated.

In the texts of a template, `{{ /body/number }}` becomes what the event has at that JSON pointer. A
text that consists of one place becomes its JSON value; inside a longer text a string is written as
it is, null as nothing, and any other value as JSON. `{{ ?/body/number }}` becomes null if the event
has no such value, where `{{ /body/number }}` is an error. `\{{` stands for `{{`. Keys stay as they
are, and what an event brings in is not searched for places again.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from overnight.errors import InvalidRequest
from overnight_server.domain.json_pointers import (
    LEGAL,
    PointerMissing,
    parse_pointer,
    value_at,
)

Comparison = Literal["equals", "one_of", "none_of", "starts_with", "exists"]
COMPARISONS: Final[Sequence[Comparison]] = ("equals", "one_of", "none_of", "starts_with", "exists")
_LITERAL, _OPEN = "\\{{", "{{"
_PLACE: Final = re.compile(r"\\\{\{|\{\{\s*(\??)(/[^{}]*?)\s*\}\}|\{\{")
LEGAL_PLACE: Final = f"{{{{ and a JSON pointer and }}}}, {LEGAL}; \\{{{{ for a literal {{{{"


class Unfit(Exception):
    """An event lacks what a template needs; the text says what."""


@dataclass(frozen=True)
class EventCondition:
    """What an event must have at a JSON pointer; `value` is what it is compared with."""

    pointer: str
    comparison: Comparison
    value: object

    def holds(self, event: object) -> bool:
        """Whether an event meets the condition.

        >>> EventCondition("/action", "one_of", ["opened", "closed"]).holds({"action": "opened"})
        True
        """
        try:
            found = value_at(event, self.pointer)
        except PointerMissing:
            return self.comparison == "none_of" or (self.comparison, self.value) == (
                "exists",
                False,
            )
        match self.comparison:
            case "equals":
                return _is_same(found, self.value)
            case "one_of":
                return _is_among(found, self.value)
            case "none_of":
                return not _is_among(found, self.value)
            case "starts_with":
                return isinstance(found, str) and found.startswith(str(self.value))
            case "exists":
                return self.value is True


def fill(template: object, event: object, field: str) -> object:
    """Return a template with the values of an event; raise Unfit for a value that it lacks.

    >>> fill({"title": "Review #{{ /body/number }}"}, {"body": {"number": 7}}, "task")
    {'title': 'Review #7'}
    """
    match template:
        case str():
            return _fill_text(template, event, field)
        case Mapping():
            return {key: fill(inner, event, f"{field}.{key}") for key, inner in template.items()}
        case Sequence():
            return [fill(inner, event, f"{field}.{n}") for n, inner in enumerate(template)]
        case _:
            return template


def check_places(template: object, field: str) -> None:
    """Raise InvalidRequest for a place of a template that names no JSON pointer."""
    for name, text in _texts(template, field):
        for place in _PLACE.finditer(text):
            if place[0] == _LITERAL:
                continue
            if place[2] is None:
                raise InvalidRequest(name, "has {{ without a JSON pointer", legal=LEGAL_PLACE)
            try:
                parse_pointer(place[2])
            except ValueError as error:
                raise InvalidRequest(name, f"{place[2]} {error}", legal=LEGAL) from None


def has_places(template: object) -> bool:
    """Whether any text of a template gets a value of the event."""
    return any(
        place[2] is not None for _, text in _texts(template, "") for place in _PLACE.finditer(text)
    )


def _fill_text(template: str, event: object, field: str) -> object:
    if _OPEN not in template:
        return template
    whole = _PLACE.fullmatch(template)
    if whole and whole[2] is not None:
        return _value(whole, event, field)

    def text(place: re.Match[str]) -> str:
        return _OPEN if place[2] is None else _as_text(_value(place, event, field))

    return _PLACE.sub(text, template)


def _value(place: re.Match[str], event: object, field: str) -> object:
    try:
        return value_at(event, place[2])
    except PointerMissing:
        if place[1]:
            return None
        raise Unfit(f"{field}: the event has no {place[2]}") from None


def _as_text(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _texts(template: object, field: str) -> Iterator[tuple[str, str]]:
    match template:
        case str():
            yield field, template
        case Mapping():
            for key, inner in template.items():
                yield from _texts(inner, f"{field}.{key}")
        case Sequence():
            for number, inner in enumerate(template):
                yield from _texts(inner, f"{field}.{number}")


def _is_among(found: object, values: object) -> bool:
    return isinstance(values, list | tuple) and any(_is_same(found, value) for value in values)


def _is_same(one: object, other: object) -> bool:
    """Whether two JSON values are equal; in Python, true would equal 1."""
    return isinstance(one, bool) is isinstance(other, bool) and one == other
