"""The spans of a bundle's runs: wait, claim, run and settle, below the task's trace context."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy import Row

from overnight_server.domain.claims import Run
from overnight_server.domain.ids import show_task
from overnight_server.domain.results import Raised, Result
from overnight_server.store.db import DATABASE_ERRORS, Db
from overnight_server.store.statements import statement
from overnight_server.traces import Traces, nanoseconds, now_nanoseconds, traceparent_of_task
from overnight_worker.identity import WORKER_ID

if TYPE_CHECKING:
    from opentelemetry.trace import Span

Note = Callable[[Result | None], None]


class RunTraces:
    """Notes the spans of one bundle; without `traces` it does nothing."""

    def __init__(self, traces: Traces | None, db: Db) -> None:
        self._traces = traces
        self._db = db
        self._attempts: list[Span] = []

    @contextmanager
    def run(self, run: Run) -> Iterator[Note]:
        """Carry out a run below a span of its own; what is yielded notes its result."""
        if self._traces is None:
            yield lambda _: None
            return
        from opentelemetry.trace import use_span  # noqa: PLC0415

        attempt = self._begin(self._traces, run)
        self._attempts.append(attempt)
        span = self._traces.start("overnight.run", parent=attempt)
        with use_span(span, end_on_exit=True):
            yield lambda result: _note(attempt, result)

    @contextmanager
    def settle(self) -> Iterator[None]:
        """Record the results of the runs; their attempts end with it."""
        began_at = now_nanoseconds()
        yield
        attempts, self._attempts = self._attempts, []
        for attempt in attempts:
            if self._traces is not None:
                span = self._traces.start("overnight.settle", parent=attempt, at=began_at)
                span.end()
            attempt.end()

    def _begin(self, traces: Traces, run: Run) -> "Span":
        """Begin the span of an attempt, which begins with its claim; note the wait before it."""
        known = self._find(run)
        parent = traceparent_of_task(run.claim.task_id)
        if known is not None and known.traceparent is not None:
            parent = known.traceparent
        claimed_at = None if known is None else nanoseconds(known.claimed_at)
        fields: dict[str, str | int] = {
            "overnight__task_id": show_task(run.claim.task_id),
            "overnight__type": run.type,
            "overnight__epoch": run.claim.epoch,
        }
        if known is not None and known.ready_at is not None:
            waits = traces.start(
                "overnight.wait", parent=parent, at=nanoseconds(known.ready_at), **fields
            )
            waits.end(claimed_at)
        attempt = traces.start(
            "overnight.attempt",
            parent=parent,
            at=claimed_at,
            overnight__worker=WORKER_ID,
            **fields,
        )
        if known is not None and known.started_at is not None:
            claim = traces.start("overnight.claim", parent=attempt, at=claimed_at)
            claim.end(nanoseconds(known.started_at))
        return attempt

    def _find(self, run: Run) -> Row[tuple[object, ...]] | None:
        params = {"task_id": run.claim.task_id, "epoch": run.claim.epoch}
        try:
            return self._db.atomically(
                lambda tx: tx.execute(statement("trace_of_run"), params).one_or_none()
            )
        except DATABASE_ERRORS:
            # The run matters, its trace does not.
            return None


def _note(attempt: "Span", result: Result | None) -> None:
    from opentelemetry.trace import StatusCode  # noqa: PLC0415

    if result is None:
        return
    attempt.set_attribute("overnight.outcome", type(result).__name__.lower())
    if isinstance(result, Raised):
        attempt.set_attribute("error.type", result.error_class)
        attempt.set_status(StatusCode.ERROR, result.error_class)
