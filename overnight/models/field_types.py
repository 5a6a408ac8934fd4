"""Types of fields: numbers, texts, instants and JSON values on the wire."""

import re
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field

from overnight.models.json_values import check_object, check_text

WEEK_SECONDS = 7 * 24 * 3600
DAY_SECONDS = 24 * 3600
# The longest wait before a next run that a handler or agent can ask for. A longer one is mostly a
# mistake of units: milliseconds for seconds.
LONGEST_WAIT_SECONDS = 30 * DAY_SECONDS


def _check_year(instant: datetime) -> datetime:
    # Near the ends of the calendar, a change of time zone overflows Python's datetime.
    if not datetime(2000, 1, 1, tzinfo=UTC) <= instant < datetime(3000, 1, 1, tzinfo=UTC):
        raise ValueError("must lie between the years 2000 and 2999")
    return instant


def _to_integer(value: object) -> object:
    # JSON has one kind of number, and some languages write 3 as 3.0.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _refuse_bare_number(value: object) -> object:
    # pydantic would read a bare number as seconds since 1970, which is rarely meant.
    if isinstance(value, int | float) or (isinstance(value, str) and _BARE.fullmatch(value)):
        raise ValueError("is not an instant")
    return value


_BARE = re.compile(r"\s*[-+]?[\d.]+\s*")
# Strict, because JSON has numbers: "3" and true are mistakes.
WholeNumber = Annotated[int, Field(strict=True), BeforeValidator(_to_integer)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Text = Annotated[str, AfterValidator(check_text)]
ShortText = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(check_text)]
LockKey = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(check_text)]
JsonObject = Annotated[dict[str, Any], AfterValidator(check_object)]
Instant = Annotated[
    AwareDatetime, AfterValidator(_check_year), BeforeValidator(_refuse_bare_number)
]
