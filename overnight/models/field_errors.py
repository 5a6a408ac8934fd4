"""Describe what is wrong with a field and which values are legal, for clients and the service.

pydantic reports an invalid field as a dict ("pydantic error" below): its `type`, its location
`loc`, its message and the bounds it broke. The functions here turn that into sentences.
"""

import difflib
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from overnight.errors import FieldError, InvalidRequest

M = TypeVar("M", bound=BaseModel)
Schema = Mapping[str, Any]
ANY_VALUE = "any value"

MESSAGES = {
    "missing": "is missing",
    "int_type": "is not a whole number",
    "int_parsing": "is not a whole number",
    "int_from_float": "is not a whole number",
    "float_type": "is not a number",
    "float_parsing": "is not a number",
    "finite_number": "is not a finite number",
    "greater_than_equal": "is too small",
    "greater_than": "is too small",
    "less_than_equal": "is too large",
    "less_than": "is too large",
    "string_type": "is not text",
    "string_too_short": "is too short",
    "string_too_long": "is too long",
    "string_pattern_mismatch": "does not have the required form",
    "bool_type": "is neither true nor false",
    "bool_parsing": "is neither true nor false",
    "enum": "is not one of the allowed values",
    "literal_error": "is not one of the allowed values",
    "too_long": "has too many items",
    "too_short": "has too few items",
    "tuple_type": "is not a list",
    "list_type": "is not a list",
    "dict_type": "is not a JSON object",
    "model_type": "is not a JSON object",
    "model_attributes_type": "is not a JSON object",
    "timezone_aware": "lacks an offset from UTC",
    "datetime_type": "is not an instant",
    "datetime_parsing": "is not an instant",
    "datetime_from_date_parsing": "is not an instant",
}

BOUNDS = {
    "ge": "at least {}",
    "gt": "more than {}",
    "le": "at most {}",
    "lt": "less than {}",
    "min_length": "at least {} long",
    "max_length": "at most {} long",
    "pattern": "text that matches {}",
    "expected": "{}",
}


def validate(model: type[M], fields: Mapping[str, Any]) -> M:
    """Return the model made from these fields, or raise InvalidRequest as the service would."""
    try:
        return model.model_validate(dict(fields))
    except ValidationError as error:
        causes = without_consequences(error.errors(include_url=False, include_input=False))
        raise InvalidRequest.of_fields([_field_error(model, each) for each in causes]) from None


def field_messages(model: type[BaseModel], error: ValidationError, *, inside: str) -> str:
    """Return what is wrong with each field of the object `inside`, without the values given.

    >>> class Size(BaseModel):
    ...     width: int
    >>> try:
    ...     Size.model_validate({})
    ... except ValidationError as error:
    ...     field_messages(Size, error, inside="payload")
    'payload.width: is missing; legal: a whole number'
    """
    causes = without_consequences(error.errors(include_url=False, include_input=False))
    wrong = [_field_error(model, each) for each in causes]
    return "; ".join(f"{inside}.{each}" if each.field else f"{inside}{each}" for each in wrong)


