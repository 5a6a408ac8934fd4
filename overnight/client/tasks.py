"""Operations on tasks; available as `client.tasks`."""

import builtins
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any, Unpack

import httpx2

from overnight.client.calls import (
    Call,
    Page,
    long_poll,
    path,
    read,
    read_list,
    read_page,
    send,
    without_none,
)
from overnight.client.event_stream import follow_events, follow_log
from overnight.client.operations import D, Group, iteration, operation
from overnight.client.request_plan import ItemSteps, PlanSteps, paginate
from overnight.client.wait import wait_until_final
from overnight.errors import TaskFailed, WaitTimedOut
from overnight.models.account import (
    Artifact,
    Attempt,
    EditFields,
    LogChunk,
    TaskChanges,
    TaskOverrule,
    TaskRetry,
)
from overnight.models.bulk import FilterFields
from overnight.models.dags import DagRetried
from overnight.models.explain import Explanation
from overnight.models.field_errors import validate
from overnight.models.nights import TaskLife
from overnight.models.tasks import CancelResult, Event, Forecast, Task, TaskCreate, TaskFields

# How much of an artifact is read with one request.
PART_BYTES = 8 * 1024 * 1024


def task_create(title: str, fields: Mapping[str, Any]) -> TaskCreate:
    """Return the body that creates a task; raises InvalidRequest for a wrong field.

    Without an idempotency key one is generated, so that a request that is sent twice creates one
    task.
    """
    values = {"idempotency_key": f"auto-{uuid.uuid4()}", "title": title} | without_none(fields)
    return validate(TaskCreate, values)


@dataclass(frozen=True)
class _PartOfContent:
    content: bytes
    total: int
    etag: str | None


def _part_of_content(response: httpx2.Response) -> _PartOfContent:
    """Return the bytes of a response and the size of the whole content."""
    _, _, total = response.headers.get("Content-Range", "").rpartition("/")
    size = int(total) if total.isdecimal() else len(response.content)
    return _PartOfContent(response.content, size, response.headers.get("ETag"))


