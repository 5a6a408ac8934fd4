"""Kinds of fields: what a number, a text, an instant or a piece of JSON is on the wire."""

import re
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from overnight.models.json_values import sound_object, sound_text

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
Whole = Annotated[int, Field(strict=True), BeforeValidator(_written_whole)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Text = Annotated[str, AfterValidator(sound_text)]
Word = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(sound_text)]
LockKey = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(sound_text)]
JsonObject = Annotated[dict[str, Any], AfterValidator(sound_object)]
Deadline = Annotated[
    AwareDatetime, AfterValidator(_year_we_can_keep), BeforeValidator(_written_out)
]


_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


class Described(BaseModel):
    """Common ground of bodies with whole numbers: their bounds are told as JSON Schema has them.

    What is looked at before it is checked, as a whole number is, pydantic describes in words of
    its own.
    """

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Describe the bounds of every field in the words of JSON Schema."""
        schema = handler(core)
        for field in handler.resolve_ref_schema(schema).get("properties", {}).values():
            for node in (field, *field.get("anyOf", ())):
                for word in _BOUNDS.keys() & node.keys():
                    node[_BOUNDS[word]] = node.pop(word)
        return schema
