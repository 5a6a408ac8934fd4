"""Schedules: what becomes of fire times that are due, and the values for their templates."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo

from overnight_server.domain.fire_times import DueTime, FireTimes
from overnight_server.domain.payload_templates import Value


class Overlap(StrEnum):
    """What happens at a fire time while the run before is not over."""

    SKIP = "skip"
    QUEUE = "queue"
    CANCEL = "cancel"


class CatchUp(StrEnum):
    """Which fire times run late, if they passed while nothing looked at schedules."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


class FireKind(StrEnum):
    """Why a fire exists: its time came, a person ran it now, or a person asked for past times."""

    SCHEDULED = "scheduled"
    MANUAL = "manual"
    BACKFILL = "backfill"


class FireStatus(StrEnum):
    """What became of a fire time; all but `waiting` are final, unless a backfill repeats it."""

    QUEUED = "queued"
    WAITING = "waiting"
    SKIPPED_QUEUE_FULL = "skipped_queue_full"
    SKIPPED_MONTHLY_LIMIT = "skipped_monthly_limit"
    SKIPPED_OVERLAP = "skipped_overlap"
    SKIPPED_PAUSED = "skipped_paused"
    SKIPPED_MISSED = "skipped_missed"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True)
class CatchUpRule:
    """How many missed fire times run late, and after which delay a fire time is missed."""

    policy: CatchUp
    limit: int
    grace: timedelta

    @property
    def most(self) -> int:
        """How many missed fire times may run."""
        match self.policy:
            case CatchUp.NONE:
                return 0
            case CatchUp.LAST:
                return 1
            case CatchUp.ALL:
                return self.limit


@dataclass(frozen=True)
class FirePlan:
    """What to do with due fire times: record some as skipped, run others; then the next one."""

    skipped: Sequence[datetime]
    runs: Sequence[datetime]
    next_time: DueTime | None


def plan_fires(
    due: Sequence[DueTime], next_time: DueTime | None, now: datetime, rule: CatchUpRule
) -> FirePlan:
    """Decide which due fire times run and which were missed.

    Of the missed ones the latest run; with the policy `last`, none if a later one is on time. If
    more fire times are due than were given, missed ones that may be among the latest of all are
    left for the next plan.
    """
    missed = [time for time in due if time.due_at < now - rule.grace]
    on_time = [time.fire_at for time in due[len(missed) :]]
    most = 0 if rule.policy is CatchUp.LAST and on_time else rule.most
    kept = missed[max(0, len(missed) - most) :] if most else []
    skipped = [time.fire_at for time in missed[: len(missed) - len(kept)]]
    if kept and skipped and next_time is not None and next_time.due_at < now - rule.grace:
        return FirePlan(skipped, [], kept[0])
    return FirePlan(skipped, [*(time.fire_at for time in kept), *on_time], next_time)


def template_values(
    *,
    name: str,
    schedule_id: str,
    zone: str,
    times: FireTimes,
    fire_at: datetime,
    kind: FireKind,
) -> dict[str, Value]:
    """Return the values of the names that templates may use."""
    local = fire_at.astimezone(ZoneInfo(zone))
    return {
        "fire_time": _utc(fire_at),
        "fire_time_local": local.isoformat(timespec="seconds"),
        "fire_date": local.date().isoformat(),
        "fire_unix": int(fire_at.timestamp()),
        "previous_fire_time": _utc(times.last_before(fire_at)),
        "next_fire_time": _utc(times.first_after(fire_at)),
        "fire_kind": kind.value,
        "schedule": name,
        "schedule_id": schedule_id,
        "zone": zone,
    }


def _utc(instant: datetime | None) -> str | None:
    if instant is None:
        return None
    return instant.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
