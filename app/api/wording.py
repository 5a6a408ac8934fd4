"""Telling a sender which field is wrong and what would do, from the models themselves."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

from overnight.dag_models import DagFork, DagPlanRequest
from overnight.faults import said, unknown
from overnight.models import PlanRequest, TaskCreate

# Whose body a path takes; all others take a task.
BODIES: dict[str, type[BaseModel]] = {
    "/api/v1/plan": PlanRequest,
    "/api/v1/dags": DagPlanRequest,
    "/api/v1/dags/plan": DagPlanRequest,
}
FORK = "/fork"
NOT_JSON = frozenset({"model_attributes_type", "model_type", "dict_type", "dict_attributes_type"})


def explain(
    fault: Mapping[str, Any], route: str, model: type[BaseModel] | None = None
) -> dict[str, str]:
    """Turn one fault of pydantic into field, message and legal values.

    `model` is what the body should have been, if it is nothing that a route is known to take.
    """
    place, *path = fault["loc"]
    if fault["type"] == "json_invalid":
        return _wrong("body", f"is not JSON: {fault['ctx']['error']}", "one JSON object")
    if not path:
        return _wrong("body", _whole_body(fault), "one JSON object, sent as application/json")
    field = ".".join(map(str, path))
    if model is not None and place == "body":
        return _wrong(field, *_of_model(fault, path, model))
    if fault["type"] == "extra_forbidden":
        return _wrong(field, *_unknown(path, route))
    legal = say(_node(path, route), route) if place == "body" else _legal_in_query(fault)
    return _wrong(field, said(fault), legal)


def say(node: Mapping[str, Any], route: str = "") -> str:
    """Say in words what a JSON schema allows.

    >>> say({"type": "integer", "minimum": 1, "maximum": 4})
    'a whole number from 1 to 4'
    """
    if "anyOf" in node:
        return " or ".join(say(_resolved(each, route), route) for each in node["anyOf"])
    if "enum" in node:
        return f"one of {', '.join(node['enum'])}"
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
            items = say(_resolved(node.get("items", {}), route), route)
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


def _of_model(
    fault: Mapping[str, Any], path: list[str | int], model: type[BaseModel]
) -> tuple[str, str]:
    if fault["type"] == "extra_forbidden":
        return "is not a known field", f"one of {', '.join(model.model_fields)}"
    node = model.model_json_schema().get("properties", {}).get(path[0], {})
    return fault["msg"].removeprefix("Value error, "), say(node, "")


def _whole_body(fault: Mapping[str, Any]) -> str:
    if fault["type"] == "missing" or fault["type"] in NOT_JSON:
        return "is not a JSON object"
    return str(fault["msg"].removeprefix("Value error, "))


def _unknown(path: list[str | int], route: str) -> tuple[str, str]:
    known = list(_object_branch(_node(path[:-1], route), route).get("properties", {}))
    return unknown(path[-1], known), f"one of {', '.join(known)}"


def _legal_in_query(fault: Mapping[str, Any]) -> str:
    bounds = fault.get("ctx", {})
    for name, words in (("ge", "at least"), ("le", "at most"), ("max_length", "characters up to")):
        if name in bounds:
            return f"{words} {bounds[name]}"
    return ""


@cache
def _schema(route: str) -> dict[str, Any]:
    other = DagFork if route.endswith(FORK) else TaskCreate
    return BODIES.get(route, other).model_json_schema()


def _resolved(node: Mapping[str, Any], route: str) -> dict[str, Any]:
    """Follow a reference to what it stands for."""
    if "$ref" in node:
        found: dict[str, Any] = _schema(route)["$defs"][node["$ref"].rpartition("/")[2]]
        return found
    return dict(node)


def _node(path: list[str | int], route: str) -> dict[str, Any]:
    """Return the part of the schema a path leads to, or an empty one."""
    node = _schema(route)
    for step in path:
        node = _object_branch(node, route)
        inner = (
            node.get("items", {})
            if isinstance(step, int)
            else node.get("properties", {}).get(step, {})
        )
        node = _resolved(inner, route)
    return node


def _object_branch(node: dict[str, Any], route: str) -> dict[str, Any]:
    """Return the branch of a choice that has fields, else its first real one."""
    branches = [_resolved(each, route) for each in node.get("anyOf", ())]
    real = [each for each in branches if each.get("type") != "null"]
    return next((each for each in real if "properties" in each), next(iter(real), node))


def _say_text(node: Mapping[str, Any]) -> str:
    if node.get("format") == "date-time":
        return "an instant with an offset, such as 2030-01-31T07:00:00Z"
    if "pattern" in node:
        return f"text that matches {node['pattern']}"
    span = _span(node, "minLength", "maxLength")
    return f"text{span} characters" if span else "text"


def _span(node: Mapping[str, Any], least: str, most: str) -> str:
    if least in node and most in node:
        return f" from {node[least]:g} to {node[most]:g}"
    if most in node:
        return f" of at most {node[most]:g}"
    if least in node:
        return f" of at least {node[least]:g}"
    return ""
