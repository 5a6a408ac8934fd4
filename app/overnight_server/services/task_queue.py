"""`TaskQueueService`: create, claim and settle tasks (interface of the user limits document).

It is for a program that runs tasks itself, in its own sandboxes. A claim goes through the gate as
for every pool; `mark_running` starts it and `mark_completed` or `mark_failed` settles it. This
object keeps the claims. A call for a claim that is no longer held raises StaleAttempt.
"""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from overnight.errors import StaleAttempt, TaskNotFound
from overnight.models.tasks import TaskResponse
from overnight_server.domain.claims import Claimed, Run
from overnight_server.domain.ids import TaskId, UserId, parse_task, show_task
from overnight_server.domain.lock_keys import USER
from overnight_server.domain.priority import score
from overnight_server.domain.results import Raised, Result, Returned, TimedOut
from overnight_server.gate.claim import ClaimSettings, claim_one
from overnight_server.insight.locks import list_locks
from overnight_server.insight.queue_status import queue_status
from overnight_server.insight.tasks import get_task
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import NewTask
from overnight_server.intake.submit import submit
from overnight_server.outcome.settle import settle
from overnight_server.outcome.start import start
from overnight_server.services.plans import PlanService, as_user_id
from overnight_server.settings import Settings
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

TIMEOUT = "Timeout"
MAX_OVERDUE = 500


class TaskQueueService:
    """Creates, claims, starts and settles tasks; the gate decides which task may run."""

    def __init__(
        self,
        db: Db,
        settings: Settings,
        *,
        holder: str,
        capabilities: Sequence[str] = (),
        plans: PlanService | None = None,
    ) -> None:
        self._db = db
        self._settings = settings
        self._holder = holder
        self._capabilities = tuple(capabilities)
        self._plans = plans or PlanService(db)
        self._claims: dict[TaskId, Claimed] = {}
        self._runs: dict[TaskId, Run] = {}

    def create_task(
        self,
        user_id: UUID | str,
        title: str,
        description: str = "",
        project_id: str | None = None,
        priority: int = 3,
        *,
        timeout_seconds: int | None = None,
        locks: Sequence[str] = (),
    ) -> TaskResponse:
        """Submit one task; the caps on waiting tasks apply."""
        task = NewTask(
            title=title,
            type=self._settings.default_type,
            description=description,
            project_id=project_id,
            priority=score(priority),
            timeout_seconds=timeout_seconds,
            locks=locks,
        )
        owner = as_user_id(user_id)
        made = submit(self._db, owner, task, Caps.of(self._settings))
        return get_task(self._db, owner, made.task_id)

    def get_running_count(self, user_id: UUID | str) -> int:
        """Return how many of the user's tasks hold a slot."""
        return queue_status(self._db, as_user_id(user_id)).running

    def get_pending_count(self, user_id: UUID | str) -> int:
        """Return how many of the user's tasks wait, for any reason."""
        return queue_status(self._db, as_user_id(user_id)).pending

    def get_queue_position(self, task_id: str) -> int | None:
        """Return a task's position, from 1, among its user's startable tasks, or None."""
        parsed = parse_task(task_id)
        return get_task(self._db, self._owner(parsed), parsed).queue_position

    def can_claim_task(self, user_id: UUID | str) -> tuple[bool, str | None]:
        """Return whether another task of the user could start now, and the reason if not."""
        allowed, reason = self._plans.can_claim_task(user_id)
        if not allowed:
            return allowed, reason
        queue = queue_status(self._db, as_user_id(user_id))
        if queue.running >= queue.max_concurrent:
            return False, f"plan_concurrency {queue.running}/{queue.max_concurrent}"
        if not queue.can_start_more:
            return False, "held: " + "; ".join(hold.message for hold in queue.held_by)
        for lock in list_locks(self._db, user_id=as_user_id(user_id)):
            if lock.key == USER:
                since = lock.acquired_at.isoformat()
                return False, f"user_lock held by {lock.task_id} since {since}"
        return True, None

    def claim_next_task_for_user(self, user_id: UUID | str) -> TaskResponse | None:
        """Claim the next task of this user that the gate allows; None if there is none."""
        return self._claim(as_user_id(user_id))

    def claim_next_task_any_user(self) -> TaskResponse | None:
        """Claim the next task that the gate allows, of any user; None if there is none."""
        return self._claim(None)

    def claim_next_task(self, user_id: UUID | str | None = None) -> TaskResponse | None:
        """Claim the next task that the gate allows, of one user or of any user."""
        return self._claim(None if user_id is None else as_user_id(user_id))

    def mark_running(self, task_id: str, sandbox_id: str) -> None:
        """Start a task that this object has claimed; its holder is then the sandbox."""
        claimed = self._claims.pop(parse_task(task_id), None)
        if claimed is None:
            raise StaleAttempt
        # The sandbox sends no heartbeats: the lease covers the longest run and two timeout sweeps.
        longest = self._plans.get_limits(claimed.user_id).max_task_duration_minutes
        lease = timedelta(minutes=longest, seconds=2 * self._settings.timeout_check_interval)
        run = start(self._db, claimed.claim, holder=sandbox_id, lease=lease)
        if run is None:
            raise StaleAttempt
        self._runs[claimed.claim.task_id] = run

    def mark_completed(self, task_id: str, summary: str | None = None) -> None:
        """Settle a started task as completed and charge its hours."""
        self._settle(task_id, Returned(summary=summary))

    def mark_failed(self, task_id: str, reason: str) -> None:
        """Settle a started task as failed and charge its hours; its retry policy applies."""
        run = self._runs.get(parse_task(task_id))
        by_plan = run is not None and run.plan_limited
        self._settle(
            task_id, TimedOut(by_plan=by_plan) if reason == TIMEOUT else Raised("error", reason)
        )

    def get_timed_out_tasks(self) -> list[str]:
        """Return the ids of running tasks that have exceeded their timeout."""
        params = {"grace": 0, "own_grace": False, "limit": MAX_OVERDUE}
        rows = self._db.atomically(lambda tx: tx.execute(statement("overdue_runs"), params).all())
        return [show_task(row.id) for row in rows if row.out_of_time]

    def _check_monthly_limit(self, user_id: UUID | str) -> bool:
        """Return whether the user has hours left in this billing month."""
        return self._plans.can_claim_task(user_id)[0]

    def _claim(self, user_id: UserId | None) -> TaskResponse | None:
        claimed = claim_one(
            self._db,
            holder=self._holder,
            claim_settings=ClaimSettings.from_settings(self._settings),
            user_id=user_id,
            capabilities=self._capabilities,
        )
        if claimed is None:
            return None
        self._claims[claimed.claim.task_id] = claimed
        return get_task(self._db, claimed.user_id, claimed.claim.task_id)

    def _settle(self, task_id: str, result: Result) -> None:
        run = self._runs.pop(parse_task(task_id), None)
        if run is None or not settle(self._db, run, result, agent=self._holder):
            raise StaleAttempt

    def _owner(self, task_id: TaskId) -> UserId:
        row = self._db.atomically(
            lambda tx: tx.execute(statement("owner_of_task"), {"task_id": task_id}).one_or_none()
        )
        if row is None:
            raise TaskNotFound
        return UserId(row.user_id)
