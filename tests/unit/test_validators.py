"""Validators in a request: what is refused, with the field's name and a legal value."""

from typing import Any

import pytest

from overnight.errors import InvalidRequest
from overnight.models.field_errors import validate
from overnight.models.tasks import TaskCreate
from overnight_server.domain.validation import check_validators, validators_of
from overnight_server.intake.translate_request import new_task
from overnight_server.settings import load

SETTINGS = load({})


def refused(**fields: Any) -> str:
    with pytest.raises(InvalidRequest) as error:
        new_task(validate(TaskCreate, {"title": "a", **fields}), SETTINGS, None)
    return str(error.value)


@pytest.mark.parametrize(
    ("validator", "field", "legal"),
    [
        ({"method": "judge"}, "0.method: is not one of the allowed values", "one of size, json-"),
        ({"method": "llm-judge"}, "0.method: llm-judge is not available yet", "one of size, json-"),
        ({}, "0.method: is missing", "one of size, json-schema, regex, test-pass, none"),
        ({"method": "regex"}, "0.pattern: is missing, and the method regex", "text from 1 to 2000"),
        ({"method": "regex", "pattern": "("}, "0.pattern: is no regular", "expression of Python"),
        ({"method": "regex", "patern": "a"}, "0.patern: is not a known", "did you mean pattern?"),
        ({"method": "json-schema"}, "0.schema: is missing", "a JSON object"),
        ({"method": "json-schema", "schema": {"type": 1}}, "0.schema: type 1 is no", "string"),
        ({"method": "size"}, "0.max_bytes: is missing", "a whole number from 1 to"),
        ({"method": "size", "max_bytes": 0}, "0.max_bytes: is too small", "from 1 to"),
        ({"method": "none", "pattern": "a"}, "0.pattern: has no meaning for the method none", ""),
        ({"method": "test-pass", "argv": []}, "0.argv: is empty", "a list of 1 to 200"),
        ({"method": "test-pass", "argv": ["a"]}, "0.method: test-pass needs a workspace", "runner"),
    ],
)
@pytest.mark.parametrize("place", ["", "spec."])
def test_a_wrong_validator_is_refused(
    validator: dict[str, Any], field: str, legal: str, place: str
) -> None:
    fields = {"output_validation": [validator]}

    message = refused(**({"spec": fields} if place else fields))

    assert f"{place}output_validation.{field}" in message
    assert "legal: " in message
    assert legal in message


def test_validators_that_are_no_list_or_given_twice_are_refused() -> None:
    size = {"method": "size", "max_bytes": 9}

    assert "spec.output_validation: is no list" in refused(spec={"output_validation": "x"})
    assert "spec.output_validation.0: is not a JSON object" in refused(
        spec={"output_validation": [1]}
    )
    assert "given twice" in refused(output_validation=[size], spec={"output_validation": [size]})
    assert "too many items" in refused(output_validation=[size] * 11)


def test_validators_that_are_too_large_together_are_refused() -> None:
    schema = {"enum": ["x" * 40_000]}
    large = {"method": "json-schema", "schema": schema}

    assert "output_validation: its validators take 80" in refused(output_validation=[large] * 2)


def test_the_runner_http_has_no_validators_yet() -> None:
    message = refused(runner="http", output_validation=[{"method": "size", "max_bytes": 9}])

    assert "output_validation: the outputs of the runner http are not validated yet" in message


def test_a_validated_task_keeps_its_validators_and_needs_a_worker() -> None:
    validators = [{"method": "regex", "pattern": "ok"}, {"method": "size", "max_bytes": 9}]

    task = new_task(
        validate(TaskCreate, {"title": "a", "output_validation": validators}), SETTINGS, None
    )

    assert task.spec == {"output_validation": validators}
    assert task.required_capabilities == ("runner:python",)
    assert [each["method"] for each in validators_of(task.spec)] == ["size", "regex"]


def test_a_task_with_none_is_not_validated() -> None:
    task = new_task(
        validate(TaskCreate, {"title": "a", "output_validation": [{"method": "none"}]}),
        SETTINGS,
        None,
    )

    assert validators_of(task.spec) == []
    assert task.required_capabilities == ()


def test_an_edit_adds_validators_only_where_a_worker_runs_the_task() -> None:
    spec = {"output_validation": [{"method": "size", "max_bytes": 9}]}

    check_validators(spec, ["runner:python"])
    check_validators({}, [])
    with pytest.raises(InvalidRequest, match=r"spec\.output_validation: cannot be added"):
        check_validators(spec, [])
