"""Checks an output against a JSON schema or a regular expression.

This file is also a program: a worker runs its text in a sandbox, because a pattern or a schema may
take for ever, and nothing else of Overnight is there. So it imports only the standard library and
runs on Python 3.9. The program reads one JSON object on stdin, the fields of a validator with the
`output`, and prints what is wrong; it prints nothing if the output is right.

The schemas are those of JSON Schema 2020-12 that `overnight.validator_definition` allows. A `$ref`
names a place in the same schema, so nothing is fetched. Patterns are Python's.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
MAX_SHOWN = 200
# The schema that a keyword stands in, and the whole schema.
Scope = tuple[Any, Any]
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def is_number(value: object) -> bool:
    """Return whether a JSON value is a number; true and false are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def problem_by_schema(schema: Any, output: Any) -> str | None:
    """Return what a schema does not allow about an output, with its place; None if it is valid."""
    try:
        return _problem(schema, output, "output", schema)
    except RecursionError:
        return "the schema refers to itself without end, or the output is nested too deeply"


def problem_by_pattern(pattern: str, output: object) -> str | None:
    """Return that a pattern is not in the text of an output; None if it is.

    The text is the output itself, or its field `text`; any other output is written as JSON.
    """
    try:
        is_found = re.search(pattern, text_of(output)) is not None
    except (re.error, RecursionError, OverflowError) as error:
        return f"the pattern cannot be used: {error}"
    return None if is_found else f"the output does not match {shown(pattern)}"


def text_of(output: object) -> str:
    """Return the text of an output, which a pattern is looked for in.

    >>> text_of({"text": "done", "summary": "done"})
    'done'
    """
    text = output.get("text") if isinstance(output, dict) else output
    return text if isinstance(text, str) else json.dumps(output, ensure_ascii=False)


def _problem(schema: Any, value: Any, path: str, root: Any) -> str | None:
    """Return the first thing that is wrong with a value, None if nothing is."""
    if isinstance(schema, bool):
        return None if schema else f"{path} is not allowed"
    for keyword, rule in schema.items():
        check = CHECKS.get(keyword)
        if check is not None:
            for problem in check(rule, value, path, (schema, root)):
                return problem
    return None


def _check_reference(rule: str, value: Any, path: str, scope: Scope) -> Iterator[str]:
    yield from _problems(schema_at(rule, scope[1]), value, path, scope)


def _problems(schema: object, value: Any, path: str, scope: Scope) -> Iterator[str]:
    problem = _problem(schema, value, path, scope[1])
    if problem is not None:
        yield problem


def _check_type(rule: Any, value: Any, path: str, _scope: Scope) -> Iterator[str]:
    names = rule if isinstance(rule, list) else [rule]
    if not any(_IS_TYPE[name](value) for name in names):
        yield f"{path} is {_type_of(value)}, not {' or '.join(names)}"


def _check_enum(rule: list[object], value: Any, path: str, _scope: Scope) -> Iterator[str]:
    if _comparable(value) not in {_comparable(each) for each in rule}:
        yield f"{path} is {shown(value)}, not one of {shown(rule)}"


def _check_const(rule: object, value: Any, path: str, _scope: Scope) -> Iterator[str]:
    if _comparable(value) != _comparable(rule):
        yield f"{path} is {shown(value)}, not {shown(rule)}"


def _check_all_of(rule: list[object], value: Any, path: str, scope: Scope) -> Iterator[str]:
    for each in rule:
        yield from _problems(each, value, path, scope)


def _check_any_of(rule: list[object], value: Any, path: str, scope: Scope) -> Iterator[str]:
    problems = [_problem(each, value, path, scope[1]) for each in rule]
    if all(problems):
        yield f"{path} fits none of {len(rule)} schemas: {problems[0]}"


def _check_one_of(rule: list[object], value: Any, path: str, scope: Scope) -> Iterator[str]:
    problems = [_problem(each, value, path, scope[1]) for each in rule]
    fitting = problems.count(None)
    if fitting != 1:
        cause = f": {problems[0]}" if not fitting else ""
        yield f"{path} fits {fitting} of {len(rule)} schemas and must fit one{cause}"


