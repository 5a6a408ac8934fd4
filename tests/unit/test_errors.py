"""The error tree: each error's code, message and values, and how a client rebuilds it."""

import re
from datetime import UTC, datetime

import pytest

from overnight import errors
from overnight.errors import (
    InvalidRequest,
    LockNotHeld,
    MonthlyLimitReached,
    NotDeadLettered,
    QueueFull,
    Refused,
    StaleAttempt,
    TaskAlreadyCompleted,
    TaskNotFound,
    TooManyPending,
    UserNotFound,
)


def _subclasses(kind: type[Exception]) -> list[type[Exception]]:
    below = [each for each in kind.__subclasses__() if each.__module__ == errors.__name__]
    return below + [lower for each in below for lower in _subclasses(each)]


KINDS = [kind for kind in _subclasses(Refused) if issubclass(kind, Refused)]


@pytest.mark.parametrize(
    ("refusal", "code", "message", "details"),
    [
        (
            InvalidRequest("priority", "9 is out of range", legal="1 to 4"),
            "INVALID_REQUEST",
            "priority: 9 is out of range; legal: 1 to 4",
            {},
        ),
        (UserNotFound(), "USER_NOT_FOUND", "no such user", {}),
        (TaskNotFound(), "TASK_NOT_FOUND", "no such task", {}),
        (
            TaskAlreadyCompleted("completed"),
            "TASK_ALREADY_COMPLETED",
            "the task has already ended: completed",
            {"state": "completed"},
        ),
        (
            NotDeadLettered("running"),
            "NOT_DEAD_LETTERED",
            "the task is not dead-lettered; it is running",
            {"state": "running"},
        ),
        (
            LockNotHeld("ready"),
            "LOCK_NOT_HELD",
            "the task holds no lock; it is ready",
            {"state": "ready"},
        ),
        (
            TooManyPending(50, 50),
            "TOO_MANY_PENDING",
            (
                "50 of your tasks are waiting, but the limit is 50; each task of a graph counts."
                " Nothing was added: wait until some have started, or cancel some. A larger batch"
                " can be sent in parts: `overnight batch` with the same file submits the rest each"
                " time. Or ask an operator for"
                " `overnight user limits NAME --max-pending 51`"
            ),
            {"pending": 50, "limit": 50},
        ),
        (
            QueueFull(1001, 1000),
            "QUEUE_FULL",
            "queue is at capacity (1000 tasks)",
            {"depth": 1001, "limit": 1000},
        ),
        (
            MonthlyLimitReached(10.00694, 10.0, datetime(2026, 12, 1, tzinfo=UTC)),
            "MONTHLY_LIMIT_REACHED",
            (
                "10.01 of 10 hours of this billing month are used;"
                " the next month begins at 2026-12-01 00:00Z"
            ),
            {"used_hours": 10.01, "limit_hours": 10.0, "resets_at": "2026-12-01T00:00:00+00:00"},
        ),
        (
            StaleAttempt(),
            "STALE_ATTEMPT",
            "this attempt no longer holds the task",
            {},
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Refused) else "",
)
def test_an_error_has_a_code_a_message_and_its_values(
    refusal: Refused, code: str, message: str, details: dict[str, object]
) -> None:
    assert refusal.code == code
    assert refusal.message == message
    assert str(refusal) == message
    assert refusal.details == details


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [kind.code for kind in KINDS if kind is not errors.DagNotRetryable]

    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[A-Z][A-Z_]+", code) for code in codes)


def test_the_tree_in_the_module_docstring_lists_every_error() -> None:
    drawn = re.findall(r"^[│ ]*[├└]── (\w+)", errors.__doc__ or "", flags=re.MULTILINE)

    assert sorted(drawn) == sorted(kind.__name__ for kind in _subclasses(errors.OvernightError))


def test_the_client_rebuilds_the_error_that_the_service_wrote() -> None:
    error = errors.from_problem(
        {
            "type": "urn:overnight:problem:queue-full",
            "title": "Queue is full",
            "status": 503,
            "detail": "queue is at capacity (1000 tasks)",
            "code": "QUEUE_FULL",
            "depth": 1001,
            "limit": 1000,
        },
        503,
        5.0,
    )

    assert isinstance(error, QueueFull)
    assert str(error) == "queue is at capacity (1000 tasks)"
    assert (error.code, error.status, error.retry_after) == ("QUEUE_FULL", 503, 5.0)
    assert error.details == {"depth": 1001, "limit": 1000}


def test_a_code_from_a_newer_service_becomes_a_plain_refusal() -> None:
    error = errors.from_problem({"code": "NEW_CODE", "detail": "no"}, 409, None)

    assert type(error) is Refused
    assert (error.code, error.status) == ("NEW_CODE", 409)
