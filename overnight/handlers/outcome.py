"""Maps what a handler returned or raised to an outcome; workers and pull agents share the mapping.

`overnight_worker.result_mapping` turns an outcome into the result that a worker records, and
`overnight.agent.run` into the request that a pull agent sends.
"""

import json
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from overnight.handlers.control_exceptions import (
    Cancel,
    ControlException,
    Fail,
    RateLimited,
    Retry,
    Snooze,
    Stopped,
    Suspended,
    error_text,
)
from overnight.models.json_values import check_json

MAX_OUTPUT_BYTES = 1024 * 1024
MAX_SUMMARY = 10_000
TRACEBACK_FRAMES = 8
# These stops do not concern the task itself, so an output that was returned all the same counts.
OUTPUT_COUNTS = frozenset({"shutdown", "window_closed", "budget", "lost"})


@dataclass(frozen=True)
class HandlerReturned:
    """The handler returned an output that can be stored."""

    output: Any

    @property
    def summary(self) -> str | None:
        """The text that the handler returned under `summary`."""
        summary = self.output.get("summary") if isinstance(self.output, dict) else None
        return summary[:MAX_SUMMARY] if isinstance(summary, str) else None

    @property
    def files_changed(self) -> tuple[str, ...]:
        """The file names that the handler returned under `files_changed`."""
        names = self.output.get("files_changed") if isinstance(self.output, dict) else None
        listed = names if isinstance(names, list) else []
        return tuple(name for name in listed if isinstance(name, str))


@dataclass(frozen=True)
class HandlerFailed:
    """The handler raised an error; `retryable` None leaves the decision to the retry policy."""

    error_class: str
    message: str
    error_type: str
    detail: str = ""
    retryable: bool | None = None
    retry_after: float | None = None


@dataclass(frozen=True)
class HandlerDeferred:
    """The handler asked to be run later, without spending an attempt."""

    after_seconds: float
    error_class: str
    message: str


@dataclass(frozen=True)
class HandlerSuspended:
    """The handler ended until other tasks have ended."""

    tasks: tuple[str, ...]


@dataclass(frozen=True)
class HandlerStopped:
    """The run was stopped, or the handler cancelled its own task."""

    reason: str


Outcome = HandlerReturned | HandlerFailed | HandlerDeferred | HandlerSuspended | HandlerStopped


class UnstorableOutput(Exception):
    """An output that cannot be stored; the message gives the reason."""


def outcome_of(output: object, raised: BaseException | None, stop_reason: str | None) -> Outcome:
    """Return the outcome of a run that was requested to stop for `stop_reason`, if it was.

    A run that was cancelled or timed out counts as stopped, whatever its handler did afterwards. An
    output that a handler returned counts for every other stop reason.
    """
    has_output = raised is None
    if stop_reason is not None and not (has_output and stop_reason in OUTPUT_COUNTS):
        return HandlerStopped(stop_reason)
    if raised is not None:
        return _outcome_of_error(raised)
    try:
        return HandlerReturned(storable(output))
    except UnstorableOutput as error:
        return HandlerFailed("invalid_output", str(error), "InvalidOutput")


def storable(output: object) -> Any:  # noqa: ANN401 - any JSON value
    """Return the output as it will be read from storage; raise UnstorableOutput if it cannot be."""
    if output is None:
        return None
    try:
        text = json.dumps(output, allow_nan=False, ensure_ascii=False)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise UnstorableOutput(f"the output cannot be written as JSON: {error}") from error
    if size > MAX_OUTPUT_BYTES:
        raise UnstorableOutput(f"the output takes {size} bytes; at most {MAX_OUTPUT_BYTES} fit")
    try:
        return check_json(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise UnstorableOutput(f"the output cannot be stored: {error}") from error


def decisive_error(error: BaseException) -> BaseException:
    """Return the exception that decides the outcome: for a group, as asyncio raises it, a member.

    That is the first member with which the handler decides about its task, else the only member.
    """
    members = list(_members(error))
    decisions = (ControlException, Stopped, Suspended)
    for member in members:
        if isinstance(member, decisions):
            return member
    return members[0] if len(members) == 1 else error


def _members(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions of a group and of the groups in it; an exception is its only member."""
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from _members(member)
    else:
        yield error


def _outcome_of_error(raised: BaseException) -> Outcome:
    error = decisive_error(raised)
    detail = _traceback(raised)
    match error:
        case Cancel():
            return HandlerStopped("cancelled")
        # The service refused a call of the run. A handler that raises another Stopped by itself
        # has failed: giving the run back would repeat it for ever.
        case Stopped(reason="cancelled" | "lost" as reason):
            return HandlerStopped(reason)
        case Suspended(tasks=tasks):
            return HandlerSuspended(tuple(tasks))
        case Snooze() | RateLimited():
            return HandlerDeferred(error.after_seconds, _error_class(error), error_text(error))
        case Retry():
            return _failure(error, detail, retryable=True, retry_after=error.after_seconds)
        case Fail():
            return _failure(error, detail, retryable=False)
        case _:
            return _failure(error, detail)


def _failure(
    error: BaseException,
    detail: str,
    *,
    retryable: bool | None = None,
    retry_after: float | None = None,
) -> HandlerFailed:
    """Describe an exception; any exception may carry its own `error_class`."""
    return HandlerFailed(
        _error_class(error),
        error_text(error),
        type(error).__name__,
        detail,
        retryable,
        retry_after,
    )


def _error_class(error: BaseException) -> str:
    error_class = getattr(error, "error_class", None)
    if isinstance(error_class, str) and error_class:
        return error_class
    return "out_of_memory" if isinstance(error, MemoryError) else "error"


def _traceback(error: BaseException) -> str:
    """Return the last frames of the handler, without the frames that called it.

    What did not happen in a handler has a text of its own, `run_detail`.
    """
    run_detail = getattr(error, "run_detail", None)
    if isinstance(run_detail, str):
        return run_detail
    try:
        frames = _after_the_call(error.__traceback__)
        shown = traceback.format_exception(type(error), error, frames, limit=-TRACEBACK_FRAMES)
    except Exception:  # noqa: BLE001 - formatting a handler's own exception may fail
        return ""
    return "".join(shown)


def _after_the_call(frames: TracebackType | None) -> TracebackType | None:
    """Return the frames after the last one of `invoke`; without any, those after the first."""
    shown, frame = frames and frames.tb_next, frames
    while frame is not None:
        if frame.tb_frame.f_globals.get("__name__") == "overnight.handlers.invoke":
            shown = frame.tb_next
        frame = frame.tb_next
    return shown
