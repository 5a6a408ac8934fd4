"""One run of a pull agent: the handler's context over HTTP, and the report of how it ended."""

import base64
import json
import logging
import time
from collections.abc import Callable, Sequence
from threading import Event, Lock
from typing import Any, TypeVar, assert_never

from overnight import errors
from overnight.agent import calls
from overnight.agent.log_lines import LogLines
from overnight.client.calls import without_none
from overnight.client.client import AsyncClient, Client
from overnight.client.request_plan import RequestPlan
from overnight.client.retry import is_temporary
from overnight.handlers.context import Context, check_cost
from overnight.handlers.control_exceptions import Stopped
from overnight.handlers.outcome import (
    HandlerDeferred,
    HandlerFailed,
    HandlerReturned,
    HandlerStopped,
    HandlerSuspended,
    Outcome,
)
from overnight.handlers.spawn import ArtifactContent, ChildRequest
from overnight.models.agents import Child, ClaimedTask
from overnight.models.field_types import LONGEST_WAIT_SECONDS
from overnight.models.json_values import check_object, storable_text
from overnight.models.tasks import Task
from overnight.models.validation import Feedback

T = TypeVar("T")
# The stop reason for each reply to a heartbeat that ends the run.
STOP_REASONS = {"cancel": "cancelled", "budget": "budget", "hand_back": "window_closed"}
# What the service accepts: longer texts of a handler are cut, so that its report is not refused.
MAX_TEXT = 10_000
MAX_NAME = 100
# The stop reasons that a release may have on the wire; all others are sent as shutdown.
RELEASE_REASONS = frozenset({"budget", "cancelled", "window_closed"})
# What to report: the action of `calls.report`, and the fields of its body.
Report = tuple[str, dict[str, Any]]
_log = logging.getLogger("overnight.agent")


class AgentContext(Context):
    """The context of a run of a pull agent; it reads and reports over HTTP."""

    def __init__(self, client: Client, task: ClaimedTask) -> None:
        prompt = task.spec.get("prompt", "")
        super().__init__(
            task_id=task.task_id,
            type=task.type,
            title=task.title,
            payload=task.payload,
            prompt=prompt if isinstance(prompt, str) else "",
            spec=task.spec,
            attempt=task.attempt,
            max_attempts=task.max_attempts,
            epoch=task.epoch,
            inputs=_inputs(task),
            ceiling_usd=task.ceiling_usd,
        )
        self._client = client
        self._task = task
        # Both are times of the monotonic clock.
        self._deadline = time.monotonic() + task.timeout_seconds
        self._lease_ends_at = time.monotonic() + task.lease_seconds
        self._stop_reason: str | None = None
        self._unsent_progress: dict[str, Any] | None = None
        self._lock = Lock()
        self._log_lines = LogLines()
        self._log_sender = Lock()
        # Set when something should be reported before the next heartbeat is due.
        self.wake_heartbeat = Event()
        self.cost_usd = 0.0
        self.tokens = {"input": 0, "output": 0}

    def _claim_token(self) -> str | None:
        return self._task.token

    @property
    def feedback(self) -> Feedback | None:
        """Why the output of the latest rejected attempt was rejected; None if none was."""
        return self._task.feedback

    @property
    def stop_reason(self) -> str | None:
        """Why the run should end; None while it may continue."""
        return self._stop_reason

    @property
    def seconds_left(self) -> float:
        """The seconds until the run's timeout."""
        return max(0.0, self._deadline - time.monotonic())

    @property
    def usd_left(self) -> float | None:
        """What remains of the task's ceiling; None without a ceiling."""
        if self.ceiling_usd is None:
            return None
        return max(0.0, round(self.ceiling_usd - self._task.spent_usd - self.cost_usd, 6))

    def stop(self, reason: str) -> None:
        """Request the handler to stop; the reason `lost` is never replaced by another."""
        if self._stop_reason != "lost":
            self._stop_reason = reason
            self._report_stop(reason)

    def send_heartbeat(self) -> None:
        """Report that the run continues, with new progress, and read whether it may.

        A lease that could not be renewed in time counts as lost, because another run may have
        the task.
        """
        with self._lock:
            progress, self._unsent_progress = self._unsent_progress, None
            fields = {"progress": progress, "cost_usd": self.cost_usd or None}
        sent_at = time.monotonic()
        try:
            reply = self._call(calls.send_run_heartbeat, without_none(fields))
        except errors.StaleAttempt:
            self.stop("lost")
        except errors.OvernightError as error:
            _log.warning("heartbeat of %s failed: %s", self.task_id, error)
            with self._lock:
                self._unsent_progress = self._unsent_progress or progress
        else:
            self._lease_ends_at = sent_at + reply.lease_seconds
            if reply.answer in STOP_REASONS:
                self.stop(STOP_REASONS[reply.answer])
        now = time.monotonic()
        if now >= self._lease_ends_at:
            self.stop("lost")
        elif now >= self._deadline:
            self.stop("timeout")

    def progress(
        self, fraction: float | None = None, message: str | None = None, **data: object
    ) -> None:
        """Keep the report for a heartbeat soon; raises ValueError if it cannot be stored."""
        fields = without_none({"fraction": fraction, "message": message, **data})
        report = json.loads(json.dumps(check_object(fields)))
        with self._lock:
            self._unsent_progress = report
        self.wake_heartbeat.set()

    def log(self, message: str, **fields: object) -> None:
        """Write one line to the run's log soon, and to the agent's log with the task's id."""
        _log.info("%s %s %s", self.task_id, message, fields or "")
        self._log_lines.add(message, fields)
        self.wake_heartbeat.set()

    def send_log(self) -> None:
        """Send the lines that were logged; what the service does not take now is kept."""
        # The last lines of a run wait here for those that are being sent.
        with self._log_sender:
            while text := self._log_lines.take():
                try:
                    self._call(calls.append_log, {"text": text})
                except errors.StaleAttempt:
                    return
                except errors.OvernightError as error:
                    if is_temporary(error):
                        self._log_lines.put_back(text)
                    _log.warning("the log of %s was not sent: %s", self.task_id, error)
                    return

    def cost(self, usd: float, *, input_tokens: int = 0, output_tokens: int = 0) -> None:
        """Add to the costs and report them; the run is requested to stop if a budget is used up."""
        check_cost(usd)
        with self._lock:
            self.cost_usd += usd
            self.tokens["input"] += input_tokens
            self.tokens["output"] += output_tokens
        if usd > 0:
            self.send_heartbeat()
            if self.usd_left == 0:
                self.stop("budget")

    @property
    def cost_fields(self) -> dict[str, Any]:
        """The cost of the run, as every report of its end has it."""
        return {"cost_usd": round(self.cost_usd, 6), "tokens": dict(self.tokens)}

    def _call(self, make: Callable[..., RequestPlan[T]], *args: object) -> T:
        return self._client.call(make(self._task.task_id, self._task.token, *args))

    def _call_or_stop(self, make: Callable[..., RequestPlan[T]], *args: object) -> T:
        """Make a call for the handler; raises Stopped if the claim is lost or cancelled."""
        try:
            return self._call(make, *args)
        except errors.StaleAttempt:
            self.stop("lost")
            raise Stopped("lost") from None
        except errors.TaskStopping:
            raise Stopped("cancelled") from None

    def _read_inputs(self) -> dict[str, Any]:
        return _inputs(self._task)

    def _read_children(self, ids: Sequence[str] | None) -> list[Child]:
        children = self._call_or_stop(calls.children)
        if ids is None:
            return children
        by_id = {child.id: child for child in children}
        for task_id in ids:
            if task_id not in by_id:
                raise errors.InvalidRequest(
                    "children", f"{task_id} was not spawned by this task", legal="own children"
                )
        return [by_id[task_id] for task_id in ids]

    def _spawn(self, request: ChildRequest) -> str:
        fields = {
            "task": request.task.model_dump(mode="json", exclude_unset=True),
            "key": request.key,
            "depends_on": list(request.depends_on),
        }
        return self._call_or_stop(calls.spawn, fields).id

    def _store_artifact(self, name: str, content: ArtifactContent) -> str:
        is_text = content.kind != "bytes"
        text = content.raw.decode() if is_text else base64.b64encode(content.raw).decode()
        fields = {"name": name, "kind": content.kind, "content": text}
        return self._call_or_stop(calls.store_artifact, fields).id


