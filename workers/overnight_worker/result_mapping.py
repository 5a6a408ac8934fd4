"""Putting into words how a handler ended; pure, so every case can be listed."""

import json
import traceback
from typing import TypedDict, assert_never

from overnight.handlers import control_exceptions
from overnight.models.json_values import sound_value
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
from overnight_server.mask import hide_in, mask_text
from overnight_worker.runners.python import Finished, RunContext
from overnight_worker.stop_policy import StopReason

MAX_OUTPUT_BYTES = 1024 * 1024
MAX_MESSAGE = 2000
MAX_DETAIL = 4000
FRAMES_SHOWN = 8
MAX_SUMMARY = 10_000

# Asked to stop for a reason that is not the task's: an output that came all the same counts.
_MAY_FINISH = frozenset(
    {StopReason.SHUTDOWN, StopReason.WINDOW, StopReason.BUDGET, StopReason.LOST}
)


class Spending(TypedDict):
    """Money and tokens a run reported."""

    cost_usd: float
    tokens: dict[str, int]


class UnfitOutput(Exception):
    """An output that cannot be stored; the message says what is wrong with it."""


def ending_of(
    finished: Finished, run: Run, context: RunContext, reason: StopReason | None
) -> Result | None:
    """Say how a run ended, given why it was asked to stop, if it was; None: nothing to record.

    A run that was cancelled or out of time counts as that, whatever it made of its last moments.
    One that came back with an output while its worker was shutting down, its user's window was
    closing or a budget was used up, has finished; one whose claim seems lost may still show what
    it has: the claim decides.
    """
    has_output = finished.raised is None
    if reason is None or (has_output and reason in _MAY_FINISH):
        return _own_ending(finished, context)
    return stopped_ending(run, reason, context)


def stopped_ending(
    run: Run, reason: StopReason, context: RunContext | None = None
) -> Result | None:
    """Say how a run ended that was stopped; None: it is not ours to record any more."""
    spent = spending(context)
    match reason:
        case StopReason.CANCELLED:
            return Stopped(**spent)
        case StopReason.TIMEOUT:
            return TimedOut(by_plan=run.plan_limited, **spent)
        case StopReason.BUDGET:
            return Suspended(_over(run, spent["cost_usd"]), **spent)
        case StopReason.SHUTDOWN | StopReason.WINDOW:
            return Interrupted(reason.value, **spent)
        case StopReason.LOST:
            return None
        case _:
            assert_never(reason)


def _over(run: Run, cost_usd: float) -> str:
    """Say what a run had spent when it was stopped for it."""
    total = run.spent_usd + cost_usd
    if run.ceiling_usd is not None and total >= run.ceiling_usd:
        return f"the task has cost ${total:.2f} of its ${run.ceiling_usd:.2f}"
    return f"a budget was used up after the task had cost ${total:.2f}"


def spending(context: RunContext | None) -> Spending:
    """Return what a run reported to have spent, however it ended."""
    if context is None:
        return {"cost_usd": 0.0, "tokens": {}}
    return {"cost_usd": context.cost_usd, "tokens": dict(context.tokens)}


def no_handler(run: Run, types: tuple[str, ...]) -> Raised:
    """Say that nobody here can run this type; trying again would change nothing."""
    return Raised(
        error_class="no_handler",
        message=f"no handler for type {run.type!r}; registered: {', '.join(types) or 'none'}",
        error_type="NoHandler",
        retryable=False,
    )


def storable(output: object) -> object:
    """Return the output as it will be given back from storage, or raise UnfitOutput."""
    if output is None:
        return None
    try:
        text = json.dumps(output, allow_nan=False, ensure_ascii=False)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise UnfitOutput(f"the output cannot be written as JSON: {error}") from error
    if size > MAX_OUTPUT_BYTES:
        raise UnfitOutput(f"the output takes {size} bytes; at most {MAX_OUTPUT_BYTES} are kept")
    try:
        # As for runs outside: what is kept must be readable by whoever lists tasks.
        return sound_value(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise UnfitOutput(f"the output cannot be kept: {error}") from error


def _own_ending(finished: Finished, context: RunContext) -> Result:
    if finished.raised is not None:
        return _after_raising(finished.raised, context)
    try:
        output = hide_in(storable(finished.output))
    except UnfitOutput as error:
        return _raised(context, "invalid_output", str(error), "InvalidOutput")
    return Returned(
        output=output,
        summary=_summary(output),
        files_changed=_files_changed(output),
        **spending(context),
    )


def _after_raising(error: BaseException, context: RunContext) -> Result:
    match error:
        case control_exceptions.Cancel() | control_exceptions.Stopped(reason="cancelled"):
            return Stopped(**spending(context))
        case control_exceptions.Suspended():
            return _waiting(error, context)
        case control_exceptions.Snooze() | control_exceptions.RateLimited():
            return Deferred(error.after_seconds, error.error_class, **spending(context))
        case control_exceptions.Retry():
            return _failure(context, error, retryable=True, wait_seconds=error.after_seconds)
        case control_exceptions.Fail():
            return _failure(context, error, retryable=False)
        case _:
            return _failure(context, error)


def _waiting(error: control_exceptions.Suspended, context: RunContext) -> Result:
    try:
        tasks = tuple(parse_task(one) for one in error.tasks)
    except MalformedId as wrong:
        return _raised(context, "invalid_wait", str(wrong), "Suspended", retryable=False)
    return Waiting(tasks, **spending(context))


def _failure(
    context: RunContext,
    error: BaseException,
    *,
    retryable: bool | None = None,
    wait_seconds: float | None = None,
) -> Raised:
    """Put an exception into words; any exception may name its class of failure."""
    word = getattr(error, "error_class", None)
    return _raised(
        context,
        word if isinstance(word, str) and word else "error",
        control_exceptions.in_words(error),
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
        **spending(context),
    )


def _trace(error: BaseException) -> str:
    """Return the last frames, without our own that called the handler."""
    try:
        below = error.__traceback__ and error.__traceback__.tb_next
        return "".join(traceback.format_exception(type(error), error, below, limit=-FRAMES_SHOWN))
    except Exception:  # noqa: BLE001 - a handler's exception may be broken too
        return ""


def _summary(output: object) -> str | None:
    """Return the sentence a handler may give under `summary`."""
    said = output.get("summary") if isinstance(output, dict) else None
    return said[:MAX_SUMMARY] if isinstance(said, str) else None


def _files_changed(output: object) -> tuple[str, ...]:
    """Return the names a handler may give under `files_changed`."""
    said = output.get("files_changed") if isinstance(output, dict) else None
    return tuple(name for name in said if isinstance(name, str)) if isinstance(said, list) else ()
