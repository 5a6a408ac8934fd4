"""Making users, and changing what they may do; only operators and admins come here.

The plan is a template. It is copied to the user's columns, which rule from then on: an exception
for one user is a change of a column. Every change holds from the next claim on and stops nothing
that runs already.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from sqlalchemy import ColumnElement, Connection, func, insert, select, update

from overnight.errors import InvalidRequest, UserNotFound
from overnight_server.domain.ids import UserId
from overnight_server.domain.plans import PLAN_LIMITS, OnExhausted, PlanLimits, PlanTier
from overnight_server.store import lanes
from overnight_server.store.after_commit import wake_after_commit
from overnight_server.store.db import Db
from overnight_server.store.models import User
from overnight_server.telemetry import Event, emit

# What the columns can hold, and more than anybody needs.
MOST = 1_000_000
NAME = re.compile(r"[\w.@+-]{1,100}")


class Lifted(Enum):
    """In place of a number: no limit of the user's own."""

    LIFTED = "lifted"


@dataclass(frozen=True)
class Overrides:
    """Exceptions to a plan; None leaves a limit as it is.

    Lifted hours are without limit; a lifted cap on tasks is the deployment's again.
    """

    concurrency: int | None = None
    minutes: int | None = None
    hours: int | Lifted | None = None
    max_pending: int | Lifted | None = None
    max_tasks_per_dag: int | Lifted | None = None
    on_exhausted: OnExhausted | None = None

    def columns(self) -> dict[str, object]:
        """Return the columns they change; a value no column should hold is refused."""
        named = {
            "concurrency": ("max_concurrent_agents", self.concurrency, 0),
            "minutes": ("max_task_duration_minutes", self.minutes, 1),
            "hours": ("monthly_agent_hours_limit", self.hours, 0),
            "max_pending": ("max_pending", self.max_pending, 0),
            "max_tasks_per_dag": ("max_tasks_per_dag", self.max_tasks_per_dag, 1),
        }
        columns: dict[str, object] = {}
        for field, (column, value, least) in named.items():
            if isinstance(value, int) and not least <= value <= MOST:
                raise InvalidRequest(field, str(value), legal=f"{least} to {MOST}")
            if value is not None:
                columns[column] = value if isinstance(value, int) else None
        if self.on_exhausted is not None:
            columns["on_exhausted"] = self.on_exhausted.value
        return columns


def checked_name(name: str) -> str:
    """Return a name a user may have, or refuse it; it stands in commands, logs and addresses."""
    if not NAME.fullmatch(name):
        legal = "1 to 100 letters, digits and . _ - @ +, such as ada.lovelace"
        raise InvalidRequest("name", f"{name!r} cannot be a user's name", legal=legal)
    return name


def rename_user(db: Db, user_id: UserId, name: str, *, actor: str = "operator") -> None:
    """Give a user another name; everything else goes by the id."""
    columns: dict[str, object] = {"name": checked_name(name)}
    db.atomically(lambda tx: _change(tx, user_id, columns))
    _tell(user_id, actor, columns)


def create_user(db: Db, *, name: str, plan: PlanTier, is_admin: bool = False) -> UserId:
    """Make a user with a copy of the plan's limits; a lane opens beside it by itself."""
    values = {"name": checked_name(name), "is_admin": is_admin, **_columns(plan, PLAN_LIMITS[plan])}
    return UserId(
        db.atomically(
            lambda tx: tx.execute(insert(User).values(values).returning(User.id)).scalar_one()
        )
    )


def disable_user(db: Db, user_id: UserId, *, actor: str = "operator") -> bool:
    """Shut a user out; False if they were already.

    From this moment no key or token of theirs opens anything and nothing of theirs is claimed. What
    runs may end, but spawn nothing; what waits goes on waiting, as do triggers, rows of the inbox
    and bulk operations; and nothing is taken away.
    """
    return _shut(db, user_id, func.clock(), actor)


def enable_user(db: Db, user_id: UserId, *, actor: str = "operator") -> bool:
    """Let a user in again, with the keys and limits they had; False if they were not shut out."""
    return _shut(db, user_id, None, actor)


