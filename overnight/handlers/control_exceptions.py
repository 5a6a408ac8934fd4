"""What a handler raises to steer its task, kept apart from faults.

ControlException                 base of all that are decided by the handler
├── Retry                try again; spends an attempt
├── Snooze               not yet; spends no attempt
├── RateLimited          the provider said when to come back; spends no attempt
├── InvalidOutput        the work came out wrong; the task's retry policy decides
├── Fail                 never try again
└── Cancel               give the task up without calling it a failure

Stopped                  the task was taken away; raised by `Context.check()`
Suspended                the run ends until others have; raised by `Context.wait_for()`
"""

from collections.abc import Sequence
from datetime import timedelta

Wait = float | timedelta


class ControlException(Exception):
    """A handler's decision about its own task; `error_class` is the word kept on the attempt."""

    error_class = "error"

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message


class Retry(ControlException):
    """Ask for another run, spending an attempt; without `after` the task's policy says when."""

    def __init__(
        self, message: str = "", *, after: Wait | None = None, error_class: str = "error"
    ) -> None:
        super().__init__(message or "the handler asked for another run")
        self.after_seconds = None if after is None else _seconds(after)
        self.error_class = error_class


class Snooze(ControlException):
    """Put the task back for a while, because its time has not come; spends no attempt."""

    error_class = "snooze"

    def __init__(self, after: Wait, message: str = "") -> None:
        super().__init__(message or "the handler asked to wait")
        self.after_seconds = _seconds(after)


class RateLimited(ControlException):
    """Come back when the provider's limit is lifted; spends no attempt."""

    error_class = "rate_limit"

    def __init__(self, reset_after: Wait, message: str = "") -> None:
        super().__init__(message or "the provider's rate limit is reached")
        self.after_seconds = _seconds(reset_after)


class InvalidOutput(ControlException):
    """Say that the work came out wrong; the task's retry policy decides what follows."""

    error_class = "invalid_output"


class Fail(ControlException):
    """Give up for good: no retry, whatever the policy says."""

    def __init__(self, message: str, *, error_class: str = "error") -> None:
        super().__init__(message)
        self.error_class = error_class


class Cancel(ControlException):
    """Give the task up without calling it a failure; it ends as cancelled."""

    error_class = "cancelled"


class Stopped(BaseException):
    """The run must end now: cancelled, out of time, or no longer the holder of its task.

    Not an `Exception`, so that a handler's own `except Exception` around a model call
    cannot swallow it by accident.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Suspended(BaseException):
    """The run ends here, and the task goes on in another run once `tasks` are over.

    Not an `Exception` either, for the same reason.
    """

    def __init__(self, tasks: Sequence[str]) -> None:
        super().__init__(f"waits for {len(tasks)} tasks")
        self.tasks = tuple(tasks)


def error_text(error: BaseException) -> str:
    """Say what was raised, with the name of its class: alone, a missing key is only its own name.

    One that names its class of failure was raised for whoever reads the task, and is told as it is.

    >>> error_text(KeyError("text"))
    "KeyError: 'text'"
    """
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a handler's exception may be broken too
        text = ""
    word = getattr(error, "error_class", None)
    if not text or (isinstance(word, str) and word) or text.startswith(name):
        return text or name
    return f"{name}: {text}"


def _seconds(wait: Wait) -> float:
    seconds = wait.total_seconds() if isinstance(wait, timedelta) else float(wait)
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"a wait is 0 seconds or more, not {wait!r}")
    return seconds
