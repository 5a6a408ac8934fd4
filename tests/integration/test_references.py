"""References to outputs and artifacts: resolved at submit and passed to the run."""

from typing import Any

import pytest
from sqlalchemy import event

from overnight.errors import ArtifactNotFound, InvalidRequest, StaleAttempt
from overnight_server.domain.claims import Run
from overnight_server.domain.ids import (
    TaskId,
    UserId,
    new_artifact_id,
    new_task_id,
    show_artifact,
    show_task,
)
from overnight_server.domain.results import Raised, Returned
from overnight_server.insight.artifacts import get_artifact, list_artifacts
from overnight_server.intake.new_graph import Edge, NewTask
from overnight_server.intake.submit import submit_graph
from overnight_server.outcome.artifacts import ArtifactCaps, NewArtifact, store_artifact
from overnight_server.outcome.inputs import inputs_of
from tests.support.deployment import LOOSE, Deployment
from tests.support.graphs import begin


@pytest.fixture
def user(deployment: Deployment) -> UserId:
    deployment.agent()
    return deployment.user()


def completed(deployment: Deployment, user: UserId, output: object) -> TaskId:
    run = deployment.running(user)
    deployment.settle(run, Returned(output))
    return run.claim.task_id


def made(deployment: Deployment, user: UserId, *tasks: NewTask, edges: Any = ()) -> list[TaskId]:
    return [
        submitted.task_id
        for submitted in submit_graph(deployment.app, user, tasks, LOOSE, edges=edges)
    ]


def test_a_task_reads_the_output_of_a_completed_task(deployment: Deployment, user: UserId) -> None:
    first = completed(deployment, user, {"n": 7})
    reference = f"task:{show_task(first)}:output"

    run = deployment.running(user, context_refs=[reference])

    assert run.is_linked
    assert run.dag_id == run.claim.task_id
    assert inputs_of(deployment.dispatcher, user, run.claim.task_id) == {reference: {"n": 7}}


def test_a_single_task_without_references_needs_no_query(
    deployment: Deployment, user: UserId
) -> None:
    assert not deployment.running(user).is_linked


def test_a_name_inside_a_request_is_a_reference_and_a_dependency(
    deployment: Deployment, user: UserId
) -> None:
    research, report = made(
        deployment,
        user,
        NewTask("look around", "echo", name="research"),
        NewTask("write", "echo", context_refs=["task:research:output"]),
    )
    assert deployment.state(report) == "pending"

    [run] = begin(deployment, research)
    deployment.settle(run, Returned(["a", "b"]))

    assert deployment.state(report) == "ready"
    inputs = inputs_of(deployment.dispatcher, user, report)
    assert inputs == {"research": ["a", "b"], "task:research:output": ["a", "b"]}


def test_parents_are_named_by_name_or_by_id(deployment: Deployment, user: UserId) -> None:
    named, plain, child = made(
        deployment,
        user,
        NewTask("a", "echo", name="left"),
        NewTask("b", "echo"),
        NewTask("c", "echo"),
        edges=[Edge(0, 2), Edge(1, 2)],
    )
    for number, run in enumerate(begin(deployment, named, plain)):
        deployment.settle(run, Returned(number))

    assert inputs_of(deployment.dispatcher, user, child) == {"left": 0, show_task(plain): 1}


def test_references_to_each_other_are_a_cycle(deployment: Deployment, user: UserId) -> None:
    with pytest.raises(InvalidRequest, match="circular dependency"):
        made(
            deployment,
            user,
            NewTask("a", "echo", name="a", context_refs=["task:b:output"]),
            NewTask("b", "echo", name="b", context_refs=["task:a:output"]),
        )


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("nonsense", "is not a reference"),
        ("task:research", "is not a reference"),
        ("task:research:error", "is not a reference"),
        ("artifact:nonsense", "does not start with 'art_'"),
        ("task:research:output", "no task of this request is called 'research'"),
        pytest.param(
            f"task:{show_task(new_task_id())}:output", "there is no task task_", id="unknown task"
        ),
        pytest.param(
            f"artifact:{show_artifact(new_artifact_id())}",
            "there is no artifact art_",
            id="unknown artifact",
        ),
    ],
)
def test_a_reference_to_an_unknown_task_is_refused_with_its_field(
    deployment: Deployment, user: UserId, reference: str, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message) as refusal:
        deployment.task(user, context_refs=[reference])

    assert refusal.value.fields[0].field == "context_refs"
    assert not deployment.rows("SELECT * FROM tasks")


