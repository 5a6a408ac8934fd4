"""The handles that `delay` and `apply_async` return: they answer as Celery's results do.

A handle asks the service each time, so it works in any process that knows the task's id.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from celery import states
from celery.exceptions import ChordError, TaskRevokedError
from celery.exceptions import TimeoutError as CeleryTimeoutError
from celery.result import ResultBase

from overnight.celery.current_run import current_run
from overnight.celery.task_fields import ID_TAG
from overnight.celery.values import decoded, exception_from
from overnight.errors import NotFromCelery, Refused, TaskNotFound, WaitTimedOut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from celery import Celery

    from overnight.client.client import Client
    from overnight.models.tasks import Task

TASK_PREFIX = "task_"
# Between the id of a canvas that came through the inbox and the name of one of its tasks.
MEMBER = "/"
# The reason of a dead letter that did not start in time, which Celery calls revoked.
EXPIRED = "deadline_exceeded"
POLL_SECONDS = 0.5
STATES = {
    "running": states.STARTED,
    "validating": states.STARTED,
    "retrying": states.RETRY,
    "completed": states.SUCCESS,
    "dead_lettered": states.FAILURE,
    "cancelled": states.REVOKED,
}
CONFLICT = 409
TIMED_OUT = "The operation timed out."
WAITING_IN_A_TASK = (
    "Never call result.get() within a task: write a chain or a chord, whose tasks get the results"
)


class DurableResult(ResultBase):
    """A submitted task: its id, its state and its result."""

    def __init__(
        self,
        task_id: str,
        app: Celery,
        client: Callable[[], Client],
        parent: DurableResult | DurableGroupResult | None = None,
    ) -> None:
        self.id = self.task_id = task_id
        self.app = app
        self.parent = self.before = parent
        self._client = client
        self._last: Task | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DurableResult) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __str__(self) -> str:
        return self.id

    @property
    def state(self) -> str:
        """Celery's name of the state: PENDING, STARTED, RETRY, SUCCESS, FAILURE or REVOKED."""
        task = self._task()
        if task is None:
            return states.PENDING
        if self._failed_header(task) is not None:
            return states.FAILURE
        is_expired = task.state == "dead_lettered" and task.failure_reason == EXPIRED
        return states.REVOKED if is_expired else STATES.get(task.state, states.PENDING)

    status = state

    @property
    def result(self) -> Any:
        """The return value, or the exception of a task that failed; None while it has not ended."""
        match self.state:
            case states.SUCCESS:
                task = self._task()
                return None if task is None else decoded(task.output)
            case states.FAILURE:
                return self._exception()
            case states.REVOKED:
                return TaskRevokedError("revoked")
            case _:
                return None

    @property
    def info(self) -> Any:
        """The result; while the task runs, what it reported with `update_state`."""
        task = self._task()
        if task is not None and not task.is_final and task.progress:
            return task.progress
        return self.result

    @property
    def traceback(self) -> str | None:
        """The traceback of the latest run, if it failed."""
        return self._detail() or None

    @property
    def graph_id(self) -> str | None:
        """The id of the task's graph in Overnight; None while the task is not known."""
        task = self._task()
        return None if task is None else task.dag_id

    def ready(self) -> bool:
        """Whether the task has ended."""
        return self.state in states.READY_STATES

    def successful(self) -> bool:
        """Whether the task has ended with success."""
        return self.state == states.SUCCESS

    def failed(self) -> bool:
        """Whether the task has failed for good."""
        return self.state == states.FAILURE

    def get(self, timeout: float | None = None, *, propagate: bool = True, **options: Any) -> Any:
        """Wait until the task has ended and return its result; raise its exception if it failed.

        Raises celery.exceptions.TimeoutError after `timeout` seconds, TaskRevokedError for a task
        that was revoked or expired, and for a task after a failed one the exception of that one.
        With `propagate=False` an exception of the task is returned. Celery's options about polling
        have no effect.
        """
        _check_wait(options)
        self._wait(timeout)
        if propagate:
            self.maybe_throw()
        return self.result

    wait = get

    def maybe_throw(self, *, propagate: bool = True, **_: Any) -> Any:
        """Raise the exception of the task, or of a task before it, if it failed."""
        parent = self.before
        if propagate and parent is not None:
            parent.maybe_throw()
        result = self.result
        if propagate and isinstance(result, BaseException) and not self.successful():
            raise result
        return result

    def revoke(self, *_: Any, **__: Any) -> None:
        """Cancel the task, also while it waits or runs; a task that has ended stays as it is."""
        task = self._task()
        if task is not None and not task.is_final:
            try:
                self._client().tasks.cancel(task.id)
            except Refused as error:
                if error.status != CONFLICT:
                    raise

    @property
    def date_done(self) -> datetime | None:
        """When the task ended, with its time zone; None while it has not."""
        task = self._task()
        return None if task is None else task.completed_at

    @property
    def children(self) -> list[ResultBase]:
        """Refused: a task does not know the handles of tasks that its function sent."""
        raise NotFromCelery("children", "return the ids of the tasks that the function sends")

    def collect(self, *_: Any, **__: Any) -> None:
        """Refused, as `children` is."""
        raise NotFromCelery("collect()", "return the ids of the tasks that the function sends")

    def forget(self) -> None:
        """Refused: results are kept with their tasks."""
        raise NotFromCelery("forget()", "leave it out; old tasks go by the retention rules")

    def then(self, *_: Any, **__: Any) -> None:
        """Refused: callbacks of a process are lost with it."""
        raise NotFromCelery("then()", "write a chain: the second task starts after the first")

    def _wait(self, timeout: float | None) -> None:
        started = time.monotonic()
        while (task := self._task()) is None or not task.is_final:
            left = None if timeout is None else timeout - (time.monotonic() - started)
            if task is None:
                # Written in a transaction that is not committed, or was rolled back.
                if left is not None and left <= 0:
                    raise CeleryTimeoutError(TIMED_OUT)
                time.sleep(POLL_SECONDS)
            else:
                self._wait_for(task.id, left)

    def _wait_for(self, task_id: str, timeout: float | None) -> None:
        """Wait until a task has ended: this one, or the one that will spawn it."""
        left = None if timeout is None else max(0.0, timeout)
        tasks = self._client().tasks
        try:
            ended = tasks.wait(task_id, timeout=left, poll=POLL_SECONDS, check=False)
        except WaitTimedOut as error:
            raise CeleryTimeoutError(TIMED_OUT) from error
        if MEMBER not in self.id:
            self._last = ended

    def _task(self) -> Task | None:
        """Return the task as it is now; once it has ended it is not read again."""
        if self._last is not None and self._last.is_final:
            return self._last
        root, _, name = self.id.partition(MEMBER)
        self._last = self._read(root)
        if name and self._last is not None and self._last.state == "completed":
            # The task that came through the inbox has spawned those of its canvas.
            self._last = self._read(self._last.output[name])
        return self._last

    def _read(self, task_id: str) -> Task | None:
        client = self._client()
        if not task_id.startswith(TASK_PREFIX):
            return next(iter(client.tasks.list(tag=ID_TAG + task_id, limit=1)), None)
        try:
            return client.tasks.get(task_id)
        except TaskNotFound:
            return None

    def _exception(self) -> BaseException:
        task = self._task()
        if task is not None and (failed := self._failed_header(task)) is not None:
            return ChordError(f"Dependency {failed.id} raised {failed.result!r}")
        error = exception_from(self.app, self._detail())
        if error is None:
            # It did not end in the function: its worker died, or it exceeded its time limit.
            text = "" if task is None else f"{task.failure_reason}: {task.error}"
            error = RuntimeError(text)
        return error

    def _failed_header(self, task: Task) -> DurableResult | None:
        """Return the failed task of a chord's header that kept this task from running."""
        if task.state != "cancelled" or not isinstance(self.before, DurableGroupResult):
            return None
        return next(self.before.failures(), None)

    def _detail(self) -> str:
        if (task := self._task()) is None:
            return ""
        attempts = self._client().tasks.attempts(task.id, limit=1)
        return (attempts[0].detail or "") if attempts else ""