def _inputs(task: ClaimedTask) -> dict[str, Any]:
    """Return the inputs of a run, with base 64 decoded to bytes."""
    return task.inputs | {name: base64.b64decode(task.inputs[name]) for name in task.base64_inputs}


class ClaimedRun:
    """A task for the MCP server: implements `overnight.mcp.server.CurrentTask` over HTTP."""

    def __init__(self, client: AsyncClient, task_id: str, token: str) -> None:
        self._client = client
        self._task_id = task_id
        self._token = token

    async def spawn(self, title: str, fields: dict[str, Any]) -> Task:
        """Add a subtask to the graph of the running task."""
        body = {"task": {"title": title, **fields}}
        return await self._client.call(calls.spawn(self._task_id, self._token, body))

    async def progress(self, fraction: float | None, message: str | None) -> None:
        """Report progress, which is also a heartbeat."""
        body = {"progress": without_none({"fraction": fraction, "message": message})}
        await self._client.call(calls.send_run_heartbeat(self._task_id, self._token, body))


def report_of(context: AgentContext, outcome: Outcome) -> Report:
    """Return which request reports the outcome of a run, and its body."""
    match outcome:
        case HandlerReturned():
            body = {
                "output": outcome.output,
                "summary": outcome.summary,
                "files_changed": list(outcome.files_changed) or None,
            }
            # An output of None is reported, unlike a summary that is missing.
            return "complete", {"output": None, **without_none(body), **context.cost_fields}
        case HandlerFailed():
            body = {
                "error": storable_text(outcome.message, MAX_TEXT),
                "error_class": storable_text(outcome.error_class, MAX_NAME) or "error",
                "error_type": storable_text(outcome.error_type, MAX_NAME),
                "detail": storable_text(outcome.detail[-MAX_TEXT:], MAX_TEXT) or None,
                "retryable": outcome.retryable,
                "retry_after": _bounded_wait(outcome.retry_after),
            }
            return "fail", {**without_none(body), **context.cost_fields}
        case HandlerDeferred():
            body = {
                "error": storable_text(outcome.message, MAX_TEXT),
                "error_class": outcome.error_class,
                "retry_after": _bounded_wait(outcome.after_seconds),
            }
            return "fail", {**body, **context.cost_fields}
        case HandlerSuspended():
            return "suspend", {"tasks": list(outcome.tasks), **context.cost_fields}
        case HandlerStopped(reason="timeout"):
            return "fail", {"error": "Timeout", "error_class": "timeout", **context.cost_fields}
        case HandlerStopped(reason=reason):
            released = reason if reason in RELEASE_REASONS else "shutdown"
            return "release", {"reason": released, **context.cost_fields}
        case _:
            assert_never(outcome)


def _bounded_wait(seconds: float | None) -> float | None:
    return None if seconds is None else min(seconds, LONGEST_WAIT_SECONDS)