def test_a_reference_to_another_users_task_is_refused(deployment: Deployment, user: UserId) -> None:
    theirs = completed(deployment, deployment.user(), "secret")

    with pytest.raises(InvalidRequest, match="there is no task"):
        deployment.task(user, context_refs=[f"task:{show_task(theirs)}:output"])


def test_a_task_that_has_not_completed_has_no_output_yet(
    deployment: Deployment, user: UserId
) -> None:
    waits = deployment.task(user)
    dead = deployment.running(user)
    deployment.settle(dead, Raised("auth_failure", "no"))

    with pytest.raises(InvalidRequest, match="has not completed yet"):
        deployment.task(user, context_refs=[f"task:{show_task(waits)}:output"])
    with pytest.raises(InvalidRequest, match="is dead_lettered"):
        deployment.task(user, context_refs=[f"task:{show_task(dead.claim.task_id)}:output"])


@pytest.fixture
def run(deployment: Deployment, user: UserId) -> Run:
    return deployment.running(user)


def kept(deployment: Deployment, run: Run, name: str = "report", content: bytes = b"text") -> Any:
    return store_artifact(
        deployment.dispatcher, run.claim, NewArtifact(name, "text", content), ArtifactCaps(8, 2)
    )


def test_an_artifact_is_read_by_reference_and_by_its_owner(
    deployment: Deployment, run: Run
) -> None:
    text = kept(deployment, run)
    store_artifact(
        deployment.dispatcher, run.claim, NewArtifact("data", "json", b'{"n": 1}'), ArtifactCaps()
    )
    references = [f"artifact:{show_artifact(text)}"]
    deployment.settle(run, Returned())

    reader = deployment.task(run.user_id, context_refs=references)

    assert inputs_of(deployment.dispatcher, run.user_id, reader) == {references[0]: "text"}
    listed = list_artifacts(deployment.app, run.user_id, run.claim.task_id)
    assert [(item.name, item.kind, item.size) for item in listed] == [
        ("data", "json", 8),
        ("report", "text", 4),
    ]
    view, content = get_artifact(deployment.app, run.user_id, text)
    assert (view.task_id, content.value()) == (show_task(run.claim.task_id), "text")
    with pytest.raises(ArtifactNotFound):
        get_artifact(deployment.app, deployment.user(), text)
    assert list_artifacts(deployment.app, deployment.user(), run.claim.task_id) == []


def test_an_artifact_stored_again_replaces_the_first(deployment: Deployment, run: Run) -> None:
    first = kept(deployment, run, content=b"one")

    assert kept(deployment, run, content=b"two") == first

    deployment.settle(run, Returned())
    _, content = get_artifact(deployment.app, run.user_id, first)
    assert content.value() == "two"


def test_a_run_that_lost_its_claim_stores_no_artifact(deployment: Deployment, run: Run) -> None:
    deployment.settle(run, Returned())

    with pytest.raises(StaleAttempt):
        kept(deployment, run)

    assert not deployment.rows("SELECT * FROM artifacts")
    assert not deployment.rows("SELECT * FROM staged_artifacts")


def test_artifacts_have_a_maximum_size_and_number(deployment: Deployment, run: Run) -> None:
    with pytest.raises(InvalidRequest, match="takes 9 bytes; legal: at most 8"):
        kept(deployment, run, content=b"123456789")
    kept(deployment, run, "a")
    kept(deployment, run, "b")
    with pytest.raises(InvalidRequest, match="at most 2 names"):
        kept(deployment, run, "c")

    assert kept(deployment, run, "b")


def test_another_users_artifact_is_not_found(deployment: Deployment, run: Run) -> None:
    theirs = kept(deployment, run)

    with pytest.raises(InvalidRequest, match="there is no artifact"):
        deployment.task(deployment.user(), context_refs=[f"artifact:{show_artifact(theirs)}"])


def test_references_of_a_large_graph_are_resolved_in_one_query(
    deployment: Deployment, user: UserId
) -> None:
    reference = f"task:{show_task(completed(deployment, user, 7))}:output"
    queries: list[str] = []

    def note(_connection: Any, _cursor: Any, sql: str, *_: Any) -> None:
        queries.append(sql)

    event.listen(deployment.app.engine, "after_cursor_execute", note)
    try:
        made(
            deployment,
            user,
            *(NewTask(f"reader {n}", "echo", context_refs=[reference]) for n in range(30)),
        )
    finally:
        event.remove(deployment.app.engine, "after_cursor_execute", note)

    assert len([sql for sql in queries if "referred_tasks" in sql]) == 1
