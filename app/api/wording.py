"""Telling a sender which field is wrong and what would do, from the models themselves."""

from collections.abc import Hashable, Mapping
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from overnight.faults import said, unknown

Schema = Mapping[str, Any]
NOT_JSON = frozenset({"model_attributes_type", "model_type", "dict_type", "dict_attributes_type"})


def explain(fault: Mapping[str, Any], kind: Hashable) -> dict[str, str]:
    """Turn one fault of pydantic into field, message and legal values.

    `kind` is what the body should have been, as its route declares it.
    """
    place, *path = fault["loc"]
    if fault["type"] == "json_invalid":
        return _wrong("body", f"is not JSON: {fault['ctx']['error']}", "one JSON object")
    if not path:
        return _wrong("body", _whole_body(fault), "one JSON object, sent as application/json")
    field = ".".join(map(str, path))
    if place != "body":
        return _wrong(field, said(fault), _legal_in_query(fault))
    schema = _schema(kind)
    if fault["type"] == "extra_forbidden":
        return _wrong(field, *_unknown(path, schema))
    return _wrong(field, said(fault), say(_node(path, schema), schema))


def say(node: Schema, schema: Schema | None = None) -> str:
    """Say in words what a JSON schema allows; `schema` is the whole that the node is part of.

    >>> say({"type": "integer", "minimum": 1, "maximum": 4})
    'a whole number from 1 to 4'
    """
    if "anyOf" in node:
        return " or ".join(say(_resolved(each, schema), schema) for each in node["anyOf"])
    if "enum" in node:
        return f"one of {', '.join(map(str, node['enum']))}"
    if "const" in node:
        return str(node["const"])
    match node.get("type"):
        case "integer" | "number" as kind:
            noun = "a whole number" if kind == "integer" else "a number"
            return noun + _span(node, "minimum", "maximum")
        case "string":
            return _say_text(node)
        case "boolean":
            return "true or false"
        case "null":
            return "null"
        case "array":
            items = say(_resolved(node.get("items", {}), schema), schema)
            least = f"{node['minItems']} to " if node.get("minItems") else "at most "
            return f"a list of {least}{node.get('maxItems', 'any number')}, each {items}"
        case "object":
            return "a JSON object"
        case _:
            return "any value"


def _wrong(field: str, message: str, legal: str) -> dict[str, str]:
    # Half a surrogate pair in a name cannot be written as UTF-8 again.
    return {"field": field.encode(errors="backslashreplace").decode(), "message": message} | (
        {"legal": legal} if legal else {}
    )


def _whole_body(fault: Mapping[str, Any]) -> str:
    if fault["type"] == "missing" or fault["type"] in NOT_JSON:
        return "is not a JSON object"
    return str(fault["msg"].removeprefix("Value error, "))


def _unknown(path: list[str | int], schema: Schema) -> tuple[str, str]:
    known = list(_object_branch(_node(path[:-1], schema), schema).get("properties", {}))
    return unknown(path[-1], known), f"one of {', '.join(known)}"


def _legal_in_query(fault: Mapping[str, Any]) -> str:
    bounds = fault.get("ctx", {})
    for name, words in (("ge", "at least"), ("le", "at most"), ("max_length", "characters up to")):
        if name in bounds:
            return f"{words} {bounds[name]}"
    return ""


@cache
def _schema(kind: Any) -> Schema:  # noqa: ANN401 - a type, or several joined
    return TypeAdapter[Any](kind).json_schema()


def _resolved(node: Schema, schema: Schema | None) -> Schema:
    """Follow a reference to what it stands for."""
    if "$ref" in node and schema is not None:
        found: Schema = schema["$defs"][node["$ref"].rpartition("/")[2]]
        return found
    return node


def _node(path: list[str | int], schema: Schema) -> Schema:
    """Return the part of the schema a path leads to, or an empty one."""
    node = _resolved(schema, schema)
    for step in path:
        node = _object_branch(node, schema)
        inner = (
            node.get("items", {})
            if isinstance(step, int)
            else node.get("properties", {}).get(step, {})
        )
        node = _resolved(inner, schema)
    return node


def _object_branch(node: Schema, schema: Schema) -> Schema:
    """Return the branch of a choice that has fields, else its first real one."""
    branches = [_resolved(each, schema) for each in node.get("anyOf", ())]
    real = [each for each in branches if each.get("type") != "null"]
    return next((each for each in real if "properties" in each), next(iter(real), node))


def _say_text(node: Schema) -> str:
    if node.get("format") == "date-time":
        return "an instant with an offset, such as 2030-01-31T07:00:00Z"
    if "pattern" in node:
        return f"text that matches {node['pattern']}"
    span = _span(node, "minLength", "maxLength")
    return f"text{span} characters" if span else "text"


def _span(node: Schema, least: str, most: str) -> str:
    if least in node and most in node:
        return f" from {node[least]:g} to {node[most]:g}"
    if most in node:
        return f" of at most {node[most]:g}"
    if least in node:
        return f" of at least {node[least]:g}"
    return ""
