"""One run outside the deployment: its context over HTTP, and how it says that it has ended."""

import base64
import json
import logging
import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, TypeVar, assert_never

from overnight import errors
from overnight.agent import calls
from overnight.client.client import AsyncClient, Client
from overnight.client.request_plan import RequestPlan
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
from overnight.handlers.spawn import ArtifactContent, Child, ChildRequest
from overnight.models.agents import ClaimedTask
from overnight.models.json_values import check_object
from overnight.models.tasks import Task

T = TypeVar("T")
# What a run is told with a beat, and why it then stops.
TOLD = {"cancel": "cancelled", "budget": "budget", "hand_back": "window_closed"}
MAX_TEXT = 10_000
RELEASE_REASONS = frozenset({"budget", "cancelled", "window_closed"})
Report = tuple[str, dict[str, Any]]
_log = logging.getLogger("overnight.agent")


class OutsideContext(Context):
    """A run as its handler sees it, spoken for over HTTP; `deadline` is monotonic."""

    def __init__(self, client: Client, work: ClaimedTask) -> None:
        prompt = work.spec.get("prompt", "")
        super().__init__(
            task_id=work.task_id,
            type=work.type,
            title=work.title,
            payload=work.payload,
            prompt=prompt if isinstance(prompt, str) else "",
            attempt=work.attempt,
            max_attempts=work.max_attempts,
            epoch=work.epoch,
            inputs=_inputs(work),
            ceiling_usd=work.ceiling_usd,
        )
        self._client = client
        self._work = work
        self._deadline = time.monotonic() + work.timeout_seconds
        self._trusted_until = time.monotonic() + work.lease_seconds
        self._stop_reason: str | None = None
        self._news: dict[str, Any] | None = None
        self._lock = Lock()
        self.cost_usd = 0.0
        self.tokens = {"input": 0, "output": 0}

    def _claim_token(self) -> str | None:
        return self._work.token

    @property
    def stop_reason(self) -> str | None:
        """Why the run should end, or None."""
        return self._stop_reason

    @property
    def seconds_left(self) -> float:
        """How long the run may still take."""
        return max(0.0, self._deadline - time.monotonic())

    @property
    def usd_left(self) -> float | None:
        """What is left of the task's ceiling."""
        if self.ceiling_usd is None:
            return None
        return max(0.0, round(self.ceiling_usd - self._work.spent_usd - self.cost_usd, 6))

    def stop(self, reason: str) -> None:
        """Ask the handler to come to an end; what was lost stays lost."""
        if self._stop_reason != "lost":
            self._stop_reason = reason

    def beat(self) -> None:
        """Say that the run goes on, with what is new of it, and hear whether it may.

        A lease that nobody could renew in time counts as lost: somebody else may have the task.
        """
        with self._lock:
            news, self._news = self._news, None
            said = {"progress": news, "cost_usd": self.cost_usd or None}
        sent_at = time.monotonic()
        try:
            answer = self._call(calls.send_run_heartbeat, _given(said))
        except errors.StaleAttempt:
            self.stop("lost")
        except errors.OvernightError as error:
            _log.warning("heartbeat of %s failed: %s", self.task_id, error)
            with self._lock:
                self._news = self._news or news
        else:
            self._trusted_until = sent_at + answer.lease_seconds
            if answer.answer in TOLD:
                self.stop(TOLD[answer.answer])
        now = time.monotonic()
        if now >= self._trusted_until:
            self.stop("lost")
        elif now >= self._deadline:
            self.stop("timeout")

    def progress(
        self, fraction: float | None = None, message: str | None = None, **data: object
    ) -> None:
        """Keep the latest word for the next heartbeat; what cannot be stored is refused here."""
        said = {"fraction": fraction, "message": message, **data}
        known = check_object({name: value for name, value in said.items() if value is not None})
        with self._lock:
            self._news = json.loads(json.dumps(known))

    def log(self, message: str, **fields: object) -> None:
        """Write one line to the agent's log, under the task's name."""
        _log.info("%s %s %s", self.task_id, message, fields or "")

    def cost(self, usd: float, *, input_tokens: int = 0, output_tokens: int = 0) -> None:
        """Add up what model calls cost; at the ceiling the run is asked to end."""
        check_cost(usd)
        with self._lock:
            self.cost_usd += usd
            self.tokens["input"] += input_tokens
            self.tokens["output"] += output_tokens
        if usd > 0 and self.usd_left == 0:
            self.stop("budget")

    @property
    def spent(self) -> dict[str, Any]:
        """What the run has cost, as every end of it says."""
        return {"cost_usd": round(self.cost_usd, 6), "tokens": dict(self.tokens)}

    def _call(self, make: Callable[..., RequestPlan[T]], *said: object) -> T:
        return self._client.call(make(self._work.task_id, self._work.token, *said))

    def _asked(self, make: Callable[..., RequestPlan[T]], *said: object) -> T:
        """Ask for the run; a claim that is lost, or a stop, ends the handler here."""
        try:
            return self._call(make, *said)
        except errors.StaleAttempt:
            self.stop("lost")
            raise Stopped("lost") from None
        except errors.TaskStopping:
            raise Stopped("cancelled") from None

    def _read_inputs(self) -> dict[str, Any]:
        return _inputs(self._work)

    def _look(self, children: Sequence[str] | None) -> list[Child]:
        found = [Child(**one.model_dump()) for one in self._asked(calls.children)]
        if children is None:
            return found
        known = {one.id: one for one in found}
        for one in children:
            if one not in known:
                raise errors.InvalidRequest(
                    "children", f"{one} was not spawned by this task", legal="own children"
                )
        return [known[one] for one in children]

    def _spawn(self, wish: ChildRequest) -> str:
        said = {
            "task": wish.task.model_dump(mode="json", exclude_unset=True),
            "key": wish.key,
            "depends_on": list(wish.depends_on),
        }
        return self._asked(calls.spawn, said).id

    def _keep(self, name: str, content: ArtifactContent) -> str:
        is_text = content.kind != "bytes"
        text = content.raw.decode() if is_text else base64.b64encode(content.raw).decode()
        said = {"name": name, "kind": content.kind, "content": text}
        return self._asked(calls.store_artifact, said).id


