"""Kinds of fields: what a number, a text, an instant or a piece of JSON is on the wire."""

import re
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field

from overnight.models.json_values import check_object, check_text

WEEK_SECONDS = 7 * 24 * 3600
DAY_SECONDS = 24 * 3600


def _year_we_can_keep(instant: datetime) -> datetime:
    # Near the ends of the calendar a change of zone leaves what Python can hold.
    if not datetime(2000, 1, 1, tzinfo=UTC) <= instant < datetime(3000, 1, 1, tzinfo=UTC):
        raise ValueError("must lie between the years 2000 and 2999")
    return instant


def _written_whole(given: object) -> object:
    # JSON knows one kind of number: 3.0 is 3, and some languages write it so.
    return int(given) if isinstance(given, float) and given.is_integer() else given


def _written_out(given: object) -> object:
    # A bare number would be taken for seconds since 1970; seldom was it meant so.
    if isinstance(given, int | float) or (isinstance(given, str) and _BARE.fullmatch(given)):
        raise ValueError("is not an instant")
    return given


_BARE = re.compile(r"\s*[-+]?[\d.]+\s*")
# Strict: JSON has numbers of its own, so "3" and true are mistakes and not priorities.
WholeNumber = Annotated[int, Field(strict=True), BeforeValidator(_written_whole)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Text = Annotated[str, AfterValidator(check_text)]
ShortText = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(check_text)]
LockKey = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(check_text)]
JsonObject = Annotated[dict[str, Any], AfterValidator(check_object)]
Instant = Annotated[AwareDatetime, AfterValidator(_year_we_can_keep), BeforeValidator(_written_out)]
