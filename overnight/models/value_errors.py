"""What is wrong with a value, in plain words: for whoever sends it and for whoever refuses it."""

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

# What pydantic calls a fault, and what people call it; what is legal is said beside it.
WORDS = {
    "missing": "is missing",
    "int_type": "is not a whole number",
    "int_parsing": "is not a whole number",
    "int_from_float": "is not a whole number",
    "float_type": "is not a number",
    "float_parsing": "is not a number",
    "finite_number": "is not a number that can be counted with",
    "greater_than_equal": "is too small",
    "greater_than": "is too small",
    "less_than_equal": "is too large",
    "less_than": "is too large",
    "string_type": "is not text",
    "string_too_short": "is too short",
    "string_too_long": "is too long",
    "string_pattern_mismatch": "does not have the form it should",
    "bool_type": "is neither true nor false",
    "bool_parsing": "is neither true nor false",
    "enum": "is none of the words it may be",
    "literal_error": "is none of the words it may be",
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


def said(fault: Mapping[str, Any]) -> str:
    """Say what is wrong with a field.

    >>> said({"type": "less_than_equal", "msg": "Input should be less than or equal to 4"})
    'is too large'
    """
    if fault["type"] == "too_short" and not (fault.get("ctx") or {}).get("actual_length", 1):
        return "is empty"
    return WORDS.get(fault["type"], str(fault["msg"]).removeprefix("Value error, "))


def legal(fault: Mapping[str, Any]) -> str:
    """Say what would do, as far as the fault itself knows.

    >>> legal({"type": "less_than_equal", "ctx": {"le": 4}})
    'at most 4'
    """
    told: Mapping[str, Any] = fault.get("ctx") or {}
    for bound, words in BOUNDS.items():
        if bound in told:
            value = told[bound]
            return words.format(f"{value:g}" if isinstance(value, float) else value)
    return ""


def sentence(field: str, message: str, legal: str = "") -> str:
    """Say all of one fault: where it is, what it is, and what would do.

    >>> sentence("priority", "is too large", "a whole number from 1 to 4")
    'priority: is too large; legal: a whole number from 1 to 4'
    """
    return f"{field}: {message}" + (f"; legal: {legal}" if legal else "")


def fields_at(model: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    """Return the names of the fields that a model knows at a place."""
    schema = model.model_json_schema()

    def real(node: Mapping[str, Any]) -> Mapping[str, Any]:
        if "$ref" in node:
            return real(schema["$defs"][node["$ref"].rpartition("/")[2]])
        branches = [real(each) for each in node.get("anyOf", ()) if each.get("type") != "null"]
        return branches[0] if branches else node

    node = real(schema)
    for step in path:
        inner = node.get("items", {}) if isinstance(step, int) else node.get("properties", {})
        node = real(inner if isinstance(step, int) else inner.get(step, {}))
    return list(node.get("properties", {}))


def unknown(name: object, known: Collection[str], noun: str = "field") -> str:
    """Say that nothing has this name, and what was probably meant.

    >>> unknown("titel", ["title", "type"])
    'is not a known field; did you mean title?'
    """
    near = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.0)
    return f"is not a known {noun}" + (f"; did you mean {near[0]}?" if near else "")
