"""A user's limits and what is used of them, read from the user's lane row."""

from typing import Any

from overnight.errors import UserNotFound
from overnight.models.admin import UserLimitsDetail
from overnight.models.enums import PlanTier
from overnight_server.domain.ids import UserId
from overnight_server.domain.plans import BYTES_PER_MB, storage_limit_mb
from overnight_server.outcome.artifacts import ArtifactCaps
from overnight_server.store import lanes
from overnight_server.store.batched_statements import StatementCall
from overnight_server.store.db import Db
from overnight_server.store.windows import window_of

SECONDS_PER_HOUR = 3600


def user_limits(
    db: Db,
    user_id: UserId,
    *,
    default_max_pending: int | None = None,
    artifact_caps: ArtifactCaps | None = None,
) -> UserLimitsDetail:
    """Return the limits of the user's plan, this month's usage and tonight's budget.

    `pending_limit` is the user's own limit, or else `default_max_pending`. `artifact_caps` are
    those of the deployment, which apply besides those of the plan.
    """
    row = read_limits(db, user_id)
    window = window_of(row)
    night, spent = row["night_limit_usd"], row["night_spent_usd"]
    plan = PlanTier(row["plan"])
    caps = (artifact_caps or ArtifactCaps()).within(plan, row["artifact_storage_mb"])
    return UserLimitsDetail(
        plan=plan,
        max_concurrent_agents=row["max_concurrent_agents"],
        max_task_duration_minutes=row["max_task_duration_minutes"],
        monthly_agent_hours_limit=row["monthly_agent_hours_limit"],
        monthly_agent_hours_used=hours_used(row),
        billing_cycle_resets_at=row["billing_cycle_resets_at"],
        max_pending=row["max_pending"],
        max_tasks_per_dag=row["max_tasks_per_dag"],
        on_exhausted=row["on_exhausted"],
        night_budget_usd=row["night_budget_usd"],
        pending=row["waiting"],
        pending_limit=default_max_pending if row["max_pending"] is None else row["max_pending"],
        monthly_agent_hours_promised=round(row["reserved_seconds"] / SECONDS_PER_HOUR, 2),
        night_spent_usd=spent,
        night_left_usd=(
            None if night is None else max(0.0, float(night - spent - row["night_reserved_usd"]))
        ),
        next_night_at=row["next_night_at"],
        window=None if window is None else f"{window} ({window.at_closing.value})",
        artifact_max_mb=caps.max_bytes / BYTES_PER_MB,
        artifact_task_mb=caps.max_total_bytes / BYTES_PER_MB,
        artifact_storage_mb=storage_limit_mb(plan, row["artifact_storage_mb"]),
        artifact_stored_mb=round(row["artifact_bytes"] / BYTES_PER_MB, 3),
    )


def has_hours_left(db: Db, user_id: UserId) -> bool:
    """Return whether the user has hours that are neither used nor reserved for running tasks."""
    lane = db.atomically(lambda tx: lanes.read(tx, user_id))
    if lane is None:
        raise UserNotFound
    limit = lane.limit_seconds
    return limit is None or lane.used_seconds + lane.reserved_seconds < limit


def read_limits(db: Db, user_id: UserId) -> dict[str, Any]:
    """Return the row of the statement `view_limits`; raise UserNotFound if there is none.

    A month or night that is due is started first, so that the figures are those of the current one.
    """
    call = StatementCall("view_limits", {"user_id": user_id})
    rows = db.run_batch(call)
    if rows and rows[0].is_due:
        db.atomically(lambda tx: lanes.read(tx, user_id))
        rows = db.run_batch(call)
    if not rows:
        raise UserNotFound
    limits: dict[str, Any] = rows[0]._asdict()
    return limits


def hours_used(row: dict[str, Any]) -> float:
    """Return the hours used this month from a row of `read_limits`."""
    return round(float(row["used_seconds"]) / SECONDS_PER_HOUR, 2)
