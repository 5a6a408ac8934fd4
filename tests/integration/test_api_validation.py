"""Validators over HTTP, in the SDK and on the command line; feedback for agents."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import overnight
from overnight import errors
from overnight.agent.agent import Agent
from overnight.handlers import registry
from overnight.models import Feedback
from overnight.testing import MemoryContext
from overnight_server.cli.main import app
from overnight_server.cli.terminal.failures import Code
from tests.support.api_user import ApiUser, serve_api
from tests.support.deployment import Deployment
from tests.support.pull_agent import register_agent

SIZE = {"method": "size", "max_bytes": 10}
SCHEMA = {"method": "json-schema", "schema": {"type": "object"}}


@pytest.fixture
def api_user(
    deployment: Deployment, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ApiUser]:
    monkeypatch.setattr(registry, "_handlers", {})
    with serve_api(deployment, database_url) as api_user:
        deployment.agent(capabilities=["runner:python"])
        yield api_user


def test_a_task_shows_its_validators_in_the_order_of_their_use(api_user: ApiUser) -> None:
    task = api_user.created(output_validation=[SCHEMA, SIZE])

    assert task["output_validation"] == [SIZE, SCHEMA]
    assert task["runner"] == "python"


@pytest.mark.parametrize(
    ("validator", "field"),
    [
        ({"method": "llm-judge"}, "output_validation.0.method"),
        ({"method": "regex", "pattern": "("}, "output_validation.0.pattern"),
        ({"method": "json-schema", "schema": {"type": "x"}}, "output_validation.0.schema"),
        ({"method": "size"}, "output_validation.0.max_bytes"),
    ],
)
def test_a_wrong_validator_is_refused_with_its_field(
    api_user: ApiUser, validator: dict[str, Any], field: str
) -> None:
    answer = api_user.create(output_validation=[validator])

    assert answer.status_code == 422, answer.text
    assert [wrong["field"] for wrong in answer.json()["errors"]] == [field]
    assert all(wrong["legal"] for wrong in answer.json()["errors"])


def test_the_sdk_refuses_a_wrong_validator_without_a_request(api_user: ApiUser) -> None:
    with pytest.raises(errors.InvalidRequest, match=r"output_validation\.0\.pattern: is missing"):
        api_user.client().tasks.create("a", output_validation=[{"method": "regex"}])


def test_the_command_line_adds_validators(
    api_user: ApiUser, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    api_user.take_commands(monkeypatch)
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA["schema"]))
    options = ("--validate", f"json-schema=@{tmp_path}/schema.json", "--validate", "size=10")

    added = CliRunner().invoke(app, ["add", "a", *options, "--json"])

    assert added.exit_code == 0, added.output
    assert json.loads(added.stdout)["output_validation"] == [SIZE, SCHEMA]
    task_id = json.loads(added.stdout)["id"]
    assert "size, json-schema" in CliRunner().invoke(app, ["get", task_id]).stdout


@pytest.mark.parametrize("value", ["size=much", "judge=a", "test-pass=", "json-schema={", "none=1"])
def test_the_command_line_refuses_what_is_no_validator(value: str) -> None:
    refused = CliRunner().invoke(app, ["add", "a", "--validate", value])

    assert refused.exit_code == Code.USAGE


def test_a_pull_agent_gets_no_task_that_must_be_validated(api_user: ApiUser) -> None:
    api_user.created(output_validation=[SIZE])
    agent = register_agent(api_user, capabilities=["runner:python"])

    assert agent.claim().status_code == 204


def test_a_run_that_must_be_validated_cannot_be_completed_over_http(api_user: ApiUser) -> None:
    task = api_user.created()
    agent = register_agent(api_user)
    work = agent.begin()
    api_user.deployment.run(
        "UPDATE tasks SET spec = CAST(:spec AS jsonb) WHERE id = :id",
        spec=json.dumps({"output_validation": [SIZE]}),
        id=api_user.row_id(task["id"]),
    )

    answer = agent.report(work, "complete", output="far too long for it")

    assert answer.status_code == 400, answer.text
    assert "must be validated" in answer.text
    assert api_user.deployment.state(api_user.row_id(task["id"])) == "running"


def test_an_agent_is_told_why_an_earlier_output_was_rejected(api_user: ApiUser) -> None:
    seen: list[Any] = []

    @overnight.handler("careful")
    def careful(ctx: overnight.Context) -> str:
        seen.append(ctx.feedback)
        if ctx.feedback is None:
            raise overnight.InvalidOutput("no pages")
        return "done"

    task = api_user.created(type="careful", retry={"strategy": "immediate"})
    agent = Agent("laptop", client=api_user.client())
    agent.run_one()
    api_user.deployment.run("UPDATE tasks SET state = 'ready', retry_at = NULL")
    agent.run_one()

    assert api_user.deployment.state(api_user.row_id(task["id"])) == "completed"
    first, second = seen
    assert first is None
    assert (second.validator, second.message, second.output) == (None, "no pages", None)


def test_a_test_gives_a_handler_its_feedback() -> None:
    feedback = Feedback(attempt=1, validator="size", message="too long", output="abc")

    context = MemoryContext(attempt=2, feedback=feedback)

    assert context.feedback == feedback