def without_consequences(errors: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Drop pydantic errors that follow from others: a list is too short if its items are wrong."""
    return [
        error
        for error in errors
        if error["type"] != "too_short"
        or not any(_is_inside(other["loc"], error["loc"]) for other in errors)
    ]


def message_of(error: Mapping[str, Any]) -> str:
    """Return what is wrong with the field of a pydantic error.

    >>> message_of({"type": "less_than_equal", "msg": "Input should be less than or equal to 4"})
    'is too large'
    """
    is_short = error["type"] in ("too_short", "string_too_short")
    if is_short and (error.get("ctx") or {}).get("min_length") == 1:
        return "is empty"
    return MESSAGES.get(error["type"], str(error["msg"]).removeprefix("Value error, "))


def bound_of(error: Mapping[str, Any]) -> str:
    """Return the bound that a pydantic error names, or an empty string.

    >>> bound_of({"type": "less_than_equal", "ctx": {"le": 4}})
    'at most 4'
    """
    context: Mapping[str, Any] = error.get("ctx") or {}
    for bound, text in BOUNDS.items():
        if bound in context:
            value = context[bound]
            return text.format(f"{value:g}" if isinstance(value, float) else value)
    return ""


def unknown_name(name: object, legal: Collection[str], noun: str = "field") -> str:
    """Return the message for an unknown name, with the nearest legal one.

    >>> unknown_name("titel", ["title", "type"])
    'is not a known field; did you mean title?'
    """
    nearest = nearest_name(name, legal)
    return f"is not a known {noun}" + (f"; did you mean {nearest}?" if nearest else "")


def nearest_name(name: object, legal: Collection[str]) -> str | None:
    """Return the legal name that is most similar to `name`; None if there is no legal name.

    >>> nearest_name("titel", ["title", "type"])
    'title'
    """
    return next(iter(difflib.get_close_matches(str(name), sorted(legal), n=1, cutoff=0.0)), None)


def legal_values(path: Sequence[str | int], schema: Schema) -> str:
    """Return the legal values of a field, or an empty string if the schema allows any."""
    text = describe(node_at(path, schema), schema)
    return "" if text == ANY_VALUE else text


def describe(node: Schema, schema: Schema | None = None) -> str:
    """Return what a JSON schema node allows; `schema` is the document that the node is part of.

    >>> describe({"type": "integer", "minimum": 1, "maximum": 4})
    'a whole number from 1 to 4'
    """
    if "anyOf" in node:
        return " or ".join(describe(_resolve(each, schema), schema) for each in node["anyOf"])
    if "enum" in node:
        return f"one of {', '.join(map(str, node['enum']))}"
    if "const" in node:
        return str(node["const"])
    match node.get("type"):
        case "integer" | "number" as kind:
            noun = "a whole number" if kind == "integer" else "a number"
            return noun + _range(node, "minimum", "maximum")
        case "string":
            return _describe_text(node)
        case "boolean":
            return "true or false"
        case "null":
            return "null"
        case "array":
            items = describe(_resolve(node.get("items", {}), schema), schema)
            least = f"{node['minItems']} to " if node.get("minItems") else "at most "
            return f"a list of {least}{node.get('maxItems', 'any number')}, each {items}"
        case "object":
            return "a JSON object"
        case _:
            return ANY_VALUE


@cache
def schema_of(kind: Any) -> Schema:  # noqa: ANN401 - a type, or a union of types
    """Return the JSON schema of a model, or of a union of models."""
    return TypeAdapter[Any](kind).json_schema()


def node_at(path: Sequence[str | int], schema: Schema) -> Schema:
    """Return the node of the schema at a path of field names and list indexes, or an empty one."""
    node = _resolve(schema, schema)
    for step in path:
        node = object_branch(node, schema)
        inner = (
            node.get("items", {})
            if isinstance(step, int)
            else node.get("properties", {}).get(step, {})
        )
        node = _resolve(inner, schema)
    return node


def object_branch(node: Schema, schema: Schema) -> Schema:
    """Return the branch of a union that has fields, else its first branch that is not null."""
    branches = [_resolve(each, schema) for each in node.get("anyOf", ())]
    real = [each for each in branches if each.get("type") != "null"]
    return next((each for each in real if "properties" in each), next(iter(real), node))


def field_names_at(path: Sequence[str | int], schema: Schema) -> list[str]:
    """Return the names of the fields that the object at a path may have."""
    return list(object_branch(node_at(path, schema), schema).get("properties", {}))


def _field_error(model: type[BaseModel], error: Mapping[str, Any]) -> FieldError:
    path = error["loc"] or ("body",)
    field = ".".join(map(str, error["loc"]))
    schema = schema_of(model)
    if error["type"] == "extra_forbidden":
        legal = field_names_at(path[:-1], schema)
        return FieldError(field, unknown_name(path[-1], legal), f"one of {', '.join(legal)}")
    return FieldError(
        field, message_of(error), legal_values(error["loc"], schema) or bound_of(error)
    )


def _is_inside(path: Sequence[str | int], outer: Sequence[str | int]) -> bool:
    return len(path) > len(outer) and tuple(path[: len(outer)]) == tuple(outer)


def _resolve(node: Schema, schema: Schema | None) -> Schema:
    """Return the node that a reference points to, or the node itself."""
    if "$ref" in node and schema is not None:
        target: Schema = schema["$defs"][node["$ref"].rpartition("/")[2]]
        return target
    return node


def _describe_text(node: Schema) -> str:
    if node.get("format") == "date-time":
        return "an instant with an offset, such as 2030-01-31T07:00:00Z"
    if "pattern" in node:
        return f"text that matches {node['pattern']}"
    length = _range(node, "minLength", "maxLength")
    return f"text{length} characters" if length else "text"


def _range(node: Schema, least: str, most: str) -> str:
    if least in node and most in node:
        return f" from {node[least]:g} to {node[most]:g}"
    if most in node:
        return f" of at most {node[most]:g}"
    if least in node:
        return f" of at least {node[least]:g}"
    return ""
