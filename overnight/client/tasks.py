"""What can be done with tasks; reached as `client.tasks`."""

import builtins
from typing import Unpack

from overnight.client import task_calls
from overnight.client.account_calls import asked, path, read_list, send
from overnight.client.event_stream import follow
from overnight.client.operations import D, Group, operation, series
from overnight.client.pagination import paged
from overnight.client.scripts import Series, Steps
from overnight.client.task_calls import Call
from overnight.client.wait import until_ended
from overnight.errors import TaskFailed, WaitTimedOut
from overnight.models.account import Artifact, Attempt, EditFields, TaskChanges
from overnight.models.bulk import FilterFields
from overnight.models.explain import Explanation
from overnight.models.tasks import CancelResult, Event, Forecast, Task, TaskFields


class Tasks(Group[D]):
    """What can be done with tasks; reached as `client.tasks`."""

    @operation
    def create(self, title: str, **fields: Unpack[TaskFields]) -> Call[Task]:
        """Queue a task and return it; `overnight.models.tasks.TaskCreate` describes the fields."""
        return task_calls.create_task({"title": title, **fields})

    @operation
    def get(self, task_id: str) -> Call[Task]:
        """Return one task as it stands."""
        return task_calls.get_task(task_id)

    @series
    def list(self, *, limit: int | None = None, **chosen: Unpack[FilterFields]) -> Series[Task]:
        """Yield your tasks, newest first, fetching page after page as they are needed.

        Only those for which all that is named holds: status, type, tag, project_id, source,
        created_after, created_before, title.
        """

        def ask(size: int, cursor: str | None) -> Call[task_calls.Page[Task]]:
            return task_calls.list_tasks(chosen, limit=size, before=cursor)

        yield from paged(ask, limit)

    @operation
    def explain(self, task_id: str) -> Call[Explanation]:
        """Return every reason a task is not running."""
        return task_calls.explain_task(task_id)

    @operation
    def forecast(self, task_id: str) -> Call[Forecast]:
        """Return when a task is expected to start and to end."""
        return task_calls.forecast_task(task_id)

    @operation
    def edit(self, task_id: str, *, etag: str = "*", **changes: Unpack[EditFields]) -> Call[Task]:
        """Change a task that nobody has yet; an ETag refuses it if the task has changed since."""
        body = asked(TaskChanges, changes)
        return send(Task, "PATCH", path("tasks", task_id), body, {"If-Match": etag})

    @operation
    def attempts(self, task_id: str, *, limit: int = 50) -> Call[builtins.list[Attempt]]:
        """Return the latest claims of a task: who ran it, how it ended, what it cost."""
        return read_list(Attempt, path("tasks", task_id, "attempts"), limit=limit)

    @operation
    def events(
        self, task_id: str, *, after: int = 0, limit: int = 100
    ) -> Call[builtins.list[Event]]:
        """Return what happened to a task so far, the oldest first."""
        return read_list(Event, path("tasks", task_id, "events"), after=after, limit=limit)

    @operation
    def artifacts(self, task_id: str) -> Call[builtins.list[Artifact]]:
        """Return what the runs of a task made for others to read."""
        return read_list(Artifact, path("tasks", task_id, "artifacts"))

    @operation
    def artifact(self, artifact_id: str) -> Call[bytes]:
        """Return what one artifact holds."""
        return Call("GET", path("artifacts", artifact_id, "content"), lambda answer: answer.content)

    @operation
    def cancel(self, task_id: str) -> Call[CancelResult]:
        """Ask that a task be ended; one that runs is stopped at its next heartbeat."""
        return task_calls.cancel_task(task_id)

    @series
    def stream(self, task_id: str, *, after: int | None = None) -> Series[Event]:
        """Yield what happened to a task and what happens, until it has ended.

        A broken connection is opened again where it broke. `after` is the id of an event you
        have seen already.
        """
        retries = self.driver.patience.retries
        yield from follow(task_id=task_id, after=after or 0, retries=retries)

    @operation
    def wait(
        self,
        task_id: str,
        *,
        timeout: float | None = None,
        poll: float = 1.0,
        check: bool = True,
    ) -> Steps[Task]:
        """Return the task once it has ended; the service answers the moment it does.

        Raises TaskFailed if it ended without success (unless `check` is off), and
        WaitTimedOut if it had not ended after `timeout` seconds; both carry the task. A service
        that cannot hold answers back is asked every `poll` seconds.
        """
        task = yield from until_ended(
            lambda seconds: task_calls.wait_task(task_id, seconds=seconds),
            lambda: task_calls.get_task(task_id),
            timeout=timeout,
            poll=poll,
            late=WaitTimedOut,
        )
        if check and task.state != "completed":
            raise TaskFailed(task)
        return task
