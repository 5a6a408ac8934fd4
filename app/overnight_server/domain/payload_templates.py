r"""Templates in what a schedule submits: `{{ fire_time }}` becomes the fire time.

Nothing is evaluated. A text that consists of one name becomes its JSON value, such as a number or
null; inside a longer text the value is written as text. `\{{` stands for `{{`.
"""

import re
from collections.abc import Mapping
from typing import Final

from overnight.errors import InvalidRequest

#: The names that a template may use, and what each stands for.
NAMES: Final[Mapping[str, str]] = {
    "fire_time": "the fire time in UTC, such as 2030-01-31T21:00:00Z",
    "fire_time_local": "the fire time in the zone of the schedule, with its offset",
    "fire_date": "the local date of the fire time, such as 2030-01-31",
    "fire_unix": "the fire time in seconds since 1970, a number",
    "previous_fire_time": "the fire time before it, or null",
    "next_fire_time": "the fire time after it, or null",
    "fire_kind": "scheduled, manual or backfill",
    "schedule": "the name of the schedule",
    "schedule_id": "the id of the schedule",
    "zone": "the time zone of the schedule",
}
Value = str | int | None
_LITERAL, _OPEN = "\\{{", "{{"
_PLACE: Final = re.compile(r"\\\{\{|\{\{\s*(\w{1,40})\s*\}\}|\{\{", re.ASCII)


def fill(template: object, values: Mapping[str, Value], field: str) -> object:
    """Return a JSON value with every name in its texts replaced; keys stay as they are.

    Raises InvalidRequest that names the field of a template with an unknown name.

    >>> fill({"day": "{{ fire_date }}", "at": ["{{fire_unix}}"]}, {"fire_date": "2030-01-31",
    ...      "fire_unix": 7}, "payload")
    {'day': '2030-01-31', 'at': [7]}
    """
    match template:
        case str():
            return _fill_text(template, values, field)
        case dict():
            return {key: fill(inner, values, f"{field}.{key}") for key, inner in template.items()}
        case list() | tuple():
            return [fill(inner, values, f"{field}.{n}") for n, inner in enumerate(template)]
        case _:
            return template


def _fill_text(template: str, values: Mapping[str, Value], field: str) -> Value:
    if _OPEN not in template:
        return template
    whole = _PLACE.fullmatch(template)
    if whole and whole[1] in values:
        return values[whole[1]]

    def text(place: re.Match[str]) -> str:
        if place[0] == _LITERAL:
            return _OPEN
        if place[1] not in values:
            unknown = place[0] if place[1] else "{{ without a name and }}"
            legal = f"{', '.join(values)}; \\{{{{ for a literal {{{{"
            raise InvalidRequest(field, f"{unknown} is not a known name", legal=legal)
        value = values[place[1]]
        return "" if value is None else str(value)

    return _PLACE.sub(text, template)
