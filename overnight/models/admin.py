"""Requests and responses of the admin API: users, keys, workers, locks, budgets, the queue."""

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
MOST_USD = 999_999
LONGEST_SECONDS = 1_000_000_000


class UserCreate(RequestModel):
    """A user to create, with the limits of a plan."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "ada", "plan": "pro"}]})

    name: Annotated[Text, Field(min_length=1, max_length=100)] = Field(
        description="Name of the user; it must be unique."
    )
    plan: Plan = Field("free", description="Plan whose limits the user gets.")
    is_admin: bool = Field(
        default=False, strict=True, description="Whether the user may call the admin API."
    )


class UserChanges(RequestModel):
    """The changes to a user; absent fields stay as they are. A plan also sets its limits."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"max_concurrent_agents": 7, "night_budget_usd": 12.5}]}
    )

    name: Annotated[Text, Field(min_length=1, max_length=100)] | None = Field(
        None, description="New name of the user; it must be unique."
    )
    is_admin: bool | None = Field(
        None, strict=True, description="Whether the user may call the admin API."
    )
    plan: Plan | None = Field(None, description="New plan, with its limits.")
    max_concurrent_agents: WholeNumber | None = Field(
        None, ge=0, le=MOST, description="Number of tasks that may run at the same time."
    )
    max_task_duration_minutes: WholeNumber | None = Field(
        None, ge=1, le=MOST, description="Longest duration of one run, in minutes."
    )
    monthly_agent_hours_limit: WholeNumber | None = Field(
        None, ge=0, le=MOST, description="Hours per month; null is no limit."
    )
    max_pending: WholeNumber | None = Field(
        None,
        ge=0,
        le=MOST,
        description="Number of tasks that may wait; null is the deployment's limit.",
    )
    max_tasks_per_dag: WholeNumber | None = Field(
        None,
        ge=1,
        le=MOST,
        description="Number of tasks in one graph; null is the deployment's limit.",
    )
    artifact_storage_mb: WholeNumber | None = Field(
        None, ge=0, le=MOST, description="MB of artifacts that may be stored; null is the plan's."
    )
    on_exhausted: Literal["reject", "hold"] | None = Field(
        None, description="Whether submits are rejected or held when the hours are used up."
    )
    night_budget_usd: Number | None = Field(
        None, ge=0, le=MOST_USD, description="Budget of one night; null is no limit."
    )
    window: WindowRequest | None = Field(
        None, description="Hours in which tasks may start; null is always."
    )


class UserFields(TypedDict, total=False):
    """The fields of UserChanges, for editors; None removes a limit or a window."""

    name: str
    is_admin: bool
    plan: str
    max_concurrent_agents: int
    max_task_duration_minutes: int
    monthly_agent_hours_limit: int | None
    max_pending: int | None
    max_tasks_per_dag: int | None
    artifact_storage_mb: int | None
    on_exhausted: str
    night_budget_usd: float | None
    window: Mapping[str, str] | None


class UserDetail(Me):
    """A user as admins see one."""

    max_concurrent_agents: int = Field(description="Number of tasks that may run at the same time.")
    max_task_duration_minutes: int = Field(description="Longest duration of one run, in minutes.")
    monthly_agent_hours_limit: int | None = Field(
        None, description="Hours per month; null is no limit."
    )
    monthly_agent_hours_used: float = Field(description="Hours used in this billing month.")
    night_budget_usd: float | None = Field(
        None, description="Budget of one night; null is no limit."
    )
    exceptions: list[str] = Field(
        default_factory=list, description="Limits that differ from those of the plan."
    )
    created_at: datetime = Field(description="When the user was created.")
    disabled_at: datetime | None = Field(None, description="When the user was disabled, if so.")


class UserLimitsDetail(UserLimits):
    """The limits of a user, with those that override the deployment's; null is no override."""

    max_pending: int | None = Field(None, description="Number of tasks that may wait.")
    max_tasks_per_dag: int | None = Field(None, description="Number of tasks in one graph.")


