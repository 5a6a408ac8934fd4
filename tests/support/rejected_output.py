"""Tasks whose output a validator rejected."""

from typing import Any

from overnight_server.domain.claims import Run
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.domain.results import Raised
from overnight_server.outcome.validation import begin_validation
from tests.support.deployment import Deployment

SPEC = {"output_validation": [{"method": "regex", "pattern": "ok"}]}


def rejected(output: object = "no", **fields: Any) -> Raised:
    """Return the result of a run whose output a validator rejected."""
    kept = {"output": output, "summary": "short", "files_changed": ["a.py"]}
    return Raised("invalid_output", "regex: no", validator="regex", rejected=kept, **fields)


def validating(deployment: Deployment, user: UserId, **fields: Any) -> Run:
    """Return a run whose output is being validated."""
    run = deployment.running(user, spec=SPEC, **fields)
    assert begin_validation(deployment.dispatcher, run.claim)
    return run


def dead_letter(deployment: Deployment, user: UserId, output: object = "no") -> TaskId:
    """Return a task that failed for good with a rejected output."""
    run = validating(deployment, user, max_attempts=1)
    deployment.settle(run, rejected(output))
    return run.claim.task_id
