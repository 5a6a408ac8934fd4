"""The context of a run in a worker: what a handler reads and reports, and when it must stop."""

import json
import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Final

from overnight.handlers.context import Context, check_cost
from overnight.handlers.spawn import ArtifactContent, ChildRequest
from overnight.models.agents import Child
from overnight.models.json_values import check_object
from overnight.models.validation import Feedback
from overnight_server.control.claim_tokens import token_of
from overnight_server.domain.claims import Run
from overnight_server.domain.ids import show_task
from overnight_server.mask import mask_secrets
from overnight_server.telemetry import fields_of_others, get, text_line
from overnight_worker.run_log import RunLog
from overnight_worker.task_graph import RunGraph

_log = get("overnight.handler")
# What one run may write to the log of its worker, in characters: that log is the operator's.
MAX_WORKER_LOG: Final = 256 * 1024


class RunContext(Context):
    """A run as its handler sees it; the heartbeat thread reads the progress and cost it reports.

    `deadline` is an instant of the monotonic clock. `send_soon` is called when a report may wait
    for others, at most half a second; `send_cost` returns when a cost is sent and the budgets are
    checked.
    """

    def __init__(
        self,
        run: Run,
        *,
        deadline: float,
        graph: RunGraph | None = None,
        send_soon: Callable[[], None] | None = None,
        send_cost: Callable[[], None] | None = None,
        run_log: RunLog | None = None,
    ) -> None:
        prompt = run.spec.get("prompt", "")
        super().__init__(
            task_id=show_task(run.claim.task_id),
            type=run.type,
            title=run.title,
            payload=run.payload,
            prompt=prompt if isinstance(prompt, str) else "",
            spec=run.spec,
            attempt=run.attempt,
            max_attempts=run.max_attempts,
            epoch=run.claim.epoch,
            ceiling_usd=run.ceiling_usd,
            # Read when first used; a task without edges and references has none.
            inputs=None if run.is_linked else {},
        )
        self._claim = run.claim
        # Whether an earlier attempt may have been rejected, and why, once it is read.
        self._may_have_feedback = run.attempts > 0
        self._feedback: Feedback | None = None
        self._graph = graph
        self._send_soon = send_soon
        self._send_cost = send_cost
        self._run_log = run_log
        self.user_id = run.user_id
        self.cost_usd = 0.0
        self.reported_usd = 0.0
        self._spent_before = run.spent_usd
        self.tokens: dict[str, int] = {}
        self._deadline = deadline
        self._stop_reason: str | None = None
        self._progress: dict[str, Any] | None = None
        self._worker_log_left = MAX_WORKER_LOG
        self._lock = Lock()

    def _claim_token(self) -> str | None:
        return token_of(self._claim)

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
        """How much of the task's cost ceiling is left, None without a ceiling."""
        if self.ceiling_usd is None:
            return None
        return max(0.0, round(self.ceiling_usd - self._spent_before - self.cost_usd, 6))

    @property
    def at_ceiling(self) -> bool:
        """Whether this run has cost something and nothing of the ceiling is left."""
        return self.cost_usd > 0 and self.usd_left == 0

    def stop(self, reason: str) -> None:
        """Request the handler to end; a stronger reason replaces a weaker one."""
        self._stop_reason = reason
        self._report_stop(reason)

    def progress(
        self, fraction: float | None = None, message: str | None = None, **data: object
    ) -> None:
        """Keep the latest progress for a heartbeat soon; raise if it cannot be stored."""
        fields = {"fraction": fraction, "message": message, **data}
        latest = check_object({name: value for name, value in fields.items() if value is not None})
        # Copied, because the handler may go on changing what it passed.
        copied = json.loads(json.dumps(mask_secrets(latest)))
        with self._lock:
            is_first, self._progress = self._progress is None, copied
        # A report that waits already is replaced; one wake-up for both is enough.
        if is_first and self._send_soon is not None:
            self._send_soon()

    def take_progress(self) -> dict[str, Any] | None:
        """Return and clear the latest progress; None if there is none since the last call."""
        with self._lock:
            progress, self._progress = self._progress, None
        return progress

    def restore_progress(self, progress: dict[str, Any] | None) -> None:
        """Keep progress whose heartbeat failed, unless newer progress was reported."""
        with self._lock:
            self._progress = self._progress or progress

    def log(self, message: str, **fields: object) -> None:
        """Write one line to the run's log, and to the worker's log with the task's id.

        A run that logs very much continues in its own log only.
        """
        line = text_line("info", message, fields)
        self.write_log("log", f"{line}\n")
        with self._lock:
            was_full = self._worker_log_left <= 0
            self._worker_log_left -= len(line)
            is_full = self._worker_log_left <= 0
        own = {"queue_id": self.task_id, "epoch": self.epoch}
        if not is_full:
            _log.info(message, **own, **fields_of_others(fields))
        elif not was_full:
            _log.info("the run has logged much; it is only in its own log from here on", **own)

    def write_log(self, stream: str, data: bytes | str) -> None:
        """Add what a stream of the run has printed to the run's log."""
        if self._run_log is not None:
            self._run_log.write(stream, data)

    def cost(self, usd: float, *, input_tokens: int = 0, output_tokens: int = 0) -> None:
        """Add the cost of a model call, and send it."""
        self._add_cost(usd, input_tokens, output_tokens)
        if usd > 0 and self._send_cost is not None:
            self._send_cost()

    def cost_soon(self, usd: float, *, input_tokens: int = 0, output_tokens: int = 0) -> None:
        """Add a cost for a heartbeat soon; the one that uses up the task's ceiling is sent at once.

        A command may report any number of costs, and each one that is sent is a transaction.
        """
        was_at_ceiling = self.at_ceiling
        self._add_cost(usd, input_tokens, output_tokens)
        uses_up = self.at_ceiling and not was_at_ceiling
        send = self._send_cost if uses_up else self._send_soon
        if usd > 0 and send is not None:
            send()

    def _add_cost(self, usd: float, input_tokens: int, output_tokens: int) -> None:
        check_cost(usd)
        with self._lock:
            self.cost_usd += usd
            for name, count in (("input", input_tokens), ("output", output_tokens)):
                if count:
                    self.tokens[name] = self.tokens.get(name, 0) + count

    @property
    def graph(self) -> RunGraph:
        """The graph of the run's task; RuntimeError if the run was made without one."""
        if self._graph is None:
            raise RuntimeError("this run has no task graph: it was made outside a worker")
        return self._graph

    @property
    def feedback(self) -> Feedback | None:
        """Why the output of the latest rejected attempt was rejected; read when first used."""
        if self._may_have_feedback:
            self._feedback = self.graph.feedback()
            self._may_have_feedback = False
        return self._feedback

    def _read_inputs(self) -> dict[str, Any]:
        return self.graph.inputs()

    def _read_children(self, ids: Sequence[str] | None) -> list[Child]:
        return self.graph.children(ids)

    def _spawn(self, request: ChildRequest) -> str:
        return self.graph.spawn(request)

    def _store_artifact(self, name: str, content: ArtifactContent) -> str:
        return self.graph.keep(name, content)