class Tasks(Group[D]):
    """Operations on tasks; available as `client.tasks`."""

    @operation
    def create(self, title: str, **fields: Unpack[TaskFields]) -> Call[Task]:
        """Submit a task and return it; `overnight.models.TaskCreate` describes the fields."""
        return send(Task, "POST", path("tasks"), task_create(title, fields))

    @operation
    def get(self, task_id: str) -> Call[Task]:
        """Return one task."""
        return read(Task, path("tasks", task_id))

    @iteration
    def list(
        self, *, limit: int | None = None, **criteria: Unpack[FilterFields]
    ) -> ItemSteps[Task]:
        """Yield your tasks, newest first; pages are requested as they are needed.

        Criteria: status, type, tag, project_id, source, created_after, created_before, title,
        dag_id, ended_after, ended_before, created_by, error, lock, min_cost_usd, below_cost_usd,
        min_attempts, waits_for, fingerprint. A task must match all that are given.
        """

        def get_page(size: int, cursor: str | None) -> Call[Page[Task]]:
            return read_page(Task, path("tasks"), **criteria, limit=size, before=cursor)

        yield from paginate(get_page, limit)

    @operation
    def explain(self, task_id: str) -> Call[Explanation]:
        """Return every reason why a task is not running."""
        return read(Explanation, path("tasks", task_id, "explain"))

    @operation
    def history(self, task_id: str) -> Call[TaskLife]:
        """Return what a task did or waited for in each moment of its life."""
        return read(TaskLife, path("tasks", task_id, "history"))

    @operation
    def forecast(self, task_id: str) -> Call[Forecast]:
        """Return when a task is expected to start and to end."""
        return read(Forecast, path("tasks", task_id, "forecast"))

    @operation
    def edit(self, task_id: str, *, etag: str = "*", **changes: Unpack[EditFields]) -> Call[Task]:
        """Change a task that nobody has claimed; with an ETag, only if it is still that version."""
        body = validate(TaskChanges, changes)
        return send(Task, "PATCH", path("tasks", task_id), body, {"If-Match": etag})

    @operation
    def retry(
        self,
        task_id: str,
        *,
        changes: Mapping[str, Any] | None = None,
        attempts: int | None = None,
        note: str | None = None,
    ) -> Call[DagRetried]:
        """Run a dead-lettered or cancelled task again, with the tasks that ended because of it.

        `changes` are applied first; `overnight.models.DeadLetterChanges` describes the fields.
        """
        fields = {"changes": changes, "attempts": attempts, "note": note}
        body = validate(TaskRetry, without_none(fields))
        return send(DagRetried, "POST", path("tasks", task_id, "retry"), body)

    @operation
    def overrule(self, task_id: str, *, note: str | None = None) -> Call[Task]:
        """Complete a task with the output that a validator rejected; its dependents proceed."""
        body = validate(TaskOverrule, without_none({"note": note}))
        return send(Task, "POST", path("tasks", task_id, "overrule"), body)

    @operation
    def attempts(self, task_id: str, *, limit: int = 50) -> Call[builtins.list[Attempt]]:
        """Return the latest claims of a task: who ran it, how it ended, what it cost."""
        return read_list(Attempt, path("tasks", task_id, "attempts"), limit=limit)

    @operation
    def events(
        self, task_id: str, *, after: int = 0, limit: int = 100
    ) -> Call[builtins.list[Event]]:
        """Return the events of a task so far, oldest first."""
        return read_list(Event, path("tasks", task_id, "events"), after=after, limit=limit)

    @operation
    def logs(
        self, task_id: str, *, after: str | None = None, attempt: int | None = None, limit: int = 50
    ) -> Call[builtins.list[LogChunk]]:
        """Return parts of a task's log, oldest first: what its runs printed and logged.

        `after` is the id of a part and continues after it; `attempt` is the number of a run.
        """
        url = path("tasks", task_id, "logs")
        return read_list(LogChunk, url, after=after, attempt=attempt, limit=limit)

    @iteration
    def follow_logs(
        self, task_id: str, *, after: str | None = None, attempt: int | None = None
    ) -> ItemSteps[LogChunk]:
        """Yield the parts of a task's log, past and future, until the task has ended.

        A broken connection is resumed. `after` is the id of the last part you have seen; with
        `attempt`, only the log of that run is read, and it ends with the run.
        """
        retries = self.transport.options.retries
        yield from follow_log(task_id, after=after, attempt=attempt, retries=retries)

    @operation
    def artifacts(self, task_id: str) -> Call[builtins.list[Artifact]]:
        """Return the artifacts that runs of a task have stored, without their content."""
        return read_list(Artifact, path("tasks", task_id, "artifacts"))

    @operation
    def artifact(self, artifact_id: str) -> Call[bytes]:
        """Return the content of one artifact."""
        url = path("artifacts", artifact_id, "content")
        return Call("GET", url, lambda response: response.content)

    @operation
    def artifact_details(self, artifact_id: str) -> Call[Artifact]:
        """Return one artifact without its content."""
        return read(Artifact, path("artifacts", artifact_id))

    @operation
    def save_artifact(self, artifact_id: str, file: IO[bytes]) -> PlanSteps[int]:
        """Write the content of one artifact to a file, in parts; return its size in bytes.

        Raises ArtifactChanged if a later run of its task replaces it meanwhile.
        """
        url, start, etag = path("artifacts", artifact_id, "content"), 0, None
        while True:
            headers = {"Range": f"bytes={start}-{start + PART_BYTES - 1}"}
            if etag is not None:
                headers["If-Match"] = etag
            part = yield from Call("GET", url, _part_of_content, headers=headers)
            file.write(part.content)
            start, etag = start + len(part.content), part.etag
            if start >= part.total or not part.content:
                return start

    @operation
    def delete_artifact(self, artifact_id: str) -> Call[None]:
        """Delete an artifact for good; a task that refers to it reads None."""
        return Call("DELETE", path("artifacts", artifact_id), lambda _response: None)

    @operation
    def cancel(self, task_id: str) -> Call[CancelResult]:
        """Cancel a task; a running task is requested to stop."""
        return send(CancelResult, "DELETE", path("tasks", task_id))

    @iteration
    def stream(self, task_id: str, *, after: int | None = None) -> ItemSteps[Event]:
        """Yield the events of a task, past and future, until it has ended.

        A broken connection is resumed. `after` is the id of the last event you have seen.
        """
        retries = self.transport.options.retries
        yield from follow_events(task_id=task_id, after=after or 0, retries=retries)

    @operation
    def wait(
        self,
        task_id: str,
        *,
        timeout: float | None = None,
        poll: float = 1.0,
        check: bool = True,
    ) -> PlanSteps[Task]:
        """Return the task once it has ended.

        Raises TaskFailed if it ended without success (unless `check` is False), and WaitTimedOut
        if it has not ended after `timeout` seconds; both have the attribute `task`. The service
        responds when the task ends; if it cannot, the task is read every `poll` seconds.
        """
        task = yield from wait_until_final(
            lambda: read(Task, path("tasks", task_id)),
            long_poll=lambda seconds: long_poll(
                Task, path("tasks", task_id, "wait"), seconds=seconds
            ),
            timeout=timeout,
            poll=poll,
            timed_out=WaitTimedOut,
        )
        if check and task.state != "completed":
            raise TaskFailed(task)
        return task