def _check_wait(options: Mapping[str, Any]) -> None:
    """Raise an error where a wait would never end, and for callbacks of a wait."""
    if current_run() is not None:
        raise RuntimeError(WAITING_IN_A_TASK)
    for name in ("callback", "on_message"):
        if options.get(name) is not None:
            raise NotFromCelery(f"get({name}=…)", "call the function with what get() returns")


class DurableGroupResult(ResultBase):
    """The handles of the tasks of a group, in order."""

    def __init__(
        self,
        group_id: str,
        results: Sequence[DurableResult | DurableGroupResult],
        parent: DurableResult | DurableGroupResult | None = None,
    ) -> None:
        self.id = group_id
        self.results = self.children = list(results)
        self.parent = self.before = parent

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.id} [{', '.join(map(str, self.results))}]>"

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[DurableResult | DurableGroupResult]:
        return iter(self.results)

    def __getitem__(self, index: int) -> DurableResult | DurableGroupResult:
        return self.results[index]

    def ready(self) -> bool:
        """Whether all tasks have ended."""
        return all(each.ready() for each in self.results)

    def successful(self) -> bool:
        """Whether all tasks have ended with success."""
        return all(each.successful() for each in self.results)

    def failed(self) -> bool:
        """Whether a task has failed for good."""
        return any(each.failed() for each in self.results)

    def waiting(self) -> bool:
        """Whether a task has not ended."""
        return not self.ready()

    def completed_count(self) -> int:
        """Return how many tasks have ended with success."""
        return sum(
            each.completed_count() if isinstance(each, DurableGroupResult) else each.successful()
            for each in self.results
        )

    def get(
        self, timeout: float | None = None, *, propagate: bool = True, **options: Any
    ) -> list[Any]:
        """Wait until all tasks have ended and return their results in order."""
        _check_wait(options)
        started = time.monotonic()
        values = []
        for each in self.results:
            left = None if timeout is None else max(0.0, timeout - (time.monotonic() - started))
            values.append(each.get(left, propagate=propagate))
        return values

    join = join_native = get

    def maybe_throw(self, **_: Any) -> None:
        """Raise the exception of the first task that failed."""
        for each in self.results:
            each.maybe_throw()

    def failures(self) -> Iterator[DurableResult]:
        """Yield the handles of the tasks that failed."""
        for each in self.results:
            if isinstance(each, DurableGroupResult):
                yield from each.failures()
            elif each.failed():
                yield each

    def revoke(self, *_: Any, **__: Any) -> None:
        """Cancel all tasks that have not ended."""
        for each in self.results:
            each.revoke()

    def forget(self) -> None:
        """Refused: results are kept with their tasks."""
        raise NotFromCelery("forget()", "leave it out; old tasks go by the retention rules")

    def save(self, *_: Any, **__: Any) -> None:
        """Refused: a group needs no result backend to be found again."""
        raise NotFromCelery("save()", "keep the ids of the tasks, and use app.AsyncResult(id)")