class HoursAdjustment(RequestModel):
    """Hours to charge to a user's current month, or to give back."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"hours": -2.5, "note": "outage on Monday"}]}
    )

    hours: Number = Field(
        ge=-MOST, le=MOST, description="Hours to charge; negative to give hours back."
    )
    note: Note = Field("", description="Reason; kept in the ledger.")


class AuditEntry(ResponseModel):
    """One act of a person: who did what, to which user or object."""

    at: datetime = Field(description="When it was done.")
    actor: str = Field(description="Who did it: user: and an id, or human: and a login name.")
    actor_name: str | None = Field(None, description="The name of that user, if it was one.")
    via: str = Field(description="The process that did it.")
    key_id: str | None = Field(None, description="Id of the API key that was used, if any.")
    act: str = Field(description="What was done.")
    user: str | None = Field(None, description="The user it concerns; null is all users.")
    target: str = Field(description="The object it was done to.")
    detail: dict[str, Any] = Field(description="Changed fields, each with old and new value.")


class AuditFinding(ResponseModel):
    """Rows that contradict each other, as the audit found them."""

    id: int = Field(description="Number of the finding; numbers grow.")
    rule: str = Field(description="Name of the rule that is broken.")
    problem: str = Field(description="How the rule is broken, as a sentence.")
    advice: str = Field(description="What a person does about it.")
    subject: str = Field(description="The user, pool, graph, task or bulk operation it is about.")
    user: str | None = Field(None, description="The user it concerns, if any.")
    detail: dict[str, Any] = Field(description="The values that contradict each other.")
    status: Literal["open", "accepted", "repaired", "gone"] = Field(
        description="open: needs a person; accepted: a person lets it be; repaired: by the audit;"
        " gone: the rows agree again."
    )
    found_at: datetime = Field(description="When it was found.")
    checked_at: datetime = Field(description="When it was last seen.")
    ended_at: datetime | None = Field(None, description="When it was repaired or gone.")
    accepted_by: str | None = Field(None, description="Who accepted it, if somebody did.")
    note: str | None = Field(None, description="Why it was accepted.")


class FindingAcceptance(RequestModel):
    """Why a finding of the audit is accepted."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"note": "rows deleted by hand on Monday"}]}
    )

    note: Note = Field("", description="Reason; kept with the finding.")


class FindingAccepted(ResponseModel):
    """A finding that was accepted and is not reported again."""

    id: int = Field(description="Number of the finding.")


class RetentionRule(ResponseModel):
    """How long rows of one kind are kept."""

    name: str = Field(description="Name of the rule.")
    deletes: str = Field(description="Which rows it deletes.")
    days: int | None = Field(description="After how many days; null: never.")
    setting: str = Field(description="The setting that changes the days.")
    past_rows: int | None = Field(
        description="How many rows are older than that, counted up to 10,000; some of them may be"
        " kept because something needs them. Null if they are kept forever."
    )


class RetentionRun(RequestModel):
    """A pass that deletes old rows now."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"dry_run": True}]})

    dry_run: bool = Field(default=False, description="Only count the rows that would be deleted.")
    position: str | None = Field(
        None,
        max_length=100,
        pattern=r"^[a-z_]+:(events_[0-9]+:)?([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})?$",
        description="Where an earlier pass stopped; without it the pass begins at the start.",
    )


class PrunedRows(ResponseModel):
    """What one pass has deleted, or would delete."""

    rows: dict[str, int] = Field(description="Number of rows by rule; without those of no row.")
    dry_run: bool = Field(description="Whether they were only counted.")
    position: str | None = Field(description="Where to go on; null: everything was looked at.")


class UserDeadLetter(DeadLetter):
    """A dead letter and its owner."""

    id: int = Field(description="Number of the dead letter; numbers grow.")
    reviewed: bool = Field(description="Whether somebody has resolved it.")
    user: str = Field(description="Owner of the task.")


class DeadLetterResolution(RequestModel):
    """What an admin decides about a dead letter."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"resolution": "retry", "note": "the disk is replaced"}]}
    )

    resolution: Literal["retry", "cancel"] = Field(
        description="Run the task again, or close the dead letter."
    )
    note: Note = Field("", description="Reason; kept with the dead letter.")


class UserApproval(Approval):
    """A task that has used up a budget, and its owner."""

    user: str = Field(description="Owner of the task.")


