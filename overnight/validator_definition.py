"""Says whether the definition of a check of outputs is legal: a JSON schema, a regular expression.

Nothing here uses a definition: a pattern or a schema may take for ever. `overnight.output_check`
does that, in a sandbox.
"""

import importlib
import re
from collections.abc import Callable
from typing import Any, Final

from overnight.output_check import TYPES, is_number, schema_at, shown

MAX_PATTERN: Final = 2000
# What may make the compiler of patterns slow: it lists every character of a range.
IGNORES_CASE: Final = re.compile(r"\(\?[a-zA-Z]*i")


class WrongDefinition(ValueError):
    """A schema or a pattern is not legal; the message names the place and a legal value."""


def check_pattern(pattern: str) -> str:
    """Return a regular expression; raise WrongDefinition if it is none.

    A pattern that ignores case is parsed and not compiled, because that may take seconds.
    """
    if len(pattern) > MAX_PATTERN:
        raise WrongDefinition(f"is too long (legal: at most {MAX_PATTERN} characters)")
    try:
        importlib.import_module("re._parser").parse(pattern)
        if not IGNORES_CASE.search(pattern):
            re.compile(pattern)
    except (re.error, OverflowError) as error:
        legal = "a regular expression of Python"
        raise WrongDefinition(f"is no regular expression: {error} (legal: {legal})") from None
    except RecursionError:
        raise WrongDefinition("is nested too deeply (legal: fewer groups)") from None
    return pattern


def check_schema(schema: Any, root: Any = None, where: str = "") -> Any:
    """Return a schema; raise WrongDefinition if it is not one that `problem_by_schema` can use."""
    root = schema if root is None else root
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        raise _wrong(where, "is no schema", "an object, true or false")
    for keyword, rule in schema.items():
        place = f"{where}.{keyword}" if where else keyword
        if keyword not in KEYWORDS:
            raise _wrong(place, "is not a keyword that is checked", ", ".join(sorted(KEYWORDS)))
        KEYWORDS[keyword](rule, place, root)
    return schema


def _wrong(where: str, what: str, legal: str) -> WrongDefinition:
    return WrongDefinition(f"{where or 'the schema'} {what} (legal: {legal})")


def _anything(_rule: object, _where: str, _root: object) -> None:
    """Accept the value of a keyword that says nothing about the output."""


def _schema(rule: object, where: str, root: object) -> None:
    check_schema(rule, root, where)


def _schema_list(rule: object, where: str, root: object) -> None:
    if not isinstance(rule, list) or not rule:
        raise _wrong(where, "is no list of schemas", "at least one schema")
    for number, each in enumerate(rule):
        check_schema(each, root, f"{where}.{number}")


def _schema_map(rule: object, where: str, root: object) -> None:
    if not isinstance(rule, dict):
        raise _wrong(where, "is no object", "an object with a schema for each name")
    for name, each in rule.items():
        check_schema(each, root, f"{where}.{name}")


def _pattern_map(rule: object, where: str, root: object) -> None:
    _schema_map(rule, where, root)
    for pattern in rule if isinstance(rule, dict) else ():
        _pattern(pattern, f"{where}.{pattern}", root)


def _pattern(rule: object, where: str, _root: object) -> None:
    if not isinstance(rule, str):
        raise _wrong(where, "is no text", "a regular expression of Python")
    try:
        check_pattern(rule)
    except WrongDefinition as error:
        raise WrongDefinition(f"{where} {error}") from None


def _count(rule: object, where: str, _root: object) -> None:
    if isinstance(rule, bool) or not isinstance(rule, int) or rule < 0:
        raise _wrong(where, "is no number of things", "a whole number of at least 0")


def _number(rule: object, where: str, _root: object) -> None:
    if not is_number(rule):
        raise _wrong(where, "is no number", "a number")


def _step(rule: Any, where: str, _root: object) -> None:
    if not is_number(rule) or rule <= 0:
        raise _wrong(where, "is no number above 0", "a number above 0")


def _flag(rule: object, where: str, _root: object) -> None:
    if not isinstance(rule, bool):
        raise _wrong(where, "is neither true nor false", "true or false")


def _types(rule: object, where: str, _root: object) -> None:
    names = rule if isinstance(rule, list) else [rule]
    if not names or not all(name in TYPES for name in names):
        raise _wrong(where, f"{shown(rule)} is no type", f"{', '.join(TYPES)}, or a list of them")


def _values(rule: object, where: str, _root: object) -> None:
    if not isinstance(rule, list) or not rule:
        raise _wrong(where, "is no list of values", "at least one value")


def _names(rule: object, where: str, _root: object) -> None:
    if not isinstance(rule, list) or not all(isinstance(name, str) for name in rule):
        raise _wrong(where, "is no list of names", "a list of texts")


def _names_map(rule: object, where: str, root: object) -> None:
    if not isinstance(rule, dict):
        raise _wrong(where, "is no object", "an object with a list of names for each name")
    for name, each in rule.items():
        _names(each, f"{where}.{name}", root)


def _reference(rule: object, where: str, root: object) -> None:
    legal = "a place in this schema, such as #/$defs/name"
    if not isinstance(rule, str) or not rule.startswith("#"):
        raise _wrong(where, f"{shown(rule)} is not in this schema, and nothing is fetched", legal)
    try:
        schema_at(rule, root)
    except (LookupError, ValueError, TypeError):
        raise _wrong(where, f"{shown(rule)} names no place", legal) from None


KEYWORDS: dict[str, Callable[[Any, str, Any], None]] = {
    **dict.fromkeys(
        ("$schema", "$comment", "title", "description", "default", "examples", "deprecated"),
        _anything,
    ),
    **dict.fromkeys(("readOnly", "writeOnly", "format", "const"), _anything),
    **dict.fromkeys(("not", "if", "then", "else", "items", "contains"), _schema),
    **dict.fromkeys(("additionalProperties", "propertyNames"), _schema),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _schema_list),
    **dict.fromkeys(("$defs", "definitions", "properties", "dependentSchemas"), _schema_map),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _count),
    **dict.fromkeys(("minProperties", "maxProperties", "minContains", "maxContains"), _count),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _number),
    "patternProperties": _pattern_map,
    "pattern": _pattern,
    "multipleOf": _step,
    "uniqueItems": _flag,
    "type": _types,
    "enum": _values,
    "required": _names,
    "dependentRequired": _names_map,
    "$ref": _reference,
}
