"""Operations of admins on users, keys, tasks, workers, locks and pauses: `client.admin`."""

from datetime import datetime
from typing import Unpack
from urllib.parse import quote

import httpx2

from overnight.client.calls import Call, Page, path, read, read_list, read_page, send
from overnight.client.operations import D, Group, iteration, operation
from overnight.client.request_plan import ItemSteps, paginate
from overnight.models.account import (
    ApprovalRequest,
    ApprovalResult,
    Attempt,
    Notice,
    Pause,
    PauseState,
    ResolveResult,
)
from overnight.models.admin import (
    AuditEntry,
    AuditFinding,
    BudgetChanged,
    BudgetSet,
    DeadLetterResolution,
    DrainState,
    Fairness,
    FindingAcceptance,
    FindingAccepted,
    HoursAdjustment,
    InboxResolved,
    InboxRow,
    LockReleased,
    PauseTarget,
    Pool,
    PrunedRows,
    QueueOverview,
    QueueStatistics,
    RetentionRule,
    RetentionRun,
    StaleLocks,
    StaleLocksReleased,
    UserApproval,
    UserChanges,
    UserCreate,
    UserDeadLetter,
    UserDetail,
    UserFields,
    UserLimitsDetail,
    UserLock,
    UserLockWait,
    Worker,
)
from overnight.models.bulk import FilterFields
from overnight.models.explain import Explanation
from overnight.models.field_errors import validate
from overnight.models.keys import CreatedApiKey, KeyCreate, KeyRotation, RevokedApiKey, UserApiKey
from overnight.models.tasks import CancelResult, Forecast, Task


