"""Maps the outcome of a handler to the result that is recorded; pure functions."""

from dataclasses import replace
from typing import TypedDict, assert_never

from overnight.handlers.outcome import (
    HandlerDeferred,
    HandlerFailed,
    HandlerReturned,
    HandlerStopped,
    HandlerSuspended,
    Outcome,
)
from overnight_server.domain.claims import Run
from overnight_server.domain.ids import MalformedId, parse_task
from overnight_server.domain.results import (
    Deferred,
    Interrupted,
    Raised,
    Result,
    Returned,
    StoppedByBudget,
    StoppedByCancel,
    TimedOut,
    WaitingForTasks,
)
from overnight_server.mask import mask_secrets, mask_text
from overnight_worker.run_context import RunContext
from overnight_worker.stop_policy import StopReason

MAX_MESSAGE = 2000
MAX_DETAIL = 4000

# After how many seconds a task is tried again that reached a worker without its handler.
MISSING_HANDLER_SECONDS = 60.0


class ReportedCost(TypedDict):
    """The money and tokens that a run reported."""

    cost_usd: float
    tokens: dict[str, int]


def result_of(outcome: Outcome, run: Run, context: RunContext) -> Result | None:
    """Return the result of a run; None if its claim is lost and nothing can be recorded."""
    cost = reported_cost(context)
    match outcome:
        case HandlerReturned(output=output):
            masked = replace(outcome, output=mask_secrets(output))
            return Returned(
                output=masked.output,
                summary=masked.summary,
                files_changed=masked.files_changed,
                **cost,
            )
        case HandlerFailed():
            return _raised(outcome, cost)
        case HandlerDeferred(after_seconds=seconds, error_class=error_class):
            return Deferred(seconds, error_class, **cost)
        case HandlerSuspended(tasks=tasks):
            return _waiting(tasks, cost)
        case HandlerStopped(reason=reason):
            return stopped_result(run, StopReason(reason), context)
        case _:
            assert_never(outcome)


def stopped_result(
    run: Run, reason: StopReason, context: RunContext | None = None
) -> Result | None:
    """Return the result of a run that was stopped; None if its claim is lost."""
    cost = reported_cost(context)
    match reason:
        case StopReason.CANCELLED:
            return StoppedByCancel(**cost)
        case StopReason.TIMEOUT:
            return TimedOut(by_plan=run.plan_limited, **cost)
        case StopReason.BUDGET:
            return StoppedByBudget(_budget_message(run, cost["cost_usd"]), **cost)
        case StopReason.SHUTDOWN | StopReason.WINDOW:
            return Interrupted(reason.value, **cost)
        case StopReason.LOST:
            return None
        case _:
            assert_never(reason)


def missing_handler_result() -> Deferred:
    """Return the end of a run that this worker has no handler for: it is tried again later.

    The gate sends a worker only types that it declares, so this happens when a worker was replaced
    by one with other handlers while the message was on its way.
    """
    return Deferred(MISSING_HANDLER_SECONDS, "no_handler")


def reported_cost(context: RunContext | None) -> ReportedCost:
    """Return the money and tokens that a run reported, zero without a context."""
    if context is None:
        return {"cost_usd": 0.0, "tokens": {}}
    return {"cost_usd": context.cost_usd, "tokens": dict(context.tokens)}


def _raised(failed: HandlerFailed, cost: ReportedCost) -> Raised:
    return Raised(
        error_class=failed.error_class,
        message=mask_text(failed.message)[:MAX_MESSAGE],
        error_type=failed.error_type,
        detail=mask_text(failed.detail)[-MAX_DETAIL:],
        retryable=failed.retryable,
        wait_seconds=failed.retry_after,
        **cost,
    )


def _waiting(tasks: tuple[str, ...], cost: ReportedCost) -> Result:
    try:
        return WaitingForTasks(tuple(map(parse_task, tasks)), **cost)
    except MalformedId as error:
        failed = HandlerFailed("invalid_wait", str(error), "Suspended", retryable=False)
        return _raised(failed, cost)


def _budget_message(run: Run, cost_usd: float) -> str:
    """Return which budget stopped a run, and what the task has cost."""
    total = run.spent_usd + cost_usd
    if run.ceiling_usd is not None and total >= run.ceiling_usd:
        return f"the task has cost ${total:.2f} of its ${run.ceiling_usd:.2f}"
    return f"a budget was used up after the task had cost ${total:.2f}"