def _check_not(rule: object, value: Any, path: str, scope: Scope) -> Iterator[str]:
    if _problem(rule, value, path, scope[1]) is None:
        yield f"{path} fits a schema that it must not fit"


def _check_condition(rule: object, value: Any, path: str, scope: Scope) -> Iterator[str]:
    branch = "then" if _problem(rule, value, path, scope[1]) is None else "else"
    yield from _problems(scope[0].get(branch, True), value, path, scope)


def _check_minimum(rule: float, value: Any, path: str, _scope: Scope) -> Iterator[str]:
    if is_number(value) and value < rule:
        yield f"{path} is {value}, less than {rule}"


def _check_maximum(rule: float, value: Any, path: str, _scope: Scope) -> Iterator[str]:
    if is_number(value) and value > rule:
        yield f"{path} is {value}, more than {rule}"


def _check_exclusive_minimum(rule: float, value: Any, path: str, _scope: Scope) -> Iterator[str]:
    if is_number(value) and value <= rule:
        yield f"{path} is {value}, not more than {rule}"


def _check_exclusive_maximum(rule: float, value: Any, path: str, _scope: Scope) -> Iterator[str]:
    if is_number(value) and value >= rule:
        yield f"{path} is {value}, not less than {rule}"


def _check_multiple(rule: float, value: Any, path: str, _scope: Scope) -> Iterator[str]:
    if is_number(value) and (Fraction(str(value)) / Fraction(str(rule))).denominator != 1:
        yield f"{path} is {value}, not a multiple of {rule}"


def _length_check(kind: type, unit: str, *, is_least: bool) -> Callable[..., Iterator[str]]:
    """Return the check of a smallest or largest length."""

    def check(rule: int, value: Any, path: str, _scope: Scope) -> Iterator[str]:
        is_counted = isinstance(value, kind)
        length = len(value) if is_counted else rule
        if length < rule if is_least else length > rule:
            bound = "at least" if is_least else "at most"
            yield f"{path} has {length} {unit}, not {bound} {rule}"

    return check


def _check_pattern(rule: str, value: Any, path: str, _scope: Scope) -> Iterator[str]:
    if isinstance(value, str) and re.search(rule, value) is None:
        yield f"{path} does not match {shown(rule)}"


def _check_unique(rule: bool, value: Any, path: str, _scope: Scope) -> Iterator[str]:  # noqa: FBT001 - the value of a keyword
    if rule and isinstance(value, list) and len({_comparable(item) for item in value}) < len(value):
        yield f"{path} has the same item twice"


def _check_items(rule: object, value: Any, path: str, scope: Scope) -> Iterator[str]:
    if isinstance(value, list):
        start = len(scope[0].get("prefixItems", ()))
        for number, item in enumerate(value[start:], start):
            yield from _problems(rule, item, f"{path}[{number}]", scope)


def _check_prefix(rule: list[object], value: Any, path: str, scope: Scope) -> Iterator[str]:
    if isinstance(value, list):
        for number, (each, item) in enumerate(zip(rule, value)):  # noqa: B905 - Python 3.9 has no `strict`
            yield from _problems(each, item, f"{path}[{number}]", scope)


def _check_contains(rule: object, value: Any, path: str, scope: Scope) -> Iterator[str]:
    if isinstance(value, list):
        fitting = sum(_problem(rule, item, path, scope[1]) is None for item in value)
        least, most = scope[0].get("minContains", 1), scope[0].get("maxContains", fitting)
        if not least <= fitting <= most:
            yield f"{path} has {fitting} items that fit `contains`"


def _check_properties(
    rule: dict[str, object], value: Any, path: str, scope: Scope
) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in rule.items():
            if name in value:
                yield from _problems(each, value[name], _child_path(path, name), scope)


def _check_patterns(rule: dict[str, object], value: Any, path: str, scope: Scope) -> Iterator[str]:
    if isinstance(value, dict):
        for pattern, each in rule.items():
            for name in value:
                if re.search(pattern, name):
                    yield from _problems(each, value[name], _child_path(path, name), scope)


def _check_additional(rule: object, value: Any, path: str, scope: Scope) -> Iterator[str]:
    if isinstance(value, dict):
        patterns = scope[0].get("patternProperties", {})
        for name in value.keys() - scope[0].get("properties", {}).keys():
            if not any(re.search(pattern, name) for pattern in patterns):
                yield from _problems(rule, value[name], _child_path(path, name), scope)


