"""`TaskQueueService`: the queue under the names of the user limits' design.

It is for a caller that runs tasks itself, in sandboxes of its own: it claims through the gate like
every pool, and what it marks is a start or a settle of that claim. A claim lives in the service
that made it; a result for one that is no longer held raises StaleAttempt, as over HTTP.
"""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from overnight_server.domain.claims import Claimed, Run
from overnight_server.domain.errors import StaleAttempt, TaskNotFound
from overnight_server.domain.ids import TaskId, UserId, parse_task, show_task
from overnight_server.domain.locks import USER
from overnight_server.domain.priority import score
from overnight_server.domain.results import Raised, Result, Returned, TimedOut
from overnight_server.gate.claim import Terms, claim_one
from overnight_server.insight.locks import list_locks
from overnight_server.insight.queue import queue_status
from overnight_server.insight.tasks import TaskView, get_task
from overnight_server.intake.submit import Caps, NewTask, submit
from overnight_server.outcome.settle import settle
from overnight_server.outcome.start import start
from overnight_server.services.plans import PlanService, user
from overnight_server.settings import Settings
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

TIMEOUT = "Timeout"
OVERDUE_AT_ONCE = 500


class TaskQueueService:
    """Create, claim and mark tasks; nothing here decides who may run, the gate does."""

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
    ) -> TaskView:
        """Let one task in, within the caps."""
        task = NewTask(
            title=title,
            type=self._settings.default_type,
            description=description,
            project_id=project_id,
            priority=score(priority),
            timeout_seconds=timeout_seconds,
            locks=locks,
        )
        owner = user(user_id)
        made = submit(self._db, owner, task, Caps.of(self._settings))
        return get_task(self._db, owner, made.task_id)

    def get_running_count(self, user_id: UUID | str) -> int:
        """Return how many of the user's tasks hold a slot."""
        return queue_status(self._db, user(user_id)).running

    def get_pending_count(self, user_id: UUID | str) -> int:
        """Return how many of the user's tasks wait, for whatever reason."""
        return queue_status(self._db, user(user_id)).pending

    def get_queue_position(self, task_id: str) -> int | None:
        """Return a task's place among its user's startable tasks, from 1; None if it is not one."""
        found = parse_task(task_id)
        return get_task(self._db, self._owner(found), found).queue_position

    def can_claim_task(self, user_id: UUID | str) -> tuple[bool, str | None]:
        """Say whether another task of the user's could start now, and if not, why not."""
        allowed, reason = self._plans.can_claim_task(user_id)
        if not allowed:
            return allowed, reason
        queue = queue_status(self._db, user(user_id))
        if queue.running >= queue.max_concurrent:
            return False, f"plan_concurrency {queue.running}/{queue.max_concurrent}"
        if not queue.can_start_more:
            return False, "held: " + "; ".join(hold.message for hold in queue.held_by)
        for lock in list_locks(self._db, user_id=user(user_id)):
            if lock.key == USER:
                since = lock.acquired_at.isoformat()
                return False, f"user_lock held by {lock.task_id} since {since}"
        return True, None

    def claim_next_task_for_user(self, user_id: UUID | str) -> TaskView | None:
        """Claim the user's next task that may go."""
        return self._claim(user(user_id))

    def claim_next_task_any_user(self) -> TaskView | None:
        """Claim the next task that may go of whoever was served least."""
        return self._claim(None)

    def claim_next_task(self, user_id: UUID | str | None = None) -> TaskView | None:
        """Claim the next task that may go, of one user or of anyone."""
        return self._claim(None if user_id is None else user(user_id))

    def mark_running(self, task_id: str, sandbox_id: str) -> None:
        """Begin a claimed task in a sandbox."""
        claimed = self._claims.pop(parse_task(task_id), None)
        if claimed is None:
            raise StaleAttempt
        # The sandbox sends no heartbeats; the lease covers its longest run and the next look.
        longest = self._plans.get_limits(claimed.user_id).max_task_duration_minutes
        lease = timedelta(minutes=longest, seconds=2 * self._settings.timeout_check_interval)
        run = start(self._db, claimed.claim, holder=sandbox_id, lease=lease)
        if run is None:
            raise StaleAttempt
        self._runs[claimed.claim.task_id] = run

    def mark_completed(self, task_id: str, summary: str | None = None) -> None:
        """Record a task's good end, its hours with it."""
        self._settle(task_id, Returned(summary=summary))

    def mark_failed(self, task_id: str, reason: str) -> None:
        """Record a failed run, its hours with it; whether it is tried again the policy says."""
        run = self._runs.get(parse_task(task_id))
        by_plan = run is not None and run.plan_limited
        self._settle(
            task_id, TimedOut(by_plan=by_plan) if reason == TIMEOUT else Raised("error", reason)
        )

    def get_timed_out_tasks(self) -> list[str]:
        """Return the tasks that run on past their time."""
        asked = {"grace": 0, "limit": OVERDUE_AT_ONCE}
        rows = self._db.atomically(lambda tx: tx.execute(statement("overdue_runs"), asked).all())
        return [show_task(row.id) for row in rows if row.out_of_time]

    def _check_monthly_limit(self, user_id: UUID | str) -> bool:
        """Whether the user has hours left."""
        return self._plans.can_claim_task(user_id)[0]

    def _claim(self, user_id: UserId | None) -> TaskView | None:
        claimed = claim_one(
            self._db,
            holder=self._holder,
            terms=Terms.of(self._settings),
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
            lambda tx: tx.execute(statement("owner_of"), {"task_id": task_id}).one_or_none()
        )
        if row is None:
            raise TaskNotFound
        return UserId(row.user_id)
