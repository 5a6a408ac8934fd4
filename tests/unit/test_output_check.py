"""The check of outputs: the same answers as a full implementation of JSON Schema, and messages."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from referencing import Registry

from overnight import output_check
from overnight.output_check import problem_by_pattern, problem_by_schema
from overnight.validator_definition import WrongDefinition, check_pattern, check_schema

SCHEMAS: list[Any] = [
    {},
    {"type": "integer"},
    {"type": "number"},
    {"type": ["string", "null"]},
    {"enum": [1, "a", None, {"a": [1]}]},
    {"const": True},
    {"const": 1},
    {"minimum": 1, "maximum": 3},
    {"exclusiveMinimum": 1, "exclusiveMaximum": 3},
    {"multipleOf": 0.5},
    {"multipleOf": 2},
    {"minLength": 1, "maxLength": 2},
    {"pattern": "^a+$"},
    {"minItems": 1, "maxItems": 2},
    {"uniqueItems": True},
    {"items": {"type": "integer"}},
    {"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
    {"contains": {"type": "integer"}},
    {"contains": {"type": "integer"}, "minContains": 0, "maxContains": 1},
    {"minProperties": 1, "maxProperties": 1},
    {"required": ["a"]},
    {"properties": {"a": {"type": "integer"}, "b": False}},
    {"properties": {"a": True}, "patternProperties": {"^b": True}, "additionalProperties": False},
    {"additionalProperties": {"type": "string"}},
    {"propertyNames": {"pattern": "^[ab]$"}},
    {"dependentRequired": {"a": ["b"]}},
    {"dependentSchemas": {"a": {"required": ["c"]}}},
    {"allOf": [{"type": "integer"}, {"minimum": 2}]},
    {"anyOf": [{"type": "integer"}, {"minLength": 2}]},
    {"oneOf": [{"type": "integer"}, {"minimum": 2}]},
    {"not": {"type": "integer"}},
    {"if": {"type": "integer"}, "then": {"minimum": 2}, "else": {"type": "string"}},
    {"$defs": {"n": {"type": "integer"}}, "items": {"$ref": "#/$defs/n"}},
    {"properties": {"a": {"$ref": "#"}}, "additionalProperties": False},
    {"$defs": {"a/b": {"type": "null"}}, "$ref": "#/$defs/a~1b"},
]
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 4), st.sampled_from([0.5, 1.0, 2.5]), st.text("ab")
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
@given(value=VALUES)
def test_an_output_is_valid_exactly_if_a_full_implementation_says_so(
    schema: Any, value: Any
) -> None:
    expected = Draft202012Validator(schema, registry=Registry()).is_valid(value)

    assert (problem_by_schema(schema, value) is None) == expected


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_these_schemas_are_legal(schema: Any) -> None:
    assert check_schema(schema) is schema


@pytest.mark.parametrize(
    ("schema", "output", "problem"),
    [
        ({"required": ["name"]}, {}, "output.name is missing"),
        ({"properties": {"n": {"type": "integer"}}}, {"n": "1"}, "output.n is string, not integer"),
        ({"items": {"minimum": 2}}, [2, 1], "output[1] is 1, less than 2"),
        ({"additionalProperties": False}, {"a b": 1}, 'output["a b"] is not allowed'),
        ({"enum": ["low", "high"]}, "mid", 'output is "mid", not one of ["low", "high"]'),
        ({"maxLength": 2}, "abc", "output has 3 characters, not at most 2"),
        ({"anyOf": [{"type": "null"}]}, 1, "output fits none of 1 schemas: output is integer,"),
        ({"oneOf": [True, True]}, 1, "output fits 2 of 2 schemas and must fit one"),
        ({"$ref": "#"}, 1, "the schema refers to itself without end"),
    ],
)
def test_a_message_names_the_place_and_what_is_wrong(
    schema: Any, output: Any, problem: str
) -> None:
    assert (problem_by_schema(schema, output) or "").startswith(problem)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "text"}, 'type "text" is no type (legal: array,'),
        ({"properties": {"a": {"minLength": -1}}}, "properties.a.minLength is no number of things"),
        ({"required": "a"}, "required is no list of names"),
        ({"items": 3}, "items is no schema (legal: an object, true or false)"),
        ({"anyOf": []}, "anyOf is no list of schemas"),
        ({"pattern": "("}, "pattern is no regular expression: missing )"),
        ({"patternProperties": {"[": True}}, "patternProperties.[ is no regular expression"),
        ({"multipleOf": 0}, "multipleOf is no number above 0"),
        ({"unevaluatedItems": False}, "unevaluatedItems is not a keyword that is checked (legal:"),
        ({"$ref": "https://example.com/a"}, "is not in this schema, and nothing is fetched"),
        ({"$ref": "#/$defs/none"}, "names no place"),
        ({"$ref": "#/required", "required": []}, "names no place"),
    ],
)
def test_a_wrong_schema_is_refused_with_the_place_and_a_legal_value(
    schema: Any, message: str
) -> None:
    with pytest.raises(WrongDefinition) as refused:
        check_schema(schema)

    assert message in str(refused.value)
    assert "legal: " in str(refused.value)


@pytest.mark.parametrize("pattern", ["(", "a{2,1}", "(?<=a+)b", "(" * 1500, "a" * 2001, "(?i)["])
def test_what_is_no_regular_expression_is_refused(pattern: str) -> None:
    with pytest.raises(WrongDefinition, match="legal: "):
        check_pattern(pattern)


def test_a_pattern_is_looked_for_in_the_text_of_an_output() -> None:
    assert problem_by_pattern("^ok$", "ok") is None
    assert problem_by_pattern("^ok$", {"text": "ok", "summary": "ok"}) is None
    assert problem_by_pattern('"pages": 3', {"pages": 3}) is None
    assert problem_by_pattern("ok", {"text": "no"}) == 'the output does not match "ok"'
    assert "cannot be used" in (problem_by_pattern("(?i)(?<=a+)b", "ab") or "")


@pytest.mark.parametrize(
    ("request_", "written"),
    [
        ({"method": "regex", "pattern": "b", "output": "ä"}, 'the output does not match "b"'),
        ({"method": "json-schema", "schema": {"type": "null"}, "output": None}, ""),
    ],
)
def test_the_program_runs_alone_and_prints_what_is_wrong(
    request_: dict[str, Any], written: str
) -> None:
    program = Path(output_check.__file__).read_text(encoding="utf-8")

    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program],
        input=json.dumps(request_).encode(),
        capture_output=True,
        check=True,
    )

    assert ended.stdout.decode() == written