class BudgetSet(RequestModel):
    """A budget in US dollars."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"usd": 20}]})

    usd: Number | None = Field(ge=0, le=MOST_USD, description="US dollars; null is no limit.")


class BudgetChanged(ResponseModel):
    """A budget that was set."""

    id: str = Field(description="Id of the graph or agent.")
    budget_usd: float | None = Field(None, description="US dollars; null is no limit.")


class InboxRow(ResponseModel):
    """A row of the inbox: a task that a program wrote in its own transaction."""

    id: int = Field(description="Number of the row.")
    user: str = Field(description="User for whom the task was written.")
    key_id: str = Field(description="Id of the API key that was used.")
    title: str | None = Field(None, description="Title of the task, if it can be read.")
    task: dict[str, Any] | str = Field(description="The fields, or the text if it is not valid.")
    arrived_at: datetime = Field(description="When it was written.")
    due_at: datetime = Field(description="When it is tried next.")
    held_by: str | None = Field(None, description="What keeps it waiting, if anything.")
    outcome: str | None = Field(None, description="Its result; null while it waits.")
    settled_at: datetime | None = Field(None, description="When it got its result.")
    settled_by: str | None = Field(None, description="Who gave it its result.")
    task_id: str | None = Field(None, description="The task it became, if it did.")
    error: str | None = Field(None, description="Why it was refused, if it was.")


class InboxResolved(ResponseModel):
    """A row of the inbox that will be retried or was dropped."""

    id: int = Field(description="Number of the row.")
    resolution: Literal["retry", "drop"] = Field(description="What was done.")


class UserLock(Lock):
    """A lock and its user."""

    user: str = Field(description="The user whose task holds the lock.")
    acquired_by_pid: int | None = Field(
        None, description="Process id of the worker, if it runs in the deployment."
    )


class LockReleased(ResponseModel):
    """A task whose locks were released."""

    task_id: str = Field(description="The task; it is in the queue again and has spent no attempt.")
    released: list[str] = Field(description="Keys of the released locks.")


class UserLockWait(LockWait):
    """A time that a task waited for a lock, and its user."""

    user: str = Field(description="Owner of the tasks.")


class StaleLocks(RequestModel):
    """Which locks count as stale."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"max_age_seconds": 3600}]})

    max_age_seconds: WholeNumber | None = Field(
        None,
        ge=1,
        le=LONGEST_SECONDS,
        description="Time without renewal; absent is the deployment's setting.",
    )
    project: ShortText | None = Field(None, description="Only locks of this project.")


class StaleLocksReleased(ResponseModel):
    """Stale locks that were released."""

    cleaned: int = Field(description="Number of released locks.")
    max_age_seconds: float = Field(description="Time without renewal that counted as stale.")


class PendingCounts(ResponseModel):
    """Tasks that wait."""

    high: int = Field(description="With priority 1 or 2; counted up to 10,000.")
    normal: int = Field(description="The others.")
    total: int = Field(description="All of them.")


class SlotUsage(ResponseModel):
    """Slots in use; a bundle of short tasks uses one slot."""

    slots_used: int = Field(description="Slots in use.")
    slots_max: int = Field(description="Slots of live workers, or the deployment's cap.")
    by_project: dict[str, int] = Field(description="Slots in use per project.")
    by_user: dict[str, int] = Field(description="Slots in use per user.")


class LockSummary(ResponseModel):
    """The locks that tasks hold."""

    active: int = Field(description="Number of locks.")
    details: list[UserLock] = Field(description="The locks, oldest first.")


class QueueOverview(ResponseModel):
    """The queue, the slots and the locks of the whole deployment."""

    pending: PendingCounts = Field(description="Tasks that wait.")
    active: SlotUsage = Field(description="Slots in use.")
    user_locks: LockSummary = Field(description="Locks that tasks hold.")


class Worker(ResponseModel):
    """A worker process, or an agent outside the deployment."""

    id: str = Field(description="Id of the worker.")
    kind: str = Field(description="celery, or pull for an agent outside the deployment.")
    pool: str = Field(description="Pool of the worker.")
    owner: str | None = Field(None, description="Owner of an agent outside the deployment.")
    name: str | None = Field(None, description="Name of an agent outside the deployment.")
    slots: int = Field(description="Number of tasks that it can run at the same time.")
    busy: int = Field(description="Number of tasks that it runs now.")
    status: str = Field(
        description="active, draining, deaf (it reads no messages), silent or offline."
    )
    dropped_messages: int = Field(
        default=0, description="Forged or malformed messages that it dropped since its start."
    )
    capabilities: list[str] = Field(description="Capabilities of the worker.")
    types: list[str] = Field(description="Task types that it accepts; an empty list is all.")
    joined_at: datetime = Field(description="When it registered.")
    last_seen_at: datetime = Field(description="Time of its last heartbeat.")