def _inputs(work: ClaimedTask) -> dict[str, Any]:
    """Return what a run may read, bytes as bytes again."""
    return work.inputs | {name: base64.b64decode(work.inputs[name]) for name in work.base64_inputs}


class ClaimedRun:
    """A running task's own hands for the MCP server: what `overnight.mcp.server.Run` asks for."""

    def __init__(self, client: AsyncClient, task_id: str, token: str) -> None:
        self._client = client
        self._task_id = task_id
        self._token = token

    async def spawn(self, title: str, fields: dict[str, Any]) -> Task:
        """Queue a subtask in the task's own graph."""
        said = {"task": {"title": title, **fields}}
        return await self._client.call(calls.spawn(self._task_id, self._token, said))

    async def progress(self, fraction: float | None, message: str | None) -> None:
        """Tell watchers how far the work is; it counts as a sign of life too."""
        said = {"progress": _given({"fraction": fraction, "message": message})}
        await self._client.call(calls.send_run_heartbeat(self._task_id, self._token, said))


def report_of(context: OutsideContext, outcome: Outcome) -> Report:
    """Return which request reports the outcome of a run, and its body."""
    match outcome:
        case HandlerReturned():
            body = {
                "output": outcome.output,
                "summary": outcome.summary,
                "files_changed": list(outcome.files_changed) or None,
            }
            # An output of None is reported, unlike a summary that is missing.
            return "complete", {"output": None, **_given(body), **context.spent}
        case HandlerFailed():
            body = {
                "error": outcome.message[:MAX_TEXT],
                "error_class": outcome.error_class,
                "error_type": outcome.error_type,
                "detail": outcome.detail[-MAX_TEXT:] or None,
                "retryable": outcome.retryable,
                "retry_after": outcome.retry_after,
            }
            return "fail", {**_given(body), **context.spent}
        case HandlerDeferred():
            body = {
                "error": outcome.message[:MAX_TEXT],
                "error_class": outcome.error_class,
                "retry_after": outcome.after_seconds,
            }
            return "fail", {**body, **context.spent}
        case HandlerSuspended():
            return "suspend", {"tasks": list(outcome.tasks), **context.spent}
        case HandlerStopped(reason="timeout"):
            return "fail", {"error": "Timeout", "error_class": "timeout", **context.spent}
        case HandlerStopped(reason=reason):
            released = reason if reason in RELEASE_REASONS else "shutdown"
            return "release", {"reason": released, **context.spent}
        case _:
            assert_never(outcome)


def _given(said: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in said.items() if value is not None}