def _check_names(rule: object, value: Any, path: str, scope: Scope) -> Iterator[str]:
    for name in value if isinstance(value, dict) else ():
        yield from _problems(rule, name, f"the name {shown(name)} in {path}", scope)


def _check_required(rule: list[str], value: Any, path: str, _scope: Scope) -> Iterator[str]:
    if isinstance(value, dict):
        for name in rule:
            if name not in value:
                yield f"{_child_path(path, name)} is missing"


def _check_dependent(
    rule: dict[str, list[str]], value: Any, path: str, scope: Scope
) -> Iterator[str]:
    for name in rule if isinstance(value, dict) else ():
        if name in value:
            yield from _check_required(rule[name], value, path, scope)


def _check_dependent_schemas(
    rule: dict[str, object], value: Any, path: str, scope: Scope
) -> Iterator[str]:
    for name in rule if isinstance(value, dict) else ():
        if name in value:
            yield from _problems(rule[name], value, path, scope)


CHECKS: dict[str, Callable[[Any, Any, str, Scope], Iterator[str]]] = {
    "$ref": _check_reference,
    "type": _check_type,
    "enum": _check_enum,
    "const": _check_const,
    "allOf": _check_all_of,
    "anyOf": _check_any_of,
    "oneOf": _check_one_of,
    "not": _check_not,
    "if": _check_condition,
    "minimum": _check_minimum,
    "maximum": _check_maximum,
    "exclusiveMinimum": _check_exclusive_minimum,
    "exclusiveMaximum": _check_exclusive_maximum,
    "multipleOf": _check_multiple,
    "minLength": _length_check(str, "characters", is_least=True),
    "maxLength": _length_check(str, "characters", is_least=False),
    "minItems": _length_check(list, "items", is_least=True),
    "maxItems": _length_check(list, "items", is_least=False),
    "minProperties": _length_check(dict, "fields", is_least=True),
    "maxProperties": _length_check(dict, "fields", is_least=False),
    "pattern": _check_pattern,
    "uniqueItems": _check_unique,
    "items": _check_items,
    "prefixItems": _check_prefix,
    "contains": _check_contains,
    "properties": _check_properties,
    "patternProperties": _check_patterns,
    "additionalProperties": _check_additional,
    "propertyNames": _check_names,
    "required": _check_required,
    "dependentRequired": _check_dependent,
    "dependentSchemas": _check_dependent_schemas,
}
_IS_TYPE: dict[str, Callable[[Any], bool]] = {
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: is_number(value) and value == int(value),
    "null": lambda value: value is None,
    "number": is_number,
    "object": lambda value: isinstance(value, dict),
    "string": lambda value: isinstance(value, str),
}


def _type_of(value: Any) -> str:
    return next(name for name in ("integer", *TYPES) if _IS_TYPE[name](value))


def _comparable(value: Any) -> object:
    """Return a value that is equal for equal JSON: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, dict):
        return "object", frozenset((name, _comparable(each)) for name, each in value.items())
    if isinstance(value, list):
        return "array", tuple(_comparable(each) for each in value)
    return ("boolean", value) if isinstance(value, bool) else value


def schema_at(reference: str, root: Any) -> Any:
    """Return the schema that a reference names; raise LookupError or TypeError without one."""
    node = root
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        node = node[int(name)] if isinstance(node, list) else node[name]
    if not isinstance(node, (dict, bool)) or reference[1:2] not in ("", "/"):
        raise TypeError(reference)
    return node


def _child_path(path: str, name: str) -> str:
    return f"{path}.{name}" if _IDENTIFIER.fullmatch(name) else f"{path}[{shown(name)}]"


def shown(value: object) -> str:
    """Return a value as it is shown in a message."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def main() -> None:
    """Read a validator with its output from stdin, and print what is wrong with the output."""
    request = json.loads(sys.stdin.buffer.read())
    output = request["output"]
    if request["method"] == "regex":
        problem = problem_by_pattern(request["pattern"], output)
    else:
        problem = problem_by_schema(request["schema"], output)
    sys.stdout.buffer.write((problem or "").encode())


if __name__ == "__main__":
    main()
