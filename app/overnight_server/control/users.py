"""Create users and change their limits; only operators and admins may.

A plan is a template: its limits are copied to the user's columns, which apply from then on. An
exception for one user is a change of a column. A change applies from the next claim on and stops no
running task.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from sqlalchemy import ColumnElement, Connection, func, insert, select, update

from overnight.errors import InvalidRequest, UserNotFound
from overnight.models.enums import PlanTier
from overnight_server.domain.ids import UserId
from overnight_server.domain.plans import PLAN_LIMITS, OnExhausted, PlanLimits
from overnight_server.store import lanes
from overnight_server.store.after_commit import wake_after_commit
from overnight_server.store.db import Db
from overnight_server.store.models import UserRow
from overnight_server.telemetry import LogEvent, emit

# The largest limit that can be set.
MAX_LIMIT = 1_000_000
NAME = re.compile(r"[\w.@+-]{1,100}")


class NoLimit(Enum):
    """Stands for the removal of a user's own limit."""

    NO_LIMIT = "no_limit"


@dataclass(frozen=True)
class Overrides:
    """Exceptions to a plan; None leaves a limit unchanged.

    `NoLimit` gives unlimited hours; for a cap on tasks it restores the cap of the settings, for the
    storage that of the plan.
    """

    concurrency: int | None = None
    minutes: int | None = None
    hours: int | NoLimit | None = None
    max_pending: int | NoLimit | None = None
    max_tasks_per_dag: int | NoLimit | None = None
    artifact_storage_mb: int | NoLimit | None = None
    on_exhausted: OnExhausted | None = None

    def columns(self) -> dict[str, object]:
        """Return the changed columns; raise InvalidRequest for a value that is out of range."""
        limits = {
            "concurrency": ("max_concurrent_agents", self.concurrency, 0),
            "minutes": ("max_task_duration_minutes", self.minutes, 1),
            "hours": ("monthly_agent_hours_limit", self.hours, 0),
            "max_pending": ("max_pending", self.max_pending, 0),
            "max_tasks_per_dag": ("max_tasks_per_dag", self.max_tasks_per_dag, 1),
            "artifact_storage_mb": ("artifact_storage_mb", self.artifact_storage_mb, 0),
        }
        columns: dict[str, object] = {}
        for field, (column, value, minimum) in limits.items():
            if isinstance(value, int) and not minimum <= value <= MAX_LIMIT:
                raise InvalidRequest(field, str(value), legal=f"{minimum} to {MAX_LIMIT}")
            if value is not None:
                columns[column] = value if isinstance(value, int) else None
        if self.on_exhausted is not None:
            columns["on_exhausted"] = self.on_exhausted.value
        return columns


def checked_name(name: str) -> str:
    """Return the name if a user may have it, else raise InvalidRequest.

    Names are used in commands, logs and URLs.
    """
    if not NAME.fullmatch(name):
        legal = "1 to 100 letters, digits and . _ - @ +, such as ada.lovelace"
        raise InvalidRequest("name", f"{name!r} cannot be a user's name", legal=legal)
    return name


def rename_user(db: Db, user_id: UserId, name: str, *, actor: str = "operator") -> None:
    """Rename a user; everything else refers to the user's id.

    Locks the lane. Raises InvalidRequest for a name that no user may have, and UserNotFound; a name
    that another user has violates a unique constraint of Postgres.
    """
    columns: dict[str, object] = {"name": checked_name(name)}
    db.atomically(lambda tx: _change(tx, user_id, columns))
    _log_change(user_id, actor, columns)


def create_user(db: Db, *, name: str, plan: PlanTier, is_admin: bool = False) -> UserId:
    """Create a user with a copy of the plan's limits; a trigger creates the user's lane.

    Raises InvalidRequest for a name that no user may have; a name that another user has violates a
    unique constraint of Postgres.
    """
    values = {"name": checked_name(name), "is_admin": is_admin, **_columns(plan, PLAN_LIMITS[plan])}
    return UserId(
        db.atomically(
            lambda tx: tx.execute(insert(UserRow).values(values).returning(UserRow.id)).scalar_one()
        )
    )


def disable_user(db: Db, user_id: UserId, *, actor: str = "operator") -> bool:
    """Disable a user; return False if the user was disabled already.

    From the commit on the user's keys and tokens are refused and no task of the user is claimed.
    Running tasks may end but spawn nothing. Waiting tasks, triggers, inbox rows and bulk operations
    keep waiting. Nothing is deleted. Locks the lane. Raises UserNotFound.
    """
    return _set_disabled(db, user_id, func.clock(), actor)


def enable_user(db: Db, user_id: UserId, *, actor: str = "operator") -> bool:
    """Enable a user with the keys and limits from before; return False if not disabled.

    Locks the lane and wakes the dispatchers. Raises UserNotFound.
    """
    return _set_disabled(db, user_id, None, actor)


