"""What a task reads: references are found at submit, and handed to the run."""

from typing import Any

import pytest
from sqlalchemy import event

from overnight_server.domain.claims import Run
from overnight_server.domain.errors import ArtifactNotFound, InvalidRequest, StaleAttempt
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
from overnight_server.intake.submit import Edge, NewTask, submit_graph
from overnight_server.outcome.artifacts import ArtifactCaps, Made, keep
from overnight_server.outcome.inputs import inputs_of
from tests.support.graphs import begin
from tests.support.house import LOOSE, House


@pytest.fixture
def user(house: House) -> UserId:
    house.agent()
    return house.user()


def completed(house: House, user: UserId, output: object) -> TaskId:
    run = house.running(user)
    house.settle(run, Returned(output))
    return run.claim.task_id


def made(house: House, user: UserId, *tasks: NewTask, edges: Any = ()) -> list[TaskId]:
    return [one.task_id for one in submit_graph(house.app, user, tasks, LOOSE, edges=edges)]


def test_a_task_reads_the_output_of_one_that_completed(house: House, user: UserId) -> None:
    first = completed(house, user, {"n": 7})
    reference = f"task:{show_task(first)}:output"

    run = house.running(user, context_refs=[reference])

    assert run.is_linked
    assert run.dag_id == run.claim.task_id
    assert inputs_of(house.dispatcher, user, run.claim.task_id) == {reference: {"n": 7}}


def test_a_lone_task_without_references_has_nothing_to_ask_for(house: House, user: UserId) -> None:
    assert not house.running(user).is_linked


def test_a_name_inside_a_request_is_a_reference_and_a_dependency(
    house: House, user: UserId
) -> None:
    research, report = made(
        house,
        user,
        NewTask("look around", "echo", name="research"),
        NewTask("write", "echo", context_refs=["task:research:output"]),
    )
    assert house.state(report) == "pending"

    [run] = begin(house, research)
    house.settle(run, Returned(["a", "b"]))

    assert house.state(report) == "ready"
    found = inputs_of(house.dispatcher, user, report)
    assert found == {"research": ["a", "b"], "task:research:output": ["a", "b"]}


def test_parents_go_by_their_name_or_by_their_id(house: House, user: UserId) -> None:
    named, plain, child = made(
        house,
        user,
        NewTask("a", "echo", name="left"),
        NewTask("b", "echo"),
        NewTask("c", "echo"),
        edges=[Edge(0, 2), Edge(1, 2)],
    )
    for number, run in enumerate(begin(house, named, plain)):
        house.settle(run, Returned(number))

    assert inputs_of(house.dispatcher, user, child) == {"left": 0, show_task(plain): 1}


def test_names_that_read_each_other_are_a_circle(house: House, user: UserId) -> None:
    with pytest.raises(InvalidRequest, match="circular dependency"):
        made(
            house,
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
def test_a_reference_to_nothing_is_refused_with_its_field(
    house: House, user: UserId, reference: str, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message) as refusal:
        house.task(user, context_refs=[reference])

    assert refusal.value.details["field"] == "context_refs"
    assert not house.rows("SELECT * FROM tasks")


def test_what_is_anothers_looks_like_nothing(house: House, user: UserId) -> None:
    theirs = completed(house, house.user(), "secret")

    with pytest.raises(InvalidRequest, match="there is no task"):
        house.task(user, context_refs=[f"task:{show_task(theirs)}:output"])


def test_a_task_that_has_not_completed_has_no_output_yet(house: House, user: UserId) -> None:
    waits = house.task(user)
    dead = house.running(user)
    house.settle(dead, Raised("auth_failure", "no"))

    with pytest.raises(InvalidRequest, match="has not completed yet"):
        house.task(user, context_refs=[f"task:{show_task(waits)}:output"])
    with pytest.raises(InvalidRequest, match="has ended as dead_lettered"):
        house.task(user, context_refs=[f"task:{show_task(dead.claim.task_id)}:output"])


@pytest.fixture
def run(house: House, user: UserId) -> Run:
    return house.running(user)


def kept(house: House, run: Run, name: str = "report", content: bytes = b"text") -> Any:
    return keep(house.dispatcher, run.claim, Made(name, "text", content), ArtifactCaps(8, 2))


def test_an_artifact_is_read_by_reference_and_by_its_owner(house: House, run: Run) -> None:
    text = kept(house, run)
    keep(house.dispatcher, run.claim, Made("data", "json", b'{"n": 1}'), ArtifactCaps())
    references = [f"artifact:{show_artifact(text)}"]

    reader = house.task(run.user_id, context_refs=references)

    assert inputs_of(house.dispatcher, run.user_id, reader) == {references[0]: "text"}
    listed = list_artifacts(house.app, run.user_id, run.claim.task_id)
    assert [(one.name, one.kind, one.size) for one in listed] == [
        ("data", "json", 8),
        ("report", "text", 4),
    ]
    view, content = get_artifact(house.app, run.user_id, text)
    assert (view.task_id, content) == (show_task(run.claim.task_id), "text")
    with pytest.raises(ArtifactNotFound):
        get_artifact(house.app, house.user(), text)
    assert list_artifacts(house.app, house.user(), run.claim.task_id) == []


def test_the_same_name_again_is_the_same_artifact(house: House, run: Run) -> None:
    first = kept(house, run, content=b"one")

    assert kept(house, run, content=b"two") == first

    _, content = get_artifact(house.app, run.user_id, first)
    assert content == "two"


def test_a_run_that_lost_its_claim_keeps_nothing(house: House, run: Run) -> None:
    house.settle(run, Returned())

    with pytest.raises(StaleAttempt):
        kept(house, run)

    assert not house.rows("SELECT * FROM artifacts")


def test_artifacts_have_bounds(house: House, run: Run) -> None:
    with pytest.raises(InvalidRequest, match="takes 9 bytes; legal: at most 8"):
        kept(house, run, content=b"123456789")
    kept(house, run, "a")
    kept(house, run, "b")
    with pytest.raises(InvalidRequest, match="at most 2 names"):
        kept(house, run, "c")

    assert kept(house, run, "b")


def test_anothers_artifact_looks_like_none(house: House, run: Run) -> None:
    theirs = kept(house, run)

    with pytest.raises(InvalidRequest, match="there is no artifact"):
        house.task(house.user(), context_refs=[f"artifact:{show_artifact(theirs)}"])


def test_a_large_graph_is_looked_up_at_once(house: House, user: UserId) -> None:
    reference = f"task:{show_task(completed(house, user, 7))}:output"
    asked: list[str] = []

    def note(_connection: Any, _cursor: Any, sql: str, *_: Any) -> None:
        asked.append(sql)

    event.listen(house.app.engine, "after_cursor_execute", note)
    try:
        made(
            house,
            user,
            *(NewTask(f"reader {n}", "echo", context_refs=[reference]) for n in range(30)),
        )
    finally:
        event.remove(house.app.engine, "after_cursor_execute", note)

    assert len([sql for sql in asked if "referred_tasks" in sql]) == 1
