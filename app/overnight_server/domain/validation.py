"""The validators of a task, which its spec holds under `output_validation`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from overnight.errors import InvalidRequest
from overnight.models.field_errors import validate
from overnight.models.validation import MAX_VALIDATORS, OutputValidator
from overnight_server.domain.capabilities import COMMAND, HTTP, runner_capability, runner_in

FIELD: Final = "output_validation"
IN_SPEC: Final = f"spec.{FIELD}"
SIZE: Final = "size"
TESTS: Final = "test-pass"
# The cheapest first; `none` checks nothing.
ORDER: Final = (SIZE, "json-schema", "regex", TESTS)
INVALID_OUTPUT: Final = "invalid_output"


def validators_of(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the validators of a task in the order in which they are run.

    >>> validators_of({"output_validation": [{"method": "regex", "pattern": "ok"}]})
    [{'method': 'regex', 'pattern': 'ok'}]
    """
    given = spec.get(FIELD)
    listed = [each for each in given if each["method"] in ORDER] if given else []
    return sorted(listed, key=lambda each: ORDER.index(each["method"]))


def check_methods(validators: Sequence[OutputValidator], runner: str, field: str = FIELD) -> None:
    """Raise InvalidRequest for validators that the runner cannot have."""
    for number, each in enumerate(validators):
        if each.method == TESTS and runner != COMMAND:
            raise InvalidRequest(
                f"{field}.{number}.method",
                "test-pass needs a workspace, and only the runner command has one",
                legal="size, json-schema, regex or none; or the runner command",
            )
        if runner == HTTP and each.method != "none":
            raise InvalidRequest(
                field,
                "the outputs of the runner http are not validated yet",
                legal="no validators, or the runner python or command",
            )


def validators_in_spec(spec: Mapping[str, Any]) -> list[OutputValidator]:
    """Return the validators that a spec holds; raise InvalidRequest if they are wrong."""
    given = spec.get(FIELD, [])
    if not isinstance(given, list) or len(given) > MAX_VALIDATORS:
        legal = f"a list of at most {MAX_VALIDATORS} validators"
        raise InvalidRequest(IN_SPEC, "is no list of validators", legal=legal)
    return [_validator(each, f"{IN_SPEC}.{number}") for number, each in enumerate(given)]


def check_validators(spec: Mapping[str, Any], capabilities: Sequence[str]) -> None:
    """Raise InvalidRequest if an edited task cannot have the validators of its new spec."""
    validators, runner = validators_in_spec(spec), runner_in(capabilities)
    check_methods(validators, runner, IN_SPEC)
    if validators and runner_capability(runner) not in capabilities:
        legal = "no validators; create a new task with them"
        raise InvalidRequest(IN_SPEC, "cannot be added to a task without validators", legal=legal)


def _validator(given: object, field: str) -> OutputValidator:
    if not isinstance(given, dict):
        legal = 'an object such as {"method": "size", "max_bytes": 1000}'
        raise InvalidRequest(field, "is not a JSON object", legal=legal)
    try:
        return validate(OutputValidator, given)
    except InvalidRequest as error:
        raise InvalidRequest.of_fields(
            [replace(each, field=f"{field}.{each.field}") for each in error.fields]
        ) from None
