"""What a new task reads: references to outputs and artifacts, found before it is let in."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never
from uuid import UUID

from sqlalchemy import Connection

from overnight.errors import InvalidRequest
from overnight_server.domain.ids import DagId, TaskId, UserId, show_artifact, show_task
from overnight_server.domain.lifecycle import State
from overnight_server.domain.references import (
    LEGAL,
    ArtifactOf,
    MalformedReference,
    OutputOf,
    OutputOfNamed,
    Reference,
    read_reference,
)
from overnight_server.store.statements import statement

FIELD = "context_refs"
FINISHED = "a task that has completed, or one of the same graph"


@dataclass(frozen=True)
class Resolved:
    """References with the ids they stand for, and which tasks of the graph must end first.

    `stored` is None where there are none, as in the row.
    """

    stored: dict[str, str] | None = None
    after: Sequence[TaskId] = ()


def within(tasks: Sequence[tuple[str | None, Sequence[str]]]) -> list[tuple[int, int]]:
    """Return who reads whom inside one request, as (parent, child) positions.

    Each task is given by its name and its references.
    """
    if not any(references for _, references in tasks):
        return []
    places = {name: place for place, (name, _) in enumerate(tasks) if name is not None}
    found = []
    for child, (_, references) in enumerate(tasks):
        for reference in map(_read, references):
            if isinstance(reference, OutputOfNamed):
                if reference.name not in places:
                    raise _unknown(f"no task of this request is called {reference.name!r}")
                found.append((places[reference.name], child))
    return list(dict.fromkeys(found))


def resolve(
    tx: Connection,
    user_id: UserId,
    readers: Sequence[Sequence[str]],
    named: Mapping[str, TaskId],
    *,
    dag_id: DagId | None = None,
) -> list[Resolved]:
    """Find what the references of each reader stand for, with one look for all of them.

    What is not the user's own looks exactly like nothing. `named` are tasks of the same request,
    which need not be written yet. With a `dag_id`, tasks of that graph may be named too, and
    those that are not over yet are waited for.
    """
    wanted = [{text: _read(text) for text in references} for references in readers]
    every = [reference for one in wanted for reference in one.values()]
    tasks = _tasks(tx, user_id, every, dag_id)
    artifacts = _artifacts(tx, user_id, every)
    return [
        _resolved(one, named, tasks, artifacts, dag_id) if one else Resolved() for one in wanted
    ]


def _resolved(
    wanted: Mapping[str, Reference],
    named: Mapping[str, TaskId],
    tasks: Mapping[TaskId | str, Sequence["_Found"]],
    artifacts: Collection[UUID],
    dag_id: DagId | None,
) -> Resolved:
    stored: dict[str, str] = {}
    after: list[TaskId] = []
    for text, reference in wanted.items():
        match reference:
            case ArtifactOf(artifact_id):
                if artifact_id not in artifacts:
                    raise _unknown(f"there is no artifact {show_artifact(artifact_id)}")
                stored[text] = show_artifact(artifact_id)
            case OutputOfNamed(name) if name in named:
                stored[text] = show_task(named[name])
            case OutputOf() | OutputOfNamed():
                found = _one(tasks, reference)
                if found.state != State.COMPLETED:
                    _check_can_wait(found, dag_id)
                    after.append(found.id)
                stored[text] = show_task(found.id)
            case _:
                assert_never(reference)
    return Resolved(stored, list(dict.fromkeys(after)))


@dataclass(frozen=True)
class _Found:
    id: TaskId
    name: str | None
    state: str
    dag_id: UUID


def _read(text: str) -> Reference:
    try:
        return read_reference(text)
    except MalformedReference as error:
        raise InvalidRequest(FIELD, str(error), legal=LEGAL) from error


def _tasks(
    tx: Connection, user_id: UserId, wanted: Collection[Reference], dag_id: DagId | None
) -> dict[TaskId | str, list[_Found]]:
    """Look up the tasks that are referred to, and keep them by their ids and by their names."""
    ids = [one.task_id for one in wanted if isinstance(one, OutputOf)]
    names = [one.name for one in wanted if isinstance(one, OutputOfNamed)] if dag_id else []
    if not ids and not names:
        return {}
    rows = tx.execute(
        statement("referred_tasks"),
        {"user_id": user_id, "tasks": ids, "names": names, "dag_id": dag_id},
    )
    found: dict[TaskId | str, list[_Found]] = {}
    for row in rows:
        one = _Found(TaskId(row.id), row.name, row.state, row.dag_id)
        found.setdefault(one.id, []).append(one)
        if one.name is not None and one.dag_id == dag_id:
            found.setdefault(one.name, []).append(one)
    return found


def _artifacts(tx: Connection, user_id: UserId, wanted: Collection[Reference]) -> set[UUID]:
    ids = [one.artifact_id for one in wanted if isinstance(one, ArtifactOf)]
    if not ids:
        return set()
    rows = tx.execute(statement("referred_artifacts"), {"user_id": user_id, "artifacts": ids})
    return set(rows.scalars())


def _one(
    tasks: Mapping[TaskId | str, Sequence[_Found]], reference: OutputOf | OutputOfNamed
) -> _Found:
    if isinstance(reference, OutputOf):
        matching, said = tasks.get(reference.task_id, ()), show_task(reference.task_id)
    else:
        matching, said = tasks.get(reference.name, ()), repr(reference.name)
    if not matching:
        raise _unknown(f"there is no task {said}")
    if len(matching) > 1:
        raise _unknown(f"several tasks of the graph are called {said}")
    return matching[0]


def _check_can_wait(found: _Found, dag_id: DagId | None) -> None:
    shown = show_task(found.id)
    if State(found.state).is_final:
        raise InvalidRequest(
            FIELD, f"{shown} has ended as {found.state} and has no output", legal=FINISHED
        )
    if found.dag_id != dag_id:
        raise InvalidRequest(FIELD, f"{shown} has not completed yet", legal=FINISHED)


def _unknown(message: str) -> InvalidRequest:
    return InvalidRequest(FIELD, message, legal=LEGAL)