class Pool(ResponseModel):
    """A pool: workers that share a queue, or one agent that pulls its tasks."""

    name: str = Field(description="Name of the pool.")
    kind: str = Field(description="celery, or pull for an agent outside the deployment.")
    serves: str | None = Field(None, description="The only user that it serves; null is all users.")
    paused: bool = Field(description="Whether the pool is paused.")
    workers: int = Field(description="Number of live workers.")
    slots: int = Field(description="Slots of the live workers that are not draining.")
    busy: int = Field(description="Number of tasks that run now.")
    draining: int = Field(description="Number of draining workers.")
    capabilities: list[str] = Field(description="Capabilities that all its workers have.")
    created_at: datetime = Field(description="When its first worker registered.")


class DrainState(ResponseModel):
    """A worker that was drained, or that gets tasks again."""

    worker_id: str = Field(description="WholeNumber id of the worker.")
    draining: bool = Field(description="Whether it gets no new tasks.")


class PauseTarget(RequestModel):
    """What to pause or resume: a user, a pool, or with neither the whole deployment."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"note": "a new release"}]})

    user: ShortText | None = Field(None, description="Id or name of a user.")
    pool: ShortText | None = Field(None, description="Name of a pool.")
    note: Note = Field("", description="Reason; shown in the explanation of waiting tasks.")


class UserShare(ResponseModel):
    """The share of slots that one user got, and how long the tasks waited."""

    user: str = Field(description="Name of the user.")
    started: int = Field(description="Number of runs that started.")
    waiting: int = Field(0, description="Number of ready tasks that wait now.")
    longest_wait: float = Field(description="Longest wait, in seconds.")
    median_wait: float | None = Field(None, description="Median wait, in seconds.")
    slot_seconds: float = Field(0.0, description="Slot time of the user, in seconds.")
    slot_share: float = Field(0.0, description="Share of all slot time, from 0 to 1.")
    service: float | None = Field(
        None, description="What the user got of an even share, from 0 to 1."
    )


class StarvingUser(ResponseModel):
    """A user whose ready tasks wait too long although the plan would let them run."""

    user: str = Field(description="Name of the user.")
    waited_seconds: float = Field(description="How long the oldest ready task has waited.")


class Fairness(ResponseModel):
    """How evenly the users were served in a period."""

    since_at: datetime = Field(description="Begin of the period.")
    until_at: datetime = Field(description="End of the period.")
    is_shortened: bool = Field(
        description="Whether the period had too many runs and was shortened."
    )
    starts: int = Field(description="Number of runs that started.")
    longest_wait_seconds: float = Field(description="Longest wait of all users, in seconds.")
    jain: float | None = Field(None, description="Jain's fairness index; 1 is perfectly even.")
    users: list[UserShare] = Field(description="One entry per user.")
    starving: list[StarvingUser] = Field(description="Users who wait too long now.")


class QueueHour(ResponseModel):
    """What happened in one hour; a row of the table `task_queue_metrics`."""

    hour: datetime = Field(description="Begin of the hour.")
    tasks_created: int = Field(description="Tasks that were submitted.")
    tasks_completed: int = Field(description="Tasks that completed.")
    tasks_failed: int = Field(
        description="Runs that failed, and tasks that were dead-lettered without a run."
    )
    tasks_dead_lettered: int = Field(description="Tasks that became dead letters.")
    tasks_cancelled: int = Field(description="Tasks that were cancelled.")
    average_latency: float | None = Field(
        None, description="Seconds from the submit to the end, over the tasks that completed."
    )
    worker_heartbeat_delay: float | None = Field(
        None, description="The longest silence of a worker that was not offline, in seconds."
    )
    error_rates_per_agent: dict[str, float] = Field(
        description="The share of each agent's ended runs that failed."
    )
    wait_p50: float | None = Field(
        None, description="The wait in seconds that half of the claims did not exceed."
    )
    wait_p95: float | None = Field(
        None, description="The wait in seconds that 95 % of the claims did not exceed."
    )
    cost_usd: float = Field(description="What the runs cost that ended.")


class QueueStatistics(ResponseModel):
    """What the deployment did in a period, hour by hour, and in sum."""

    since_at: datetime = Field(description="Begin of the period, a full hour.")
    until_at: datetime = Field(description="End of the period: now.")
    total: QueueHour = Field(description="The whole period as if it were one hour.")
    hours: list[QueueHour] = Field(description="Every hour of the period, oldest first.")
