"""Models of the admin API: users, workers, pools, locks, fairness, inbox and audit trail."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, TypedDict

from pydantic import ConfigDict, Field

from overnight.models.account import (
    Approval,
    DeadLetter,
    Lock,
    LockWait,
    Me,
    Note,
    WindowRequest,
)
from overnight.models.base import RequestModel, ResponseModel
from overnight.models.field_types import Number, ShortText, Text, WholeNumber
from overnight.models.tasks import UserLimits

Plan = Literal["free", "pro", "team", "enterprise"]
MOST = 1_000_000


class UserCreate(RequestModel):
    """A user to create, with the limits of a plan."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "ada", "plan": "pro"}]})

    name: Annotated[Text, Field(min_length=1, max_length=100)] = Field(
        description="The user's name; it must be unique."
    )
    plan: Plan = Field("free", description="The plan whose limits the user gets.")
    is_admin: bool = Field(default=False, strict=True, description="Whether the user is an admin.")


class UserChanges(RequestModel):
    """Changes of a user; a field that is left out is not changed. A plan sets all its limits."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"max_concurrent_agents": 7, "night_budget_usd": 12.5}]}
    )

    plan: Plan | None = Field(None, description="The new plan, with its limits.")
    max_concurrent_agents: WholeNumber | None = Field(
        None, ge=0, le=MOST, description="The maximum number of running tasks."
    )
    max_task_duration_minutes: WholeNumber | None = Field(
        None, ge=1, le=MOST, description="The time limit of one run."
    )
    monthly_agent_hours_limit: WholeNumber | None = Field(
        None, ge=0, le=MOST, description="The hours per billing month; null means no limit."
    )
    max_pending: WholeNumber | None = Field(
        None,
        ge=0,
        le=MOST,
        description="The maximum number of waiting tasks; null means the deployment's limit.",
    )
    max_tasks_per_dag: WholeNumber | None = Field(
        None,
        ge=1,
        le=MOST,
        description="The maximum number of tasks of a graph; null means the deployment's limit.",
    )
    on_exhausted: Literal["reject", "hold"] | None = Field(
        None, description="What happens to a new task when the hours are used up: reject or hold."
    )
    night_budget_usd: Number | None = Field(
        None, ge=0, le=999_999, description="The budget of one night; null means no limit."
    )
    window: WindowRequest | None = Field(
        None, description="The time window in which tasks may start; null means any time."
    )


class UserFields(TypedDict, total=False):
    """The fields of UserChanges for type checkers; None removes a limit or the time window."""

    plan: str
    max_concurrent_agents: int
    max_task_duration_minutes: int
    monthly_agent_hours_limit: int | None
    max_pending: int | None
    max_tasks_per_dag: int | None
    on_exhausted: str
    night_budget_usd: float | None
    window: Mapping[str, str] | None


class UserDetail(Me):
    """A user as admins see it."""

    max_concurrent_agents: int = Field(description="The maximum number of running tasks.")
    max_task_duration_minutes: int = Field(description="The time limit of one run.")
    monthly_agent_hours_limit: float | None = Field(
        None, description="The hours per billing month; null means no limit."
    )
    monthly_agent_hours_used: float = Field(description="The hours used in this billing month.")
    created_at: datetime = Field(description="When the user was created.")
    disabled_at: datetime | None = Field(
        None, description="When the user was disabled; null if it is not."
    )
    night_budget_usd: float | None = Field(
        None, description="What their runs of one night may cost; null means no limit."
    )
    exceptions: list[str] = Field(
        default_factory=list, description="The limits that differ from those of the plan."
    )


class UserLock(Lock):
    """A lock with the name of the user whose task holds it."""

    user: str = Field(description="The name of the user whose task holds the lock.")
    acquired_by_pid: int | None = Field(
        None, description="The process id of the worker, if a worker of the deployment holds it."
    )


class UserLockWait(LockWait):
    """A wait for a lock with the name of the user whose task waited."""

    user: str = Field(description="The name of the user whose tasks held it and waited for it.")


class LockReleased(ResponseModel):
    """A task whose locks were released by an admin."""

    task_id: str = Field(description="The task; it is queued again and no attempt is spent.")
    released: list[str] = Field(description="The keys of the released locks.")


class Worker(ResponseModel):
    """A worker."""

    id: str = Field(description="The name.")
    kind: str = Field(description="The kind of worker.")
    pool: str = Field(description="The pool that it serves.")
    owner: str | None = Field(None, description="The user who owns it, if it is a pull agent.")
    name: str | None = Field(None, description="Its name among its owner's agents.")
    slots: int = Field(description="How many tasks it runs at once.")
    busy: int = Field(description="How many tasks it runs now.")
    status: str = Field(description="active, draining, silent or offline.")
    capabilities: list[str] = Field(description="The capabilities that it offers.")
    types: list[str] = Field(description="The types of task that it accepts; empty means all.")
    joined_at: datetime = Field(description="When it registered.")
    last_seen_at: datetime = Field(description="When its last heartbeat or request arrived.")


class Pool(ResponseModel):
    """A pool: workers that share a queue, or one pull agent."""

    name: str = Field(description="The name.")
    kind: str = Field(description="celery, or pull for a pull agent.")
    serves: str | None = Field(
        None, description="The only user whose tasks it runs; null means all users."
    )
    paused: bool = Field(description="Whether the pool is paused.")
    workers: int = Field(description="The number of live workers.")
    slots: int = Field(description="The slots of its workers that are not draining.")
    busy: int = Field(description="How many tasks it runs now.")
    draining: int = Field(description="How many of the workers are draining.")
    capabilities: list[str] = Field(description="The capabilities that all its workers offer.")
    created_at: datetime = Field(description="When the first worker served it.")


class DrainState(ResponseModel):
    """Whether a worker is draining."""

    worker_id: str = Field(description="The full name of the worker.")
    draining: bool = Field(description="Whether it gets no further tasks.")


class PauseTarget(RequestModel):
    """What to pause or resume: a user, a pool, or with neither all tasks."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"note": "a new release"}]})

    user: ShortText | None = Field(None, description="A user's id or name.")
    pool: ShortText | None = Field(None, description="A pool's name.")
    note: Note = Field("", description="The reason; explanations of waiting tasks show it.")