def appoint_admin(db: Db, user_id: UserId, *, is_admin: bool, actor: str = "operator") -> bool:
    """Make a user an admin, or no admin; return False if nothing changed.

    Keys with the admin scope are accepted on admin routes only while their user is an admin. Locks
    the lane. Raises UserNotFound.
    """

    def work(tx: Connection) -> bool:
        lanes.lock(tx, [user_id])
        was = tx.scalar(select(UserRow.is_admin).where(UserRow.id == user_id))
        if was is None:
            raise UserNotFound
        if was != is_admin:
            _change(tx, user_id, {"is_admin": is_admin})
        return bool(was != is_admin)

    changed = db.atomically(work)
    if changed:
        emit(LogEvent.LIMITS_CHANGED, user_id=user_id, actor=actor, is_admin=is_admin)
    return changed


def _set_disabled(db: Db, user_id: UserId, at: ColumnElement[datetime] | None, actor: str) -> bool:
    def work(tx: Connection) -> bool:
        lanes.lock(tx, [user_id])
        row = tx.execute(select(UserRow.disabled_at).where(UserRow.id == user_id)).one_or_none()
        if row is None:
            raise UserNotFound
        if (row.disabled_at is None) == (at is None):
            return False
        _change(tx, user_id, {"disabled_at": at})
        return True

    changed = db.atomically(work)
    if changed:
        emit(LogEvent.LIMITS_CHANGED, user_id=user_id, actor=actor, disabled=at is not None)
    return changed


def change_plan(
    db: Db,
    user_id: UserId,
    plan: PlanTier,
    *,
    limits: PlanLimits | None = None,
    actor: str = "operator",
) -> None:
    """Change a user's plan, with the plan's limits or with other `limits`.

    The new limits apply from the next claim on; running tasks go on. The user's own caps on waiting
    tasks and graph sizes stay, because plans have no such caps. Locks the lane and wakes the
    dispatchers. Raises UserNotFound.
    """
    columns = _columns(plan, limits or PLAN_LIMITS[plan])
    db.atomically(lambda tx: _change(tx, user_id, columns))
    _log_change(user_id, actor, columns)


def override_limits(
    db: Db, user_id: UserId, overrides: Overrides, *, actor: str = "operator"
) -> None:
    """Set exceptions to a user's plan; limits that are not given stay unchanged.

    Locks the lane and wakes the dispatchers. Raises InvalidRequest if no limit is given or one is
    out of its range, and UserNotFound.
    """
    columns = overrides.columns()
    if not columns:
        raise InvalidRequest(
            "limits",
            "no limit was given",
            legal="concurrency, minutes, hours, max_pending, max_tasks_per_dag, artifact_storage_mb"
            " or on_exhausted",
        )
    db.atomically(lambda tx: _change(tx, user_id, columns))
    _log_change(user_id, actor, columns)


def restore_template(db: Db, user_id: UserId, *, actor: str = "operator") -> None:
    """Remove all exceptions: the user's limits are those of the plan again.

    The user's own caps on waiting tasks and graph sizes are removed too, and used-up hours refuse
    tasks again. Locks the lane and wakes the dispatchers. Raises UserNotFound.
    """

    def work(tx: Connection) -> dict[str, object]:
        lanes.lock(tx, [user_id])
        tier = tx.scalar(select(UserRow.plan_tier).where(UserRow.id == user_id))
        if tier is None:
            raise UserNotFound
        plan = PlanTier(tier)
        template = _columns(plan, PLAN_LIMITS[plan])
        own_caps = {"max_pending": None, "max_tasks_per_dag": None}
        columns = {**template, **own_caps, "on_exhausted": OnExhausted.REJECT.value}
        _change(tx, user_id, columns)
        return columns

    _log_change(user_id, actor, db.atomically(work))


def _change(tx: Connection, user_id: UserId, columns: dict[str, object]) -> None:
    # The lane is locked first: a claim in progress still uses the old limits.
    lanes.lock(tx, [user_id])
    changed = tx.execute(
        update(UserRow).where(UserRow.id == user_id).values(columns).returning(UserRow.id)
    )
    if changed.one_or_none() is None:
        raise UserNotFound
    wake_after_commit(tx)


def _log_change(user_id: UserId, actor: str, columns: dict[str, object]) -> None:
    fields = {name: "none" if value is None else value for name, value in columns.items()}
    emit(LogEvent.LIMITS_CHANGED, user_id=user_id, actor=actor, **fields)


def _columns(plan: PlanTier, limits: PlanLimits) -> dict[str, object]:
    return {
        "plan_tier": plan.value,
        "max_concurrent_agents": limits.max_concurrent_agents,
        "max_task_duration_minutes": limits.max_task_duration_minutes,
        "monthly_agent_hours_limit": limits.monthly_agent_hours,
        "artifact_storage_mb": None,
    }
