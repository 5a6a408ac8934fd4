"""Maps how a handler ended to the result that is recorded; pure functions."""

import json
import traceback
from typing import TypedDict, assert_never

from overnight.handlers import control_exceptions
from overnight.models.json_values import check_json
from overnight_server.domain.claims import Run
from overnight_server.domain.ids import MalformedId, parse_task
from overnight_server.domain.results import (
    Deferred,
    Interrupted,
    Raised,
    Result,
    Returned,
    Stopped,
    Suspended,
    TimedOut,
    Waiting,
)
from overnight_server.mask import mask_secrets, mask_text
from overnight_worker.runners.python import HandlerOutcome, RunContext
from overnight_worker.stop_policy import StopReason

MAX_OUTPUT_BYTES = 1024 * 1024
MAX_MESSAGE = 2000
MAX_DETAIL = 4000
FRAMES_SHOWN = 8
MAX_SUMMARY = 10_000

# These stops do not concern the task itself, so an output that was returned all the same counts.
_MAY_FINISH = frozenset(
    {StopReason.SHUTDOWN, StopReason.WINDOW, StopReason.BUDGET, StopReason.LOST}
)


class ReportedCost(TypedDict):
    """The money and tokens that a run reported."""

    cost_usd: float
    tokens: dict[str, int]


class UnstorableOutput(Exception):
    """An output that cannot be stored; the message gives the reason."""


def result_of(
    outcome: HandlerOutcome, run: Run, context: RunContext, reason: StopReason | None
) -> Result | None:
    """Return the result of a run that was requested to stop for `reason`; None: record nothing.

    A run that was cancelled or timed out counts as that, whatever its handler did afterwards. If a
    handler returned although its worker shuts down, its window closes or a budget is used up, its
    output counts. If the claim seems lost, the output is offered, and the claim decides.
    """
    has_output = outcome.raised is None
    if reason is None or (has_output and reason in _MAY_FINISH):
        return _unstopped_result(outcome, context)
    return stopped_result(run, reason, context)


def stopped_result(
    run: Run, reason: StopReason, context: RunContext | None = None
) -> Result | None:
    """Return the result of a run that was stopped; None if its claim is lost."""
    spent = reported_cost(context)
    match reason:
        case StopReason.CANCELLED:
            return Stopped(**spent)
        case StopReason.TIMEOUT:
            return TimedOut(by_plan=run.plan_limited, **spent)
        case StopReason.BUDGET:
            return Suspended(_budget_message(run, spent["cost_usd"]), **spent)
        case StopReason.SHUTDOWN | StopReason.WINDOW:
            return Interrupted(reason.value, **spent)
        case StopReason.LOST:
            return None
        case _:
            assert_never(reason)


def _budget_message(run: Run, cost_usd: float) -> str:
    """Return which budget stopped a run, and what the task has cost."""
    total = run.spent_usd + cost_usd
    if run.ceiling_usd is not None and total >= run.ceiling_usd:
        return f"the task has cost ${total:.2f} of its ${run.ceiling_usd:.2f}"
    return f"a budget was used up after the task had cost ${total:.2f}"


def reported_cost(context: RunContext | None) -> ReportedCost:
    """Return the money and tokens that a run reported, zero without a context."""
    if context is None:
        return {"cost_usd": 0.0, "tokens": {}}
    return {"cost_usd": context.cost_usd, "tokens": dict(context.tokens)}


def missing_handler_result(run: Run, types: tuple[str, ...]) -> Raised:
    """Return the failure of a task whose type no handler of this worker accepts."""
    return Raised(
        error_class="no_handler",
        message=f"no handler for type {run.type!r}; registered: {', '.join(types) or 'none'}",
        error_type="NoHandler",
        retryable=False,
    )


