"""Exceptions that a handler raises to decide what happens to its task.

ControlException         base of the handler's decisions
├── Retry                run again; spends an attempt
├── Snooze               run again later; spends no attempt
├── RateLimited          run again when the provider's limit is lifted; spends no attempt
├── InvalidOutput        the result is wrong; the task's retry policy decides
├── Fail                 do not run again
│   └── InvalidInput     do not run again: the payload is wrong
└── Cancel               end the task as cancelled, not as failed

Stopped                  the run must end; raised by `Context.check()`
Suspended                the run ends until its children have; raised by `Context.wait_for()`
"""

from collections.abc import Sequence
from datetime import timedelta

Wait = float | timedelta


class ControlException(Exception):
    """A handler's decision about its own task; the attempt records `error_class`."""

    error_class = "error"

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message


class Retry(ControlException):
    """Run again, spending an attempt; without `after` the retry policy decides when."""

    def __init__(
        self, message: str = "", *, after: Wait | None = None, error_class: str = "error"
    ) -> None:
        super().__init__(message or "the handler asked for another run")
        self.after_seconds = None if after is None else _seconds(after)
        self.error_class = error_class


class Snooze(ControlException):
    """Run again after a wait, because the task is not due yet; spends no attempt."""

    error_class = "snooze"

    def __init__(self, after: Wait, message: str = "") -> None:
        super().__init__(message or "the handler asked to wait")
        self.after_seconds = _seconds(after)


class RateLimited(ControlException):
    """Run again when the provider's rate limit is lifted; spends no attempt."""

    error_class = "rate_limit"

    def __init__(self, reset_after: Wait, message: str = "") -> None:
        super().__init__(message or "the provider's rate limit is reached")
        self.after_seconds = _seconds(reset_after)


class InvalidOutput(ControlException):
    """The result of the work is wrong; the task's retry policy decides what follows."""

    error_class = "invalid_output"


class Fail(ControlException):
    """Fail permanently: no retry, whatever the retry policy says."""

    def __init__(self, message: str, *, error_class: str = "error") -> None:
        super().__init__(message)
        self.error_class = error_class


class InvalidInput(Fail):
    """Fail permanently, because the payload of the task is wrong; the message names the field."""

    def __init__(self, message: str) -> None:
        super().__init__(message, error_class="invalid_input")


class Cancel(ControlException):
    """End the task as cancelled, which is not a failure."""

    error_class = "cancelled"


class Stopped(BaseException):
    """The run must end now: it was cancelled, timed out, or no longer holds its task.

    It is not an `Exception`, so that a handler's own `except Exception` around a model call does
    not catch it by accident.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Suspended(BaseException):
    """The run ends here; the task runs again once `tasks` have ended.

    It is not an `Exception` for the same reason as `Stopped`.
    """

    def __init__(self, tasks: Sequence[str]) -> None:
        super().__init__(f"waits for {len(tasks)} tasks")
        self.tasks = tuple(tasks)


def error_text(error: BaseException) -> str:
    """Return the message of an exception, with the name of its class where it is needed.

    The message of a KeyError, for instance, is only the key. An exception with an `error_class`
    was raised for the person who reads the task, so its message is used unchanged.

    >>> error_text(KeyError("text"))
    "KeyError: 'text'"
    """
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - __str__ of a handler's exception may fail
        text = ""
    error_class = getattr(error, "error_class", None)
    if not text or (isinstance(error_class, str) and error_class) or text.startswith(name):
        return text or name
    return f"{name}: {text}"


def _seconds(wait: Wait) -> float:
    seconds = wait.total_seconds() if isinstance(wait, timedelta) else float(wait)
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"a wait is 0 seconds or more, not {wait!r}")
    return seconds
