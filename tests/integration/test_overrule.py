"""A person accepts the output that a validator rejected: the task completes, dependents proceed."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from typer.testing import CliRunner

from overnight import errors
from overnight.errors import NotOverrulable, TaskNotFound
from overnight_server.cli.main import app
from overnight_server.control.overrule import overrule
from overnight_server.domain.claims import Run
from overnight_server.domain.graphs import Condition
from overnight_server.domain.ids import TaskId, UserId, show_task
from overnight_server.domain.results import Raised
from overnight_server.intake.new_graph import Edge
from overnight_server.maintenance.promote import promote
from overnight_server.outcome.validation import begin_validation
from overnight_server.store.db import Db
from tests.support.api_user import TASKS, ApiUser, serve_api
from tests.support.deployment import Deployment
from tests.support.graphs import assert_invariants, begin, linked, states
from tests.support.rejected_output import dead_letter, rejected, validating
from tests.support.rivals import Rival, meet_at_lane

ADA = "user:ada"


@pytest.fixture
def user(deployment: Deployment) -> UserId:
    deployment.agent()
    return deployment.user()


@pytest.fixture
def run(deployment: Deployment, user: UserId) -> Run:
    """A run whose output is validated."""
    return validating(deployment, user)


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        deployment.agent(capabilities=["runner:python"])
        yield api_user


def test_an_overruled_dead_letter_is_completed_with_the_rejected_output(
    deployment: Deployment, user: UserId
) -> None:
    task_id = dead_letter(deployment, user, {"text": "no"})

    overrule(deployment.app, user, task_id, actor=ADA, note="good enough")

    row = deployment.row(task_id)
    assert (row["state"], row["output"]) == ("completed", {"text": "no"})
    assert (row["result_summary"], row["files_changed"]) == ("short", ["a.py"])
    assert (row["failure_reason"], row["error"]) == (None, None)
    attempt = deployment.one("SELECT * FROM attempts")
    assert (attempt["outcome"], attempt["error"]) == ("overruled", "regex: no")
    letter = deployment.one("SELECT * FROM dead_letters")
    assert (letter["resolution"], letter["resolved_by"]) == ("overrule", ADA)
    assert letter["note"] == "good enough"
    event = deployment.one("SELECT * FROM events ORDER BY seq DESC LIMIT 1")
    assert (event["from_state"], event["to_state"], event["actor"]) == (
        "dead_lettered",
        "completed",
        ADA,
    )
    audited = deployment.rows("SELECT act, actor FROM audit_log")
    assert {"act": "dead_letter.resolved", "actor": ADA} in audited
    assert_invariants(deployment)


def test_a_task_that_waits_for_its_retry_can_be_overruled(deployment: Deployment, run: Run) -> None:
    deployment.settle(run, rejected(None))

    overrule(deployment.app, run.user_id, run.claim.task_id, actor=ADA)

    row = deployment.row(run.claim.task_id)
    assert (row["state"], row["output"], row["retry_at"]) == ("completed", None, None)
    assert deployment.lane(run.user_id)["waiting"] == 0
    assert_invariants(deployment)


def test_the_dependents_of_an_overruled_task_proceed(deployment: Deployment, user: UserId) -> None:
    root, child, grandchild, clean_up = linked(
        deployment,
        user,
        4,
        Edge(0, 1),
        Edge(1, 2),
        Edge(0, 3, Condition.FAILURE),
    )
    deployment.run("UPDATE tasks SET max_attempts = 1 WHERE id = :id", id=root)
    [run] = begin(deployment, root)
    begin_validation(deployment.dispatcher, run.claim)
    deployment.settle(run, rejected())
    assert states(deployment, child, grandchild, clean_up) == ["cancelled", "cancelled", "ready"]

    overrule(deployment.app, user, root, actor=ADA)

    assert states(deployment, root, child, grandchild, clean_up) == [
        "completed",
        "ready",
        "pending",
        "ready",
    ]
    assert_invariants(deployment)


def test_a_dependent_that_waits_while_its_parent_retries_proceeds(
    deployment: Deployment, user: UserId
) -> None:
    root, child = linked(deployment, user, 2, Edge(0, 1))
    [run] = begin(deployment, root)
    begin_validation(deployment.dispatcher, run.claim)
    deployment.settle(run, rejected())

    overrule(deployment.app, user, root, actor=ADA)

    assert states(deployment, root, child) == ["completed", "ready"]
    assert_invariants(deployment)


@pytest.mark.parametrize(
    "result",
    [Raised("auth_failure", "wrong key"), Raised("invalid_output", "says the handler")],
)
def test_a_task_without_a_rejected_output_cannot_be_overruled(
    deployment: Deployment, user: UserId, result: Raised
) -> None:
    run = deployment.running(user, max_attempts=1)
    deployment.settle(run, result)

    with pytest.raises(NotOverrulable, match="it is dead_lettered"):
        overrule(deployment.app, user, run.claim.task_id, actor=ADA)

    assert deployment.state(run.claim.task_id) == "dead_lettered"


def test_a_task_whose_retry_failed_otherwise_cannot_be_overruled(
    deployment: Deployment, run: Run
) -> None:
    task_id = run.claim.task_id
    deployment.settle(run, rejected())
    deployment.move_clock(timedelta(hours=1))
    deployment.agent()
    promote(deployment.dispatcher)
    with pytest.raises(NotOverrulable, match="it is ready"):
        overrule(deployment.app, run.user_id, task_id, actor=ADA)
    [again] = begin(deployment, task_id)
    deployment.settle(again, Raised("auth_failure", "wrong key"))

    with pytest.raises(NotOverrulable):
        overrule(deployment.app, run.user_id, task_id, actor=ADA)


def test_the_task_of_another_user_is_not_found(deployment: Deployment, user: UserId) -> None:
    task_id = dead_letter(deployment, user)

    with pytest.raises(TaskNotFound):
        overrule(deployment.app, deployment.user(), task_id, actor=ADA)

    assert deployment.state(task_id) == "dead_lettered"


def test_of_two_overrules_one_wins(
    deployment: Deployment, user: UserId, connect: Callable[[str], Db]
) -> None:
    task_id = dead_letter(deployment, user)

    answers = meet_at_lane(
        connect, user, *(Rival(connect, f"person-{n}", _overruled, user, task_id) for n in range(2))
    )

    assert answers == [True, False]
    assert deployment.state(task_id) == "completed"


def _overruled(db: Db, user: UserId, task_id: TaskId) -> bool:
    try:
        overrule(db, user, task_id, actor=ADA)
    except NotOverrulable:
        return False
    return True


def dead_of(api_user: ApiUser) -> str:
    """Return the id of a user's task that failed for good with a rejected output."""
    return show_task(dead_letter(api_user.deployment, api_user.user))


