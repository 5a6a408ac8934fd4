"""Refusals: the code the wire shows, the sentence a person reads, the values behind it."""

import re
from datetime import UTC, datetime

import pytest

from overnight_server.domain import errors
from overnight_server.domain.errors import (
    InvalidRequest,
    LockNotHeld,
    MonthlyLimitReached,
    NotDeadLettered,
    QueueFull,
    Refused,
    StaleAttempt,
    TaskAlreadyFinished,
    TaskNotFound,
    TooManyPending,
    UserNotFound,
)

KINDS = sorted(Refused.__subclasses__(), key=lambda kind: kind.__name__)


@pytest.mark.parametrize(
    ("refusal", "code", "message", "details"),
    [
        (
            InvalidRequest("priority", "9 is out of range", legal="1 to 4"),
            "INVALID_REQUEST",
            "priority: 9 is out of range; legal: 1 to 4",
            {"field": "priority", "legal": "1 to 4"},
        ),
        (UserNotFound(), "USER_NOT_FOUND", "no such user", {}),
        (TaskNotFound(), "TASK_NOT_FOUND", "no such task", {}),
        (
            TaskAlreadyFinished("completed"),
            "TASK_ALREADY_COMPLETED",
            "the task has already ended: completed",
            {"state": "completed"},
        ),
        (
            NotDeadLettered("running"),
            "NOT_DEAD_LETTERED",
            "the task is not in the dead letters but running",
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
            "50 tasks are waiting; at most 50 may",
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
            "10.01 of 10 hours are used; they return at 2026-12-01 00:00Z",
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
def test_a_refusal_says_what_and_why(
    refusal: Refused, code: str, message: str, details: dict[str, object]
) -> None:
    assert refusal.code == code
    assert refusal.message == message
    assert str(refusal) == message
    assert refusal.details == details


def test_every_kind_has_a_code_of_its_own() -> None:
    codes = [kind.code for kind in [Refused, *KINDS]]

    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[A-Z][A-Z_]+", code) for code in codes)


def test_the_tree_at_the_top_names_every_kind() -> None:
    drawn = re.findall(r"^[├└]── (\w+)", errors.__doc__ or "", flags=re.MULTILINE)

    assert sorted(drawn) == [kind.__name__ for kind in KINDS]
