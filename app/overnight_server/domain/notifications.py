"""Kinds of notifications: the events about which a channel can be told."""

from enum import StrEnum
from typing import Final

# Why deliveries of a channel are given up when its user does not want them any more.
CHANNEL_DISABLED: Final = "the channel was disabled"
CHANNEL_REMOVED: Final = "the channel was removed"
ENDED_BY_USERS: Final = (CHANNEL_DISABLED, CHANNEL_REMOVED)


class NotificationKind(StrEnum):
    """An event that users can be told about; the value is also the type of a webhook message."""

    DEAD_LETTERED = "task.dead_lettered"
    POISONED = "task.poisoned"
    ESCALATED = "task.escalated"
    DAG_FINISHED = "dag.finished"
    NEEDS_BUDGET = "needs_you.budget"
    USAGE_50 = "usage.50"
    USAGE_80 = "usage.80"
    USAGE_100 = "usage.100"
    SCHEDULE_SKIPPED = "schedule.skipped"
    SCHEDULE_FAILED = "schedule.failed"
    WORKER_LOST = "worker.lost"
    MORNING_REPORT = "report.morning"
    TEST = "test"