def test_a_person_overrules_over_http_and_the_task_is_completed(api_user: ApiUser) -> None:
    task_id = dead_of(api_user)
    [attempt] = api_user.client().tasks.attempts(task_id)
    assert (attempt.validator, attempt.rejected_output) == ("regex", "no")

    task = api_user.client().tasks.overrule(task_id, note="fine")

    assert (task.state, task.output, task.error) == ("completed", "no", None)
    with pytest.raises(errors.NotOverrulable, match="it is completed"):
        api_user.client().tasks.overrule(task_id)
    event = api_user.deployment.one("SELECT actor FROM events ORDER BY seq DESC LIMIT 1")
    assert event["actor"] == f"user:{api_user.user}"


def test_nobody_overrules_the_task_of_another_user(api_user: ApiUser) -> None:
    answer = api_user.new_user().request("POST", f"{TASKS}/{dead_of(api_user)}/overrule")

    assert (answer.status_code, answer.json()["code"]) == (404, "TASK_NOT_FOUND")


def test_the_command_line_overrules(api_user: ApiUser, monkeypatch: pytest.MonkeyPatch) -> None:
    api_user.take_commands(monkeypatch)
    task_id = dead_of(api_user)

    overruled = CliRunner().invoke(app, ["overrule", task_id, "--json"])

    assert json.loads(overruled.stdout)["state"] == "completed", overruled.output
    refused = CliRunner().invoke(app, ["overrule", task_id])
    assert refused.exit_code != 0
    assert "only a retrying or dead-lettered task" in " ".join(refused.stderr.split())
