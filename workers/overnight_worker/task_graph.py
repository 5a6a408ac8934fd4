"""Lets a run spawn tasks into its graph, read from it and keep artifacts."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from sqlalchemy import Connection

from overnight.errors import InvalidRequest, StaleAttempt, TaskStopping
from overnight.handlers.control_exceptions import Stopped
from overnight.handlers.spawn import ArtifactContent, ChildRequest
from overnight.models.agents import Child
from overnight.models.validation import Feedback
from overnight.trace_context import current_traceparent
from overnight_server.domain.claims import Run
from overnight_server.domain.ids import MalformedId, TaskId, parse_task, show_artifact, show_task
from overnight_server.intake.spawn import NewChild, SpawnCaps, spawn
from overnight_server.intake.translate_request import new_task
from overnight_server.outcome.artifacts import ArtifactCaps, NewArtifact, store_artifact
from overnight_server.outcome.inputs import ChildView, children_of, inputs_of
from overnight_server.outcome.lock_claimed_task import lock_claimed_task
from overnight_server.outcome.validation import latest_feedback
from overnight_server.store.db import DATABASE_ERRORS, is_transient
from overnight_worker.record_results import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    UNANSWERED_SECONDS,
)
from overnight_worker.resources import WorkerResources

T = TypeVar("T")


class RunGraph:
    """The graph of one run's task; each call is a transaction of its own.

    A run that lost its claim changes nothing: the call raises `Stopped`.
    """

    def __init__(self, resources: WorkerResources, run: Run) -> None:
        self._resources = resources
        self._run = run

    def spawn(self, child: ChildRequest) -> str:
        """Insert a child task and return its id; the same key again returns the first child."""
        fields_set = child.task.model_fields_set
        request = NewChild(
            task=replace(new_task(child.task, self._resources.settings, None), name=child.name),
            key=child.key,
            depends_on=_parse_ids("depends_on", child.depends_on),
            inherits_priority=not fields_set & {"priority", "priority_score"},
            traceparent=current_traceparent(),
        )
        caps = SpawnCaps.of(self._resources.settings)
        run = self._run
        spawned = _retry(lambda: spawn(self._resources.db, run.user_id, run.claim, request, caps))
        return show_task(spawned.task_id)

    def children(self, ids: Sequence[str] | None) -> list[Child]:
        """Return the children with these ids in that order, or all children of the task."""
        db, parent = self._resources.db, self._run.claim.task_id
        if ids is None:
            return [_child(view) for view in _retry(lambda: children_of(db, parent))]
        child_ids = _parse_ids("children", ids)
        views = _retry(lambda: children_of(db, parent, child_ids))
        by_id = {view.task_id: view for view in views}
        for child_id in child_ids:
            if child_id not in by_id:
                raise InvalidRequest(
                    "children",
                    f"{show_task(child_id)} was not spawned by this task",
                    legal="own children",
                )
        return [_child(by_id[child_id]) for child_id in child_ids]

    def inputs(self) -> dict[str, Any]:
        """Return the outputs that the run may read."""
        run = self._run
        resources = self._resources
        return _retry(
            lambda: inputs_of(
                resources.db, run.user_id, run.claim.task_id, resources.artifact_store
            )
        )

    def feedback(self) -> Feedback | None:
        """Return why the latest rejected output of the task was rejected, if one was."""
        return _retry(lambda: latest_feedback(self._resources.db, self._run.claim.task_id))

    def keep(self, name: str, content: ArtifactContent) -> str:
        """Store an artifact under a name of the task, and return its id."""
        artifact = NewArtifact(name, content.kind, content.raw)
        resources, caps = self._resources, ArtifactCaps.of(self._resources.settings)
        stored = _retry(
            lambda: store_artifact(
                resources.db, self._run.claim, artifact, caps, resources.artifact_store
            )
        )
        return show_artifact(stored)

    def while_held(self, work: Callable[[], None]) -> None:
        """Do something that only the holder of the claim may do, while the task's row is locked.

        It may be done twice.
        """

        def locked(tx: Connection) -> None:
            lock_claimed_task(tx, self._run.claim)
            work()

        _retry(lambda: self._resources.db.atomically(locked))


def _retry(work: Callable[[], T]) -> T:
    """Run `work`; repeat it while Postgres is down for a moment.

    Repeating is safe: children and artifacts are identified by their keys.
    """
    until = time.monotonic() + UNANSWERED_SECONDS
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            return work()
        except StaleAttempt:
            raise Stopped("lost") from None
        except TaskStopping:
            raise Stopped("cancelled") from None
        except DATABASE_ERRORS as error:
            if not is_transient(error) or time.monotonic() + pause >= until:
                raise
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)


def _parse_ids(field: str, texts: Sequence[str]) -> list[TaskId]:
    try:
        return [parse_task(text) for text in texts]
    except MalformedId as error:
        raise InvalidRequest(field, str(error), legal="ids as spawn returns them") from None


def _child(view: ChildView) -> Child:
    return Child(
        id=show_task(view.task_id),
        key=view.key,
        title=view.title,
        type=view.type,
        state=view.state,
        output=view.output,
        failure_reason=view.failure_reason,
        error=view.error,
    )
