"""Describe each validation error of a request: the field, what is wrong, and legal values."""

from collections.abc import Hashable, Mapping
from typing import Any

from overnight.models.field_errors import (
    Schema,
    bound_of,
    describe,
    field_names_at,
    legal_values,
    message_of,
    schema_of,
    unknown_name,
)

NOT_JSON = frozenset({"model_attributes_type", "model_type", "dict_type", "dict_attributes_type"})


def describe_fault(
    fault: Mapping[str, Any], kind: Hashable, parameters: Mapping[str, Schema] | None = None
) -> dict[str, str]:
    """Return the field, message and legal values of one validation error of pydantic.

    `kind` is the type of the body that the route declares; `parameters` are the schemas of the
    route's path, query and header parameters by name.
    """
    place, *path = fault["loc"]
    if fault["type"] == "json_invalid":
        return _wrong("body", f"is not JSON: {fault['ctx']['error']}", "one JSON object")
    if not path:
        return _wrong("body", _whole_body(fault), "one JSON object, sent as application/json")
    field = ".".join(map(str, path))
    if place != "body":
        described = (parameters or {}).get(field)
        return _wrong(
            field, message_of(fault), describe(described) if described else bound_of(fault)
        )
    schema = schema_of(kind)
    if fault["type"] == "extra_forbidden":
        return _wrong(field, *_unknown(path, schema))
    return _wrong(field, message_of(fault), legal_values(path, schema) or bound_of(fault))


def _wrong(field: str, message: str, legal: str) -> dict[str, str]:
    # A name with half a surrogate pair cannot be encoded as UTF-8.
    return {"field": field.encode(errors="backslashreplace").decode(), "message": message} | (
        {"legal": legal} if legal else {}
    )


def _whole_body(fault: Mapping[str, Any]) -> str:
    if fault["type"] == "missing" or fault["type"] in NOT_JSON:
        return "is not a JSON object"
    return str(fault["msg"].removeprefix("Value error, "))


def _unknown(path: list[str | int], schema: Schema) -> tuple[str, str]:
    legal = field_names_at(path[:-1], schema)
    return unknown_name(path[-1], legal), f"one of {', '.join(legal)}"