class UserShare(ResponseModel):
    """One user's share of the slots and longest wait."""

    user: str = Field(description="The user's name.")
    started: int = Field(description="The number of runs started.")
    waiting: int = Field(0, description="Tasks that are ready and wait now.")
    longest_wait: float = Field(description="The longest wait in seconds.")
    median_wait: float | None = Field(None, description="The median wait, in seconds.")
    slot_seconds: float = Field(0.0, description="Seconds in which their runs held a slot.")
    slot_share: float = Field(0.0, description="Their part of all slot seconds, from 0 to 1.")
    service: float | None = Field(
        None, description="The share of the slots, relative to an equal share."
    )


class StarvingUser(ResponseModel):
    """A user whose ready tasks wait although the limits allow a start."""

    user: str = Field(description="The user's name.")
    waited_seconds: float = Field(description="The duration in seconds.")


class Fairness(ResponseModel):
    """How evenly the slots were shared between users."""

    since_at: datetime = Field(description="The start of the period.")
    until_at: datetime = Field(description="The end of the period.")
    is_shortened: bool = Field(
        description="Whether the period was shortened because it has too many runs."
    )
    starts: int = Field(description="The number of runs started.")
    longest_wait_seconds: float = Field(description="The longest wait in seconds.")
    jain: float | None = Field(None, description="Jain's fairness index; 1 is perfectly even.")
    users: list[UserShare] = Field(description="The share of each user.")
    starving: list[StarvingUser] = Field(description="Users who wait too long now.")


class UserLimitsDetail(UserLimits):
    """A user's limits with the two that only admins set."""

    max_pending: int | None = Field(
        None, description="How many tasks may wait; null means the deployment's limit."
    )
    max_tasks_per_dag: int | None = Field(
        None, description="How many tasks one graph may have; null means the deployment's limit."
    )


class UserApproval(Approval):
    """A task that waits for a larger budget, with the name of its owner."""

    user: str = Field(description="The name of the user who owns the task.")


class UserDeadLetter(DeadLetter):
    """A dead letter with the name of its owner."""

    id: int = Field(description="The dead letter's number; later ones have larger numbers.")
    user: str = Field(description="The name of the user who owns the task.")
    reviewed: bool = Field(description="Whether somebody resolved it.")


class InboxRow(ResponseModel):
    """One row of the inbox table, in which programs leave tasks within their own transactions."""

    id: int = Field(description="The row's number.")
    user: str = Field(description="The name of the user whose key wrote the row.")
    key_id: str = Field(description="The API key that the row names.")
    title: str | None = Field(None, description="The title of the task, if it has one.")
    task: dict[str, Any] | str = Field(
        description="The fields of the task; the text itself if it cannot be read as fields."
    )
    arrived_at: datetime = Field(description="When the row was written.")
    due_at: datetime = Field(description="When intake tries it next.")
    held_by: str | None = Field(None, description="Which limit keeps it waiting, if one does.")
    outcome: str | None = Field(None, description="What became of it; null while it waits.")
    settled_at: datetime | None = Field(None, description="When that was decided.")
    settled_by: str | None = Field(None, description="Who decided it.")
    task_id: str | None = Field(None, description="The task that it became, if it did.")
    error: str | None = Field(None, description="Why it was refused, if it was.")


class AuditEntry(ResponseModel):
    """One act of a person or program, as the audit trail records it."""

    at: datetime = Field(description="When it was done.")
    actor: str = Field(
        description="Who did it: user:<id> with a key or token, human:<name> at a terminal."
    )
    via: str = Field(description="The process through which it was done.")
    key_id: str | None = Field(None, description="The API key that was used, if one was.")
    act: str = Field(description="The resolution.")
    user: str | None = Field(None, description="The user it concerns; null means all users.")
    target: str = Field(description="What it was done to.")
    detail: dict[str, Any] = Field(description="What changed: the old and the new values.")


class PendingCounts(ResponseModel):
    """How many tasks wait in the whole deployment."""

    high: int = Field(description="Those of priority 1 and 2; counted up to 10,000.")
    normal: int = Field(description="All others.")
    total: int = Field(description="All tasks.")


class SlotUsage(ResponseModel):
    """How many slots are in use; a bundle of short tasks holds one slot."""

    slots_used: int = Field(description="Slots in use.")
    slots_max: int = Field(description="Slots there are, or may be in use at once.")
    by_project: dict[str, int] = Field(description="Tasks that run, by project.")
    by_user: dict[str, int] = Field(description="Tasks that run, by the name of their user.")


class LockSummary(ResponseModel):
    """The locks that tasks of all users hold."""

    active: int = Field(description="How many locks are held.")
    details: list[UserLock] = Field(description="Each of them, the oldest first.")


class QueueOverview(ResponseModel):
    """The queue of the whole deployment: what waits, what runs, which locks are held."""

    pending: PendingCounts = Field(description="What waits.")
    active: SlotUsage = Field(description="What runs.")
    user_locks: LockSummary = Field(description="Which locks are held.")
