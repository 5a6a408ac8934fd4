"""A worker validates outputs: in a sandbox, in the order of their cost, with feedback."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from overnight import Context
from overnight.handlers import registry
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.maintenance.promote import promote
from overnight_server.settings import Settings
from overnight_server.store.db import Db
from overnight_worker import output_validation, resources
from overnight_worker.execute import carry_out
from overnight_worker.sandbox.probe import SandboxProbe
from overnight_worker.sandbox.spec import SandboxKind
from tests.support.deployment import Deployment
from tests.support.worker_in_process import NOWHERE, handler_of_test, worker_resources
from tests.support.workers import worker_settings

SCHEMA = {"type": "object", "required": ["pages"]}


@pytest.fixture
def user(deployment: Deployment) -> UserId:
    deployment.agent()
    return deployment.user()


@pytest.fixture
def settings(database_url: str) -> Settings:
    return worker_settings(database_url, NOWHERE, heartbeat_interval=0.1)


@pytest.fixture
def worker(settings: Settings, db: Db) -> Iterator[resources.WorkerResources]:
    with worker_resources(settings, db) as worker:
        yield worker


@pytest.fixture
def handler() -> Iterator[Callable[[registry.HandlerFunction], None]]:
    with handler_of_test() as register:
        yield register


def carried_out(
    deployment: Deployment,
    worker: resources.WorkerResources,
    user: UserId,
    *validators: dict[str, Any],
    **fields: Any,
) -> TaskId:
    """Submit a validated task and carry out its first run."""
    spec = {"output_validation": list(validators)}
    task_id = deployment.task(user, type="test", spec=spec, **fields)
    [claimed] = deployment.claim().claims
    carry_out(worker, [claimed.claim])
    return task_id


def run_again(deployment: Deployment, worker: resources.WorkerResources) -> None:
    """Carry out the next attempt of the only task."""
    deployment.move_clock(timedelta(hours=1))
    deployment.agent()
    promote(deployment.dispatcher)
    [claimed] = deployment.claim().claims
    carry_out(worker, [claimed.claim])


def path_of(deployment: Deployment) -> list[str]:
    rows = deployment.rows("SELECT to_state FROM events ORDER BY seq")
    return [str(row["to_state"]) for row in rows]


@pytest.mark.parametrize(
    "validator",
    [
        {"method": "size", "max_bytes": 100, "min_bytes": 3},
        {"method": "json-schema", "schema": SCHEMA},
        {"method": "regex", "pattern": '"pages": 3'},
    ],
)
def test_an_accepted_output_completes_the_task(
    deployment: Deployment,
    worker: resources.WorkerResources,
    user: UserId,
    handler: Callable[..., None],
    validator: dict[str, Any],
) -> None:
    handler(lambda _: {"pages": 3})

    task_id = carried_out(deployment, worker, user, validator)

    row = deployment.row(task_id)
    assert (row["state"], row["output"]) == ("completed", {"pages": 3}), row["error"]
    assert path_of(deployment)[-3:] == ["running", "validating", "completed"]


@pytest.mark.parametrize(
    ("validator", "message"),
    [
        ({"method": "size", "max_bytes": 3}, "size: the output takes 13 bytes as JSON, more than"),
        ({"method": "size", "max_bytes": 99, "min_bytes": 50}, "size: the output takes 13 bytes"),
        ({"method": "json-schema", "schema": SCHEMA}, "json-schema: output.pages is missing"),
        ({"method": "regex", "pattern": "pages"}, 'regex: the output does not match "pages"'),
        ({"method": "json-schema", "schema": {"$ref": "#"}}, "json-schema: the schema refers to"),
        (
            {"method": "json-schema", "schema": {"$ref": "#/default", "default": {"required": 5}}},
            "json-schema: the output could not be checked: it ended with exit code 1: ",
        ),
    ],
)
def test_a_rejected_output_is_a_failure_with_the_message(
    deployment: Deployment,
    worker: resources.WorkerResources,
    user: UserId,
    handler: Callable[..., None],
    *,
    validator: dict[str, Any],
    message: str,
) -> None:
    handler(lambda _: {"text": "a"})

    task_id = carried_out(deployment, worker, user, validator)

    row = deployment.row(task_id)
    assert (row["state"], row["failure_reason"]) == ("retrying", "invalid_output")
    assert row["error"].startswith(message), row["error"]
    attempt = deployment.one("SELECT * FROM attempts")
    assert (attempt["validator"], attempt["outcome"]) == (validator["method"], "failed")
    assert attempt["rejected"] == {"output": {"text": "a"}, "summary": None, "files_changed": None}
    assert path_of(deployment)[-3:] == ["running", "validating", "retrying"]


def test_all_validators_must_hold_and_the_cheapest_is_first(
    deployment: Deployment,
    worker: resources.WorkerResources,
    user: UserId,
    handler: Callable[..., None],
) -> None:
    handler(lambda _: {"text": "a"})
    validators = (
        {"method": "regex", "pattern": "b"},
        {"method": "json-schema", "schema": {"type": "object"}},
        {"method": "size", "max_bytes": 3},
    )

    task_id = carried_out(deployment, worker, user, *validators)

    assert deployment.row(task_id)["error"].startswith("size: ")


def test_a_task_with_the_validator_none_is_not_validated(
    deployment: Deployment,
    worker: resources.WorkerResources,
    user: UserId,
    handler: Callable[..., None],
) -> None:
    handler(lambda _: "anything")

    task_id = carried_out(deployment, worker, user, {"method": "none"})

    assert deployment.state(task_id) == "completed"
    assert "validating" not in path_of(deployment)


def test_two_rejected_outputs_are_followed_by_a_right_one(
    deployment: Deployment,
    worker: resources.WorkerResources,
    user: UserId,
    handler: Callable[..., None],
) -> None:
    """Each attempt sees why the last one was rejected."""
    seen: list[object] = []

    def work(ctx: Context) -> object:
        feedback = ctx.feedback
        seen.append(None if feedback is None else (feedback.validator, feedback.message))
        if feedback is None:
            return {"text": "first"}
        assert feedback.output == json.dumps({"text": "first" if ctx.attempt == 2 else "second"})
        return {"text": "second"} if ctx.attempt == 2 else {"pages": 3}

    handler(work)
    task_id = carried_out(deployment, worker, user, {"method": "json-schema", "schema": SCHEMA})
    run_again(deployment, worker)
    run_again(deployment, worker)

    row = deployment.row(task_id)
    assert (row["state"], row["attempts"], row["output"]) == ("completed", 3, {"pages": 3})
    missing = ("json-schema", "json-schema: output.pages is missing")
    assert seen == [None, missing, missing]


def test_an_output_that_cannot_be_stored_is_not_validated(
    deployment: Deployment,
    worker: resources.WorkerResources,
    user: UserId,
    handler: Callable[..., None],
) -> None:
    handler(lambda _: object())

    task_id = carried_out(deployment, worker, user, {"method": "size", "max_bytes": 3})

    row = deployment.row(task_id)
    assert (row["failure_reason"], "validating" in path_of(deployment)) == ("invalid_output", False)


def test_a_machine_without_a_sandbox_runs_nothing_that_it_cannot_validate(
    deployment: Deployment,
    worker: resources.WorkerResources,
    user: UserId,
    handler: Callable[..., None],
    *,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The probe itself is tested with a kernel without namespaces, in tests/sandbox."""
    runs: list[int] = []
    handler(lambda _: runs.append(1))
    probe = SandboxProbe(
        SandboxKind.OWN, usable=False, reason="no namespaces", remedy="ask the operator"
    )
    monkeypatch.setattr("overnight_worker.sandbox.probe.probe_until_usable", lambda: (probe,))

    task_id = carried_out(deployment, worker, user, {"method": "regex", "pattern": "a"})

    row = deployment.row(task_id)
    assert (row["state"], row["failure_reason"], runs) == ("dead_lettered", "no_sandbox", [])
    assert "no namespaces" in row["error"]
    assert "ask the operator" in row["error"]


def test_a_cancel_ends_a_validation(
    deployment: Deployment,
    worker: resources.WorkerResources,
    user: UserId,
    handler: Callable[..., None],
    *,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handler(lambda _: "a" * 60 + "b")
    begin = output_validation.OutputValidation._problem

    def cancelled_meanwhile(*arguments: Any) -> str:
        deployment.run("UPDATE tasks SET cancel_requested_at = clock()")
        return begin(*arguments)

    monkeypatch.setattr(output_validation.OutputValidation, "_problem", cancelled_meanwhile)

    task_id = carried_out(deployment, worker, user, {"method": "regex", "pattern": "(a+)+$"})

    assert deployment.state(task_id) == "cancelled"
    assert path_of(deployment)[-2:] == ["validating", "cancelled"]