class Admin(Group[D]):
    """Operations of admins; the API answers 404 to the keys of other users."""

    @iteration
    def users(
        self, *, name_prefix: str | None = None, after: str | None = None, limit: int | None = None
    ) -> ItemSteps[UserDetail]:
        """Yield users, sorted by name: those whose names begin with a text, or follow a name."""
        first = None if after is None else quote(after, safe="")

        def get_page(size: int, cursor: str | None) -> Call[Page[UserDetail]]:
            where = {"name_prefix": name_prefix, "before": cursor or first}
            return read_page(UserDetail, path("admin", "users"), limit=size, **where)

        yield from paginate(get_page, limit)

    @operation
    def user(self, user: str) -> Call[UserDetail]:
        """Return one user, found by id or name."""
        return read(UserDetail, path("admin", "users", user))

    @operation
    def create_user(
        self, name: str, *, plan: str = "free", is_admin: bool = False
    ) -> Call[UserDetail]:
        """Create a user with the limits of a plan."""
        body = validate(UserCreate, {"name": name, "plan": plan, "is_admin": is_admin})
        return send(UserDetail, "POST", path("admin", "users"), body)

    @operation
    def change_user(self, user: str, **changes: Unpack[UserFields]) -> Call[UserDetail]:
        """Change a user's name, plan, limits, budget or window; see `UserChanges`."""
        body = validate(UserChanges, changes)
        return send(UserDetail, "PATCH", path("admin", "users", user), body)

    @operation
    def disable_user(self, user: str) -> Call[UserDetail]:
        """Disable a user: keys are refused and no task starts; running tasks may end."""
        return send(UserDetail, "POST", path("admin", "users", user, "disable"))

    @operation
    def enable_user(self, user: str) -> Call[UserDetail]:
        """Enable a disabled user, with the same keys and limits as before."""
        return send(UserDetail, "POST", path("admin", "users", user, "enable"))

    @operation
    def user_limits(self, user: str) -> Call[UserLimitsDetail]:
        """Return the limits of a user and how much of them is used."""
        return read(UserLimitsDetail, path("admin", "users", user, "limits"))

    @operation
    def reset_limits(self, user: str) -> Call[UserLimitsDetail]:
        """Remove all exceptions, so that the user has the limits of the plan again."""
        return send(UserLimitsDetail, "POST", path("admin", "users", user, "limits", "reset"))

    @operation
    def adjust_hours(self, user: str, hours: float, *, note: str = "") -> Call[UserLimitsDetail]:
        """Charge hours to a user's current month; negative hours are given back."""
        body = validate(HoursAdjustment, {"hours": hours, "note": note})
        return send(UserLimitsDetail, "POST", path("admin", "users", user, "hours"), body)

    @operation
    def notices(self, user: str, *, limit: int | None = None) -> Call[list[Notice]]:
        """Return the newest one-time messages (notices) to a user."""
        return read_list(Notice, path("admin", "users", user, "notices"), limit=limit)

    @operation
    def keys(self, user: str | None = None) -> Call[list[UserApiKey]]:
        """Return the API keys of all users or of one, newest first."""
        return read_list(UserApiKey, path("admin", "keys"), user=user)

    @operation
    def create_key(
        self,
        user: str,
        *,
        name: str,
        scopes: list[str] | None = None,
        expires_in_seconds: int | None = None,
    ) -> Call[CreatedApiKey]:
        """Create an API key for a user; the response is the only one with the key itself."""
        fields = {"name": name, "scopes": scopes, "expires_in_seconds": expires_in_seconds}
        present = {field: value for field, value in fields.items() if value is not None}
        body = validate(KeyCreate, present)
        return send(CreatedApiKey, "POST", path("admin", "users", user, "keys"), body)

    @operation
    def rotate_key(self, key_id: str, *, grace_seconds: int = 86_400) -> Call[CreatedApiKey]:
        """Create the key that replaces another, which stays valid for the grace period."""
        body = validate(KeyRotation, {"grace_seconds": grace_seconds})
        return send(CreatedApiKey, "POST", path("admin", "keys", key_id, "rotate"), body)

    @operation
    def revoke_key(self, key_id: str) -> Call[RevokedApiKey]:
        """Revoke a key at once."""
        return send(RevokedApiKey, "DELETE", path("admin", "keys", key_id))

    @operation
    def audit(
        self, *, user: str | None = None, since: datetime | None = None, limit: int | None = None
    ) -> Call[list[AuditEntry]]:
        """Return what people did, newest first."""
        after = None if since is None else since.isoformat()
        return read_list(AuditEntry, path("admin", "audit"), user=user, since=after, limit=limit)

    @operation
    def findings(
        self, *, everything: bool = False, limit: int | None = None
    ) -> Call[list[AuditFinding]]:
        """Return the open findings of the audit, newest first; with `everything`, all of them."""
        flag = "true" if everything else None
        where = path("admin", "audit", "findings")
        return read_list(AuditFinding, where, everything=flag, limit=limit)

    @operation
    def accept_finding(self, finding_id: int, *, note: str = "") -> Call[FindingAccepted]:
        """Let a finding of the audit be; it is not reported again."""
        body = validate(FindingAcceptance, {"note": note})
        where = path("admin", "audit", "findings", str(finding_id), "accept")
        return send(FindingAccepted, "POST", where, body)

    @operation
    def retention(self) -> Call[list[RetentionRule]]:
        """Return how long rows are kept, and how many are older."""
        return read_list(RetentionRule, path("admin", "retention"))

    @operation
    def run_retention(
        self, *, dry_run: bool = False, position: str | None = None
    ) -> Call[PrunedRows]:
        """Delete old rows for some seconds; call it again with the position of the response."""
        body = validate(RetentionRun, {"dry_run": dry_run, "position": position})
        return send(PrunedRows, "POST", path("admin", "retention", "run"), body)

    @iteration
    def tasks(
        self, user: str, *, limit: int | None = None, **criteria: Unpack[FilterFields]
    ) -> ItemSteps[Task]:
        """Yield the tasks of a user, newest first; the criteria are those of `tasks.list`."""

        def get_page(size: int, cursor: str | None) -> Call[Page[Task]]:
            at = path("admin", "tasks")
            return read_page(Task, at, user=user, **criteria, limit=size, before=cursor)

        yield from paginate(get_page, limit)

    @operation
    def recent_task_ids(self, *, limit: int = 500) -> Call[list[str]]:
        """Return the ids of the newest tasks of all users."""
        return Call("GET", path("admin", "task-ids"), _strings, {"limit": limit})

    @operation
    def task(self, task_id: str) -> Call[Task]:
        """Return a task of any user."""
        return read(Task, path("admin", "tasks", task_id))

    @operation
    def attempts(self, task_id: str, *, limit: int = 50) -> Call[list[Attempt]]:
        """Return the latest claims of a task of any user."""
        return read_list(Attempt, path("admin", "tasks", task_id, "attempts"), limit=limit)

    @operation
    def explain(self, task_id: str) -> Call[Explanation]:
        """Return the reasons why a task of any user is not running."""
        return read(Explanation, path("admin", "tasks", task_id, "explain"))

    @operation
    def forecast(self, task_id: str) -> Call[Forecast]:
        """Return when a task of any user is expected to start and end."""
        return read(Forecast, path("admin", "tasks", task_id, "forecast"))

    @operation
    def queue(self) -> Call[QueueOverview]:
        """Return what waits, what runs and which locks are held in the whole deployment."""
        return read(QueueOverview, path("admin", "queue"))

    @iteration
    def dead_letters(
        self, *, resolved: bool = False, limit: int | None = None
    ) -> ItemSteps[UserDeadLetter]:
        """Yield the dead letters of all users, newest first; with `resolved`, closed ones too."""

        def get_page(size: int, cursor: str | None) -> Call[Page[UserDeadLetter]]:
            flag = "true" if resolved else None
            at = path("admin", "dead-letters")
            return read_page(UserDeadLetter, at, resolved=flag, limit=size, before=cursor)

        yield from paginate(get_page, limit)

    @operation
    def dead_letter(self, task_id: str) -> Call[UserDeadLetter]:
        """Return the latest dead letter of a task, with every failed run."""
        return read(UserDeadLetter, path("admin", "dead-letters", task_id))

    @operation
    def resolve_dead_letter(
        self, task_id: str, resolution: str, *, note: str = ""
    ) -> Call[ResolveResult]:
        """Resolve a dead letter: `retry` runs the task again, `cancel` closes it for good."""
        body = validate(DeadLetterResolution, {"resolution": resolution, "note": note})
        return send(ResolveResult, "POST", path("admin", "dead-letters", task_id, "resolve"), body)

    @operation
    def approvals(
        self, *, user: str | None = None, limit: int | None = None
    ) -> Call[list[UserApproval]]:
        """Return the tasks that have used up a budget, those that wait longest first."""
        return read_list(UserApproval, path("admin", "approvals"), user=user, limit=limit)

    @operation
    def approve(self, task_id: str, usd: float) -> Call[ApprovalResult]:
        """Raise the budget that a task has used up, so that the task continues."""
        body = validate(ApprovalRequest, {"usd": usd})
        return send(ApprovalResult, "POST", path("admin", "approvals", task_id, "approve"), body)

    @operation
    def stop(self, task_id: str) -> Call[CancelResult]:
        """Cancel a task that has used up a budget."""
        return send(CancelResult, "POST", path("admin", "approvals", task_id, "stop"))

    @operation
    def set_dag_budget(self, dag_id: str, usd: float | None) -> Call[BudgetChanged]:
        """Set the budget of a graph; None is no limit."""
        body = validate(BudgetSet, {"usd": usd})
        return send(BudgetChanged, "PUT", path("admin", "dags", dag_id, "budget"), body)

    @operation
    def set_agent_budget(self, agent_id: str, usd: float | None) -> Call[BudgetChanged]:
        """Set the remaining budget of an agent; None is no limit."""
        body = validate(BudgetSet, {"usd": usd})
        return send(BudgetChanged, "PUT", path("admin", "agents", agent_id, "budget"), body)

    @operation
    def inbox(self, *, resolved: bool = False, limit: int | None = None) -> Call[list[InboxRow]]:
        """Return the rows of the inbox that wait or were refused; with `resolved`, all rows."""
        flag = "true" if resolved else None
        return read_list(InboxRow, path("admin", "inbox"), resolved=flag, limit=limit)

    @operation
    def retry_inbox_row(self, row_id: int) -> Call[InboxResolved]:
        """Retry a row of the inbox that was refused."""
        return send(InboxResolved, "POST", path("admin", "inbox", str(row_id), "retry"))

    @operation
    def drop_inbox_row(self, row_id: int) -> Call[InboxResolved]:
        """Drop a row of the inbox; it stays on record and never becomes a task."""
        return send(InboxResolved, "POST", path("admin", "inbox", str(row_id), "drop"))

    @operation
    def workers(self, *, offline: bool = False) -> Call[list[Worker]]:
        """Return the workers, sorted by pool; with `offline`, those that have left too."""
        flag = "true" if offline else None
        return read_list(Worker, path("admin", "workers"), offline=flag)

    @operation
    def pools(self) -> Call[list[Pool]]:
        """Return the pools, sorted by name."""
        return read_list(Pool, path("admin", "pools"))

    @operation
    def drain(self, worker_id: str) -> Call[DrainState]:
        """Give a worker no new tasks; its running tasks may end."""
        return send(DrainState, "POST", path("admin", "workers", worker_id, "drain"))

    @operation
    def undrain(self, worker_id: str) -> Call[DrainState]:
        """Give a draining worker new tasks again."""
        return send(DrainState, "POST", path("admin", "workers", worker_id, "undrain"))

    @operation
    def locks(
        self, *, user: str | None = None, project: str | None = None, limit: int | None = None
    ) -> Call[list[UserLock]]:
        """Return the locks that tasks hold, oldest first."""
        at = path("admin", "locks")
        return read_list(UserLock, at, user=user, project=project, limit=limit)

    @operation
    def lock_waits(
        self, *, user: str | None = None, limit: int | None = None
    ) -> Call[list[UserLockWait]]:
        """Return the latest waits for locks, newest first."""
        return read_list(UserLockWait, path("admin", "locks", "waits"), user=user, limit=limit)

    @operation
    def release_locks(self, task_id: str) -> Call[LockReleased]:
        """End the claim that holds a task's locks; the task is queued again, no attempt spent."""
        return send(LockReleased, "POST", path("admin", "locks", task_id, "release"))

    @operation
    def release_stale_locks(
        self, *, max_age_seconds: int | None = None, project: str | None = None
    ) -> Call[StaleLocksReleased]:
        """Release the locks that nobody has renewed for `max_age_seconds`."""
        body = validate(StaleLocks, {"max_age_seconds": max_age_seconds, "project": project})
        return send(StaleLocksReleased, "POST", path("admin", "locks", "cleanup"), body)

    @operation
    def pauses(self) -> Call[list[Pause]]:
        """Return every pause that is in force."""
        return read_list(Pause, path("admin", "pauses"))

    @operation
    def pause(
        self, *, user: str | None = None, pool: str | None = None, note: str = ""
    ) -> Call[PauseState]:
        """Start no new task of a user, in a pool, or with neither argument at all."""
        body = validate(PauseTarget, {"user": user, "pool": pool, "note": note})
        return send(PauseState, "POST", path("admin", "pause"), body)

    @operation
    def resume(self, *, user: str | None = None, pool: str | None = None) -> Call[PauseState]:
        """End a pause of a user, of a pool, or with neither argument that of the deployment."""
        body = validate(PauseTarget, {"user": user, "pool": pool})
        return send(PauseState, "POST", path("admin", "resume"), body)

    @operation
    def fairness(
        self, *, hours: int = 24, alarm_after_seconds: int | None = None
    ) -> Call[Fairness]:
        """Return how long each user waited, which share of the slots each got, and who starves."""
        at = path("admin", "fairness")
        return read(Fairness, at, hours=hours, alarm_after_seconds=alarm_after_seconds)

    @operation
    def stats(self, *, hours: int = 12) -> Call[QueueStatistics]:
        """Return what the deployment did in the last hours: tasks, waits, latency, errors, cost."""
        return read(QueueStatistics, path("admin", "stats"), hours=hours)


def _strings(response: httpx2.Response) -> list[str]:
    return [str(item) for item in response.json()]
