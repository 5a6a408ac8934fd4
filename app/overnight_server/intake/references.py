"""References of a new task to outputs and artifacts, resolved before the task is inserted."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never
from uuid import UUID

from sqlalchemy import Connection

from overnight.errors import InvalidRequest
from overnight_server.domain.ids import ArtifactId, DagId, TaskId, UserId, show_artifact, show_task
from overnight_server.domain.lifecycle import State
from overnight_server.domain.references import (
    LEGAL,
    ArtifactOf,
    MalformedReference,
    NamedOutput,
    OutputOf,
    Reference,
    parse_reference,
)
from overnight_server.store.statements import statement

FIELD = "context_refs"
READABLE_TASK = "a task that has completed, or one of the same graph"


@dataclass(frozen=True)
class ResolvedReferences:
    """The ids that a task's references stand for, and the tasks it must wait for.

    `stored` is what the task's row keeps; None if the task has no references.
    """

    stored: dict[str, str] | None = None
    after: Sequence[TaskId] = ()


@dataclass(frozen=True)
class _ReferredTask:
    id: TaskId
    name: str | None
    state: str
    dag_id: UUID


def within(tasks: Sequence[tuple[str | None, Sequence[str]]]) -> list[tuple[int, int]]:
    """Return the pairs (parent, child) of positions where a task reads another of the request.

    Each task is given as its name and its references. Raises InvalidRequest for an unknown name.
    """
    if not any(references for _, references in tasks):
        return []
    positions = {name: i for i, (name, _) in enumerate(tasks) if name is not None}
    pairs = []
    for child, (_, references) in enumerate(tasks):
        for reference in map(_parse, references):
            if isinstance(reference, NamedOutput):
                if reference.name not in positions:
                    raise _invalid(f"no task of this request is called {reference.name!r}")
                pairs.append((positions[reference.name], child))
    return list(dict.fromkeys(pairs))


def resolve(
    tx: Connection,
    user_id: UserId,
    readers: Sequence[Sequence[str]],
    ids_by_name: Mapping[str, TaskId],
    *,
    dag_id: DagId | None = None,
) -> list[ResolvedReferences]:
    """Resolve the references of each reader; all look-ups share two statements.

    `ids_by_name` are tasks of the same request, which need not be inserted yet. With a `dag_id`,
    references may also name tasks of that graph, and a reader waits for those that have not
    ended. Raises InvalidRequest for what does not exist or belongs to another user.
    """
    parsed = [{text: _parse(text) for text in references} for references in readers]
    all_references = [reference for reader in parsed for reference in reader.values()]
    tasks = _find_tasks(tx, user_id, all_references, dag_id)
    artifacts = _find_artifacts(tx, user_id, all_references)
    return [_resolve_reader(reader, ids_by_name, tasks, artifacts, dag_id) for reader in parsed]


def artifacts_in(references: Sequence[str]) -> list[ArtifactId]:
    """Return the artifacts that references name; raise InvalidRequest for a malformed one."""
    parsed = map(_parse, references)
    return [reference.artifact_id for reference in parsed if isinstance(reference, ArtifactOf)]


def _resolve_reader(
    references: Mapping[str, Reference],
    ids_by_name: Mapping[str, TaskId],
    tasks: Mapping[TaskId | str, Sequence[_ReferredTask]],
    artifacts: Collection[UUID],
    dag_id: DagId | None,
) -> ResolvedReferences:
    if not references:
        return ResolvedReferences()
    stored: dict[str, str] = {}
    after: list[TaskId] = []
    for text, reference in references.items():
        match reference:
            case ArtifactOf(artifact_id):
                if artifact_id not in artifacts:
                    raise _invalid(f"there is no artifact {show_artifact(artifact_id)}")
                stored[text] = show_artifact(artifact_id)
            case NamedOutput(name) if name in ids_by_name:
                stored[text] = show_task(ids_by_name[name])
            case OutputOf() | NamedOutput():
                task = _referred_task(tasks, reference)
                if task.state != State.COMPLETED:
                    _check_can_wait_for(task, dag_id)
                    after.append(task.id)
                stored[text] = show_task(task.id)
            case _:
                assert_never(reference)
    return ResolvedReferences(stored, list(dict.fromkeys(after)))


def _parse(text: str) -> Reference:
    try:
        return parse_reference(text)
    except MalformedReference as error:
        raise InvalidRequest(FIELD, str(error), legal=LEGAL) from error


def _find_tasks(
    tx: Connection, user_id: UserId, references: Collection[Reference], dag_id: DagId | None
) -> dict[TaskId | str, list[_ReferredTask]]:
    """Return the referred tasks by id, and those of the graph `dag_id` also by name."""
    ids = [one.task_id for one in references if isinstance(one, OutputOf)]
    names = [one.name for one in references if isinstance(one, NamedOutput)] if dag_id else []
    if not ids and not names:
        return {}
    rows = tx.execute(
        statement("referred_tasks"),
        {"user_id": user_id, "tasks": ids, "names": names, "dag_id": dag_id},
    )
    tasks: dict[TaskId | str, list[_ReferredTask]] = {}
    for row in rows:
        task = _ReferredTask(TaskId(row.id), row.name, row.state, row.dag_id)
        tasks.setdefault(task.id, []).append(task)
        if task.name is not None and task.dag_id == dag_id:
            tasks.setdefault(task.name, []).append(task)
    return tasks


def _find_artifacts(
    tx: Connection, user_id: UserId, references: Collection[Reference]
) -> set[UUID]:
    ids = [one.artifact_id for one in references if isinstance(one, ArtifactOf)]
    if not ids:
        return set()
    rows = tx.execute(statement("referred_artifacts"), {"user_id": user_id, "artifacts": ids})
    return set(rows.scalars())


def _referred_task(
    tasks: Mapping[TaskId | str, Sequence[_ReferredTask]], reference: OutputOf | NamedOutput
) -> _ReferredTask:
    if isinstance(reference, OutputOf):
        matches, shown = tasks.get(reference.task_id, ()), show_task(reference.task_id)
    else:
        matches, shown = tasks.get(reference.name, ()), repr(reference.name)
    if not matches:
        raise _invalid(f"there is no task {shown}")
    if len(matches) > 1:
        raise _invalid(f"several tasks of the graph are called {shown}")
    return matches[0]


def _check_can_wait_for(task: _ReferredTask, dag_id: DagId | None) -> None:
    shown = show_task(task.id)
    if State(task.state).is_final:
        raise InvalidRequest(
            FIELD, f"{shown} is {task.state} and has no output", legal=READABLE_TASK
        )
    if task.dag_id != dag_id:
        raise InvalidRequest(FIELD, f"{shown} has not completed yet", legal=READABLE_TASK)


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(FIELD, message, legal=LEGAL)