def appoint_admin(db: Db, user_id: UserId, *, is_admin: bool, actor: str = "operator") -> bool:
    """Make a user an admin, or one like any other again; False if they were so already.

    Keys that hold the admin scope open the admins' doors, or no longer do, from this moment on.
    """

    def work(tx: Connection) -> bool:
        lanes.lock(tx, [user_id])
        was = tx.scalar(select(User.is_admin).where(User.id == user_id))
        if was is None:
            raise UserNotFound
        if was != is_admin:
            _change(tx, user_id, {"is_admin": is_admin})
        return bool(was != is_admin)

    changed = db.atomically(work)
    if changed:
        emit(Event.LIMITS_CHANGED, user_id=user_id, actor=actor, is_admin=is_admin)
    return changed


def _shut(db: Db, user_id: UserId, at: ColumnElement[datetime] | None, actor: str) -> bool:
    def work(tx: Connection) -> bool:
        lanes.lock(tx, [user_id])
        known = tx.execute(select(User.disabled_at).where(User.id == user_id)).one_or_none()
        if known is None:
            raise UserNotFound
        if (known.disabled_at is None) == (at is None):
            return False
        _change(tx, user_id, {"disabled_at": at})
        return True

    changed = db.atomically(work)
    if changed:
        emit(Event.LIMITS_CHANGED, user_id=user_id, actor=actor, disabled=at is not None)
    return changed


def change_plan(
    db: Db,
    user_id: UserId,
    plan: PlanTier,
    *,
    limits: PlanLimits | None = None,
    actor: str = "operator",
) -> None:
    """Put a user on another plan, with the plan's limits or with an exception to them.

    It holds from the next claim on. Going below what is used or running stops nothing that runs.
    Caps of the user's own on waiting tasks and on graphs stay: plans say nothing about them.
    """
    columns = _columns(plan, limits or PLAN_LIMITS[plan])
    db.atomically(lambda tx: _change(tx, user_id, columns))
    _tell(user_id, actor, columns)


def override_limits(
    db: Db, user_id: UserId, overrides: Overrides, *, actor: str = "operator"
) -> None:
    """Make an exception to a user's plan; what is not named stays as it is."""
    columns = overrides.columns()
    if not columns:
        raise InvalidRequest(
            "limits",
            "nothing was named",
            legal="concurrency, minutes, hours, max_pending, max_tasks_per_dag or on_exhausted",
        )
    db.atomically(lambda tx: _change(tx, user_id, columns))
    _tell(user_id, actor, columns)


def restore_template(db: Db, user_id: UserId, *, actor: str = "operator") -> None:
    """Take every exception back: the limits are those of the user's plan again."""

    def work(tx: Connection) -> dict[str, object]:
        lanes.lock(tx, [user_id])
        tier = tx.scalar(select(User.plan_tier).where(User.id == user_id))
        if tier is None:
            raise UserNotFound
        plan = PlanTier(tier)
        template = _columns(plan, PLAN_LIMITS[plan])
        ours = {"max_pending": None, "max_tasks_per_dag": None}
        columns = {**template, **ours, "on_exhausted": OnExhausted.REJECT.value}
        _change(tx, user_id, columns)
        return columns

    _tell(user_id, actor, db.atomically(work))


def _change(tx: Connection, user_id: UserId, columns: dict[str, object]) -> None:
    # The lane first, like everyone: a claim under way is judged by the old limits.
    lanes.lock(tx, [user_id])
    changed = tx.execute(update(User).where(User.id == user_id).values(columns).returning(User.id))
    if changed.one_or_none() is None:
        raise UserNotFound
    wake_after_commit(tx)


def _tell(user_id: UserId, actor: str, columns: dict[str, object]) -> None:
    named = {name: "none" if value is None else value for name, value in columns.items()}
    emit(Event.LIMITS_CHANGED, user_id=user_id, actor=actor, **named)


def _columns(plan: PlanTier, limits: PlanLimits) -> dict[str, object]:
    return {
        "plan_tier": plan.value,
        "max_concurrent_agents": limits.max_concurrent_agents,
        "max_task_duration_minutes": limits.max_task_duration_minutes,
        "monthly_agent_hours_limit": limits.monthly_agent_hours,
    }