def storable(output: object) -> object:
    """Return the output as it will be read from storage; raise UnstorableOutput if it cannot be."""
    if output is None:
        return None
    try:
        text = json.dumps(output, allow_nan=False, ensure_ascii=False)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise UnstorableOutput(f"the output cannot be written as JSON: {error}") from error
    if size > MAX_OUTPUT_BYTES:
        raise UnstorableOutput(
            f"the output takes {size} bytes; at most {MAX_OUTPUT_BYTES} are kept"
        )
    try:
        # The API applies the same rule to outputs of pull agents: lists of tasks must be readable.
        return check_json(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise UnstorableOutput(f"the output cannot be kept: {error}") from error


def _unstopped_result(outcome: HandlerOutcome, context: RunContext) -> Result:
    if outcome.raised is not None:
        return _raised_result(outcome.raised, context)
    try:
        output = mask_secrets(storable(outcome.output))
    except UnstorableOutput as error:
        return _raised(context, "invalid_output", str(error), "InvalidOutput")
    return Returned(
        output=output,
        summary=_summary(output),
        files_changed=_files_changed(output),
        **reported_cost(context),
    )


def _raised_result(error: BaseException, context: RunContext) -> Result:
    match error:
        case control_exceptions.Cancel() | control_exceptions.Stopped(reason="cancelled"):
            return Stopped(**reported_cost(context))
        case control_exceptions.Suspended():
            return _waiting_result(error, context)
        case control_exceptions.Snooze() | control_exceptions.RateLimited():
            return Deferred(error.after_seconds, error.error_class, **reported_cost(context))
        case control_exceptions.Retry():
            return _failure(context, error, retryable=True, wait_seconds=error.after_seconds)
        case control_exceptions.Fail():
            return _failure(context, error, retryable=False)
        case _:
            return _failure(context, error)


def _waiting_result(error: control_exceptions.Suspended, context: RunContext) -> Result:
    try:
        tasks = tuple(parse_task(text) for text in error.tasks)
    except MalformedId as malformed:
        return _raised(context, "invalid_wait", str(malformed), "Suspended", retryable=False)
    return Waiting(tasks, **reported_cost(context))


def _failure(
    context: RunContext,
    error: BaseException,
    *,
    retryable: bool | None = None,
    wait_seconds: float | None = None,
) -> Raised:
    """Describe an exception; any exception may carry its own `error_class`."""
    error_class = getattr(error, "error_class", None)
    return _raised(
        context,
        error_class if isinstance(error_class, str) and error_class else "error",
        control_exceptions.error_text(error),
        type(error).__name__,
        detail=_trace(error),
        retryable=retryable,
        wait_seconds=wait_seconds,
    )


def _raised(
    context: RunContext,
    error_class: str,
    message: str,
    error_type: str,
    *,
    detail: str = "",
    retryable: bool | None = None,
    wait_seconds: float | None = None,
) -> Raised:
    return Raised(
        error_class=error_class,
        message=mask_text(message)[:MAX_MESSAGE],
        error_type=error_type,
        detail=mask_text(detail)[-MAX_DETAIL:],
        retryable=retryable,
        wait_seconds=wait_seconds,
        **reported_cost(context),
    )


def _trace(error: BaseException) -> str:
    """Return the last frames of the handler, without the worker's frame that called it."""
    try:
        frames = error.__traceback__ and error.__traceback__.tb_next
        return "".join(traceback.format_exception(type(error), error, frames, limit=-FRAMES_SHOWN))
    except Exception:  # noqa: BLE001 - formatting a handler's own exception may fail
        return ""


def _summary(output: object) -> str | None:
    """Return the text that a handler returned under `summary`."""
    summary = output.get("summary") if isinstance(output, dict) else None
    return summary[:MAX_SUMMARY] if isinstance(summary, str) else None


def _files_changed(output: object) -> tuple[str, ...]:
    """Return the file names that a handler returned under `files_changed`."""
    names = output.get("files_changed") if isinstance(output, dict) else None
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()
