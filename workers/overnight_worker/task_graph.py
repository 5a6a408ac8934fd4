"""What a run does to its graph and reads from it, in transactions of their own."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from sqlalchemy.exc import OperationalError

from overnight.errors import InvalidRequest, StaleAttempt, TaskStopping
from overnight.handlers.control_exceptions import Stopped
from overnight.handlers.spawn import Child, Content, Wish
from overnight_server.domain.claims import Run
from overnight_server.domain.ids import MalformedId, TaskId, parse_task, show_artifact, show_task
from overnight_server.intake.grow_graph import SOURCE, Seed, SpawnCaps, spawn
from overnight_server.intake.translate import new_task
from overnight_server.outcome.artifacts import ArtifactCaps, Made, keep
from overnight_server.outcome.inputs import ChildView, children_of, inputs_of
from overnight_server.store.db import DatabaseUnreachable
from overnight_server.telemetry import Event, emit
from overnight_worker.record_results import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    UNANSWERED_SECONDS,
)
from overnight_worker.resources import WorkerResources

T = TypeVar("T")


class Growth:
    """The way from one run to its graph; a run that lost its claim changes nothing through it."""

    def __init__(self, resources: WorkerResources, run: Run) -> None:
        self._resources = resources
        self._run = run

    def spawn(self, wish: Wish) -> str:
        """Let a child in; the same key again answers with the first one."""
        own = wish.task.model_fields_set
        seed = Seed(
            task=replace(new_task(wish.task, self._resources.settings, None), name=wish.name),
            key=wish.key,
            depends_on=_ids("depends_on", wish.depends_on),
            inherits_priority=not own & {"priority", "priority_score"},
        )
        caps = SpawnCaps.of(self._resources.settings)
        run = self._run
        made = _asked(lambda: spawn(self._resources.db, run.user_id, run.claim, seed, caps))
        shown = show_task(made.task_id)
        if made.created:
            emit(Event.TASK_ADDED, queue_id=shown, depth=None, source=SOURCE)
            self._resources.waker.wake()
        return shown

    def children(self, named: Sequence[str] | None) -> list[Child]:
        """Return the run's own children, those named in that order, or all."""
        if named is None:
            found = _asked(lambda: children_of(self._resources.db, self._run.claim.task_id))
            return [_child(one) for one in found]
        wanted = _ids("children", named)
        found = _asked(lambda: children_of(self._resources.db, self._run.claim.task_id, wanted))
        known = {one.task_id: one for one in found}
        for one in wanted:
            if one not in known:
                raise InvalidRequest(
                    "children",
                    f"{show_task(one)} was not spawned by this task",
                    legal="own children",
                )
        return [_child(known[one]) for one in wanted]

    def inputs(self) -> dict[str, Any]:
        """Return the outputs the run may read."""
        run = self._run
        return _asked(lambda: inputs_of(self._resources.db, run.user_id, run.claim.task_id))

    def keep(self, name: str, content: Content) -> str:
        """Keep an artifact under a name of the task."""
        made = Made(name, content.kind, content.raw)
        caps = ArtifactCaps.of(self._resources.settings)
        kept = _asked(lambda: keep(self._resources.db, self._run.claim, made, caps))
        return show_artifact(kept)


def _asked(work: Callable[[], T]) -> T:
    """Ask the deployment, also while Postgres is away for a moment; say no in the handler's words.

    What is asked twice is done once: children and artifacts go by their keys.
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
        except (DatabaseUnreachable, OperationalError):
            if time.monotonic() + pause >= until:
                raise
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)


def _ids(field: str, texts: Sequence[str]) -> list[TaskId]:
    try:
        return [parse_task(text) for text in texts]
    except MalformedId as error:
        raise InvalidRequest(field, str(error), legal="ids as spawn returns them") from None


def _child(view: ChildView) -> Child:
    return Child(
        show_task(view.task_id),
        view.key,
        view.title,
        view.type,
        view.state,
        view.output,
        view.failure_reason,
        view.error,
    )
