"""What a field may be, in words, read from the schema of the model that it belongs to."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from pydantic import TypeAdapter

Schema = Mapping[str, Any]
ANYTHING = "any value"


def allowed(path: Sequence[str | int], schema: Schema) -> str:
    """Say what may stand at a place; nothing, if the schema does not know better than anything."""
    words = say(node_at(path, schema), schema)
    return "" if words == ANYTHING else words


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
            return ANYTHING


@cache
def schema_of(kind: Any) -> Schema:  # noqa: ANN401 - a type, or several joined
    """Return the JSON schema of a model, or of several joined."""
    return TypeAdapter[Any](kind).json_schema()


def _resolved(node: Schema, schema: Schema | None) -> Schema:
    """Follow a reference to what it stands for."""
    if "$ref" in node and schema is not None:
        found: Schema = schema["$defs"][node["$ref"].rpartition("/")[2]]
        return found
    return node


def node_at(path: Sequence[str | int], schema: Schema) -> Schema:
    """Return the part of the schema a path leads to, or an empty one."""
    node = _resolved(schema, schema)
    for step in path:
        node = object_branch(node, schema)
        inner = (
            node.get("items", {})
            if isinstance(step, int)
            else node.get("properties", {}).get(step, {})
        )
        node = _resolved(inner, schema)
    return node


def object_branch(node: Schema, schema: Schema) -> Schema:
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
