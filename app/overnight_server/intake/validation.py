"""Reads the validators of a new task from its request."""

import json
from typing import Any, Final

from overnight.errors import InvalidRequest
from overnight.models.tasks import TaskBody
from overnight_server.domain.validation import (
    FIELD,
    IN_SPEC,
    check_methods,
    validators_in_spec,
    validators_of,
)

# Every version of the task's row carries them.
MAX_BYTES: Final = 64 * 1024


def requested(body: TaskBody, runner: str) -> dict[str, Any]:
    """Return the part of the spec that holds the validators of a request; empty without any.

    Raises InvalidRequest for validators that are wrong, or that the runner cannot have.
    """
    in_spec = validators_in_spec(body.spec)
    validators = [*body.output_validation, *in_spec]
    check_methods(validators, runner, IN_SPEC if in_spec else FIELD)
    if not validators:
        return {}
    stored = [each.stored() for each in validators]
    size = len(json.dumps(stored, ensure_ascii=False).encode())
    if size > MAX_BYTES:
        legal = f"at most {MAX_BYTES} bytes"
        raise InvalidRequest(FIELD, f"its validators take {size} bytes as JSON", legal=legal)
    return {FIELD: stored}


def is_validated(body: TaskBody) -> bool:
    """Return whether the output of a new task will be validated."""
    stored = [each.stored() for each in body.output_validation]
    return bool(validators_of(body.spec) or validators_of({FIELD: stored}))
