"""A model of the deployment in plain dicts: it predicts the result of each act without a database.

The model records who holds which task, counts attempts and seconds, and follows edges. Two things
it does not compute itself: which of several possible tasks the gate chooses, and the verdict on a
finished run, because `judge` is pure and has its own tests.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from overnight_server.domain.billing_months import boundary, cycle_at
from overnight_server.domain.claims import Claim, Claimed, FailedRun
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.domain.lifecycle import ACTIVE, FINAL, MOVES, State
from overnight_server.domain.lock_keys import are_in_conflict
from overnight_server.domain.plans import PlanLimits
from overnight_server.domain.results import Died, Expired, Lost, Result, StoppedByCancel, TimedOut
from overnight_server.domain.retry import RetryRules
from overnight_server.domain.verdicts import TaskHistory, Verdict, judge

UPSTREAM_FAILED = "upstream_failed"
UPSTREAM_CANCELLED = "upstream_cancelled"
CANCELLED = "cancelled"
DISCARDED = "discarded"


@dataclass
class HeldClaim:
    """The claim columns of a task."""

    token: UUID
    holder: str
    granted: int
    expires_at: datetime
    bundle: UUID | None = None
    started_at: datetime | None = None
    heartbeat_at: datetime | None = None


@dataclass
class Task:
    """One task: what was submitted, and its progress."""

    user: UserId
    state: State
    max_attempts: int
    retry: RetryRules
    timeout: int | None = None
    capabilities: frozenset[str] = frozenset()
    locks: Sequence[str] = ()
    is_quick: bool = False
    alone: bool = False
    parents: set[TaskId] = field(default_factory=set)
    attempts: int = 0
    epoch: int = 0
    held: HeldClaim | None = None
    retry_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    reason: str | None = None
    failures: list[FailedRun] = field(default_factory=list)
    has_open_letter: bool = False

    @property
    def deadline(self) -> datetime | None:
        """When the run will have used the time that it was granted."""
        if self.held is None or self.held.started_at is None:
            return None
        return self.held.started_at + timedelta(seconds=self.held.granted)

    @property
    def plan_limited(self) -> bool:
        """Whether the plan, not the task's own timeout, limits the run."""
        assert self.held is not None
        return self.timeout is None or self.held.granted < self.timeout


@dataclass
class User:
    """A user's limits, the first billing month, and whether submits without hours are refused."""

    limits: PlanLimits
    anchor: datetime
    rejects: bool


@dataclass(frozen=True)
class Slots:
    """Messages that may be sent: `free` to idle slots, `total` with bundles behind others."""

    free: int
    total: int


@dataclass
class Agent:
    """A worker: `beats` is False while it hangs, `known` is False after it was retired."""

    slots: int
    capabilities: frozenset[str]
    seen_at: datetime
    beats: bool = True
    known: bool = True


@dataclass
class Model:
    """The predicted state of the deployment after all acts so far."""

    now: datetime
    liveness: timedelta
    users: dict[UserId, User] = field(default_factory=dict)
    tasks: dict[TaskId, Task] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)
    used: Counter[tuple[UserId, int]] = field(default_factory=Counter)

    # -- reads ------------------------------------------------------------------------------------

    def of(self, user: UserId, states: Iterable[State]) -> list[Task]:
        """Return a user's tasks in these states."""
        allowed = frozenset(states)
        return [task for task in self.tasks.values() if task.user == user and task.state in allowed]

    def in_states(self, *states: State) -> list[TaskId]:
        """Return all tasks in these states, oldest first."""
        return [task_id for task_id, task in self.tasks.items() if task.state in states]

    def holds(self, claim: Claim) -> bool:
        """Return whether this claim holds its task."""
        task = self.tasks[claim.task_id]
        return task.held is not None and (task.epoch, task.held.token) == (claim.epoch, claim.token)

    def runs(self, claim: Claim) -> bool:
        """Return whether this claim holds its task and was started."""
        return self.holds(claim) and self.tasks[claim.task_id].state is State.RUNNING

    def live(self) -> list[Agent]:
        """Return the workers whose slots count."""
        return [agent for agent in self.agents.values() if agent.known and self._is_live(agent)]

    def slots(self) -> Slots:
        """Return how many messages the workers could take now."""
        bundles = [task.held.bundle for task in self.tasks.values() if task.held is not None]
        bundle_count = len({bundle for bundle in bundles if bundle is not None})
        slot_count = sum(agent.slots for agent in self.live())
        free = slot_count - bundles.count(None) - bundle_count
        return Slots(free, free + min(bundle_count, slot_count))

    def seconds_left(self, user: UserId) -> float:
        """Return the seconds left in the user's month after used and reserved ones."""
        owner = self.users[user]
        if owner.limits.monthly_agent_hours is None:
            return float("inf")
        reserved = sum(task.held.granted for task in self.of(user, ACTIVE) if task.held)
        return owner.limits.monthly_agent_hours * 3600 - self._used_now(user) - reserved

    def month(self, user: UserId) -> tuple[datetime, datetime, int]:
        """Return when the user's month began, when it ends, and the seconds used in it."""
        anchor = self.users[user].anchor
        cycle = cycle_at(anchor, self.now)
        return boundary(anchor, cycle), boundary(anchor, cycle + 1), self._used_now(user)

    def is_exhausted(self, user: UserId) -> bool:
        """Return whether the user's hours are used up and submits are refused."""
        owner = self.users[user]
        hours = owner.limits.monthly_agent_hours
        return owner.rejects and hours is not None and self._used_now(user) >= hours * 3600

    def granted(self, task: Task) -> int:
        """Return the seconds a claim of this task would be granted."""
        limit = self.users[task.user].limits.max_task_duration_minutes * 60
        return min(task.timeout or limit, limit)

    def claimable(self) -> list[TaskId]:
        """Return every task that the gate may claim next if a slot is free."""
        return self._claimable_with(agent.capabilities for agent in self.live())

    def surely_claimable(self) -> list[TaskId]:
        """Return every task that the gate must claim if a slot is free.

        A lane that is skipped by the pool is read again when a silent worker is retired, not
        already when it falls silent. So the silent worker's capabilities count as well.
        """
        capabilities = [agent.capabilities for agent in self.agents.values() if agent.known]
        certain = self._claimable_with(capabilities)
        return [task_id for task_id in self.claimable() if task_id in certain]

    # -- acts -------------------------------------------------------------------------------------

    def submit(self, task_id: TaskId, task: Task) -> None:
        """Add a task."""
        task.state = State.PENDING if task.parents else State.READY
        self.tasks[task_id] = task

    def take(self, claims: Sequence[Claimed], *, holder: str, ttl: timedelta) -> None:
        """Check that the gate may claim these tasks in one pass, and claim them."""
        slots = self.slots()
        singles = [claimed for claimed in claims if claimed.bundle is None]
        bundles = {claimed.bundle for claimed in claims} - {None}
        assert len(singles) <= max(0, slots.free), "more single tasks than slots"
        assert len(singles) + len(bundles) <= max(0, slots.total), "more messages than slots"
        for claimed in claims:
            self._take(claimed, HeldClaim(claimed.claim.token, holder, 0, self.now + ttl))

    def _take(self, claimed: Claimed, held: HeldClaim) -> None:
        claim = claimed.claim
        task = self.tasks[claim.task_id]
        assert claim.task_id in self.claimable(), f"{task} may not be claimed"
        assert (claim.epoch, claimed.attempt) == (task.epoch + 1, task.attempts + 1)
        assert claimed.bundle is None or (task.is_quick and not task.alone), f"{task} in a bundle"
        task.state = State.CLAIMED
        task.epoch = claim.epoch
        held.granted, held.bundle = self.granted(task), claimed.bundle
        task.held = held

    def start(self, claim: Claim, agent: str, lease: timedelta) -> bool:
        """Start a claim; return False if it does not hold its task or has expired."""
        task = self.tasks[claim.task_id]
        if not self.holds(claim) or task.state is not State.CLAIMED:
            return False
        assert task.held is not None
        if task.held.expires_at <= self.now:
            return False
        task.state = State.RUNNING
        task.held.holder = agent
        task.held.started_at = task.held.heartbeat_at = self.now
        task.held.expires_at = self.now + lease
        return True

    def beat(self, claim: Claim, lease: timedelta) -> str:
        """Extend a run's lease; return the answer to its heartbeat."""
        task = self.tasks[claim.task_id]
        if not self.runs(claim) or task.held is None:
            return "lost"
        task.held.heartbeat_at = self.now
        task.held.expires_at = self.now + lease
        return "cancel" if task.cancel_requested_at else "continue"

    def settle(self, claim: Claim, result: Result, agent: str) -> bool:
        """End a claim; return False if it does not hold its task or was not started."""
        task = self.tasks[claim.task_id]
        if not self.holds(claim):
            return False
        verdict = self._judged(task, result, agent)
        possible = {State.CLAIMED} if isinstance(result, Expired) else MOVES[verdict.event].sources
        if task.state not in possible:
            return False
        self._end(claim.task_id, verdict, agent, result.ran_seconds)
        return True

    def expired(self) -> list[TaskId]:
        """Return the tasks that the reaper must take back."""
        return [
            task_id
            for task_id, task in self.tasks.items()
            if task.held is not None and task.held.expires_at <= self.now
        ]

    def overdue(self, grace: timedelta) -> list[TaskId]:
        """Return the runs that should have stopped and still send heartbeats."""
        return [
            task_id
            for task_id in self.in_states(State.RUNNING)
            if task_id not in self.expired()
            and any(
                since is not None and since + grace <= self.now
                for since in (self.tasks[task_id].deadline, self.tasks[task_id].cancel_requested_at)
            )
        ]

    def take_back(self, task_id: TaskId, *, died: bool = False) -> None:
        """End a claim without its holder, with the result that the deployment must assume."""
        task = self.tasks[task_id]
        assert task.held is not None
        holder = task.held.holder
        result = self._assumed_result(task, died=died)
        ran_for = self._alive_until(task.held) - (task.held.started_at or self.now)
        self._end(task_id, self._judged(task, result, holder), holder, ran_for.total_seconds())

    def promote(self) -> int:
        """Make due retries ready."""
        due = [task for task in self.tasks.values() if task.retry_at and task.retry_at <= self.now]
        for task in due:
            task.state, task.retry_at = State.READY, None
        return len(due)

    def cancel(self, task_id: TaskId) -> State:
        """Cancel a task that has not ended, or request that its run stops."""
        task = self.tasks[task_id]
        task.cancel_requested_at = task.cancel_requested_at or self.now
        if task.state is State.RUNNING:
            return State.RUNNING
        self._finish(task_id, State.CANCELLED, CANCELLED)
        return State.CANCELLED

    def revive(self, task_id: TaskId, attempts: int) -> None:
        """Revive a dead-lettered task and the tasks that were cancelled only because of it.

        Only the dead-lettered task gets new attempts, and its earlier failures no longer count.
        """
        revived = [task_id, *self._cancelled_because_of(task_id)]
        while blocked := [other for other in revived if self._cannot_run(other, revived)]:
            revived = [other for other in revived if other not in blocked]
        for revived_id in revived:
            task = self.tasks[revived_id]
            if task.state is State.DEAD_LETTERED:
                task.max_attempts = task.attempts + attempts
                task.failures.clear()
            task.state = State.PENDING if task.parents else State.READY
            task.cancel_requested_at = task.reason = None
        self.tasks[task_id].has_open_letter = False

    def discard(self, task_id: TaskId) -> None:
        """Close a dead letter for good: its task is cancelled, and nothing else changes."""
        task = self.tasks[task_id]
        task.state, task.reason, task.cancel_requested_at = State.CANCELLED, DISCARDED, None
        task.has_open_letter = False

    def retire(self, silence: timedelta) -> None:
        """Retire the workers without a heartbeat for this long."""
        for agent in self.agents.values():
            if agent.seen_at <= self.now - silence:
                agent.known = False

    # -- consequences -----------------------------------------------------------------------------

    def _end(
        self, task_id: TaskId, verdict: Verdict, agent: str, ran_seconds: float | None = None
    ) -> None:
        task = self.tasks[task_id]
        if verdict.billed:
            self._charge(task, ran_seconds)
        task.alone = task.alone or verdict.run_alone
        if verdict.spent:
            task.attempts += 1
            task.failures.append(FailedRun(agent, verdict.outcome))
        target = MOVES[verdict.event].target
        if task.cancel_requested_at is not None and target not in FINAL:
            target = State.CANCELLED
        reason = CANCELLED if target is State.CANCELLED else verdict.reason
        self._finish(task_id, target, reason)
        if target is State.RETRYING:
            task.retry_at = self.now + timedelta(seconds=verdict.wait_seconds)

    def _finish(self, task_id: TaskId, target: State, reason: str | None) -> None:
        task = self.tasks[task_id]
        task.state, task.reason, task.held, task.retry_at = target, reason, None, None
        if target is State.COMPLETED:
            self._unblock(task_id)
        if target is State.DEAD_LETTERED:
            task.has_open_letter = True
            self._cancel_below(task_id, UPSTREAM_FAILED)
        if target is State.CANCELLED:
            self._cancel_below(task_id, UPSTREAM_CANCELLED)

    def _unblock(self, parent: TaskId) -> None:
        for task in self.tasks.values():
            if parent in task.parents:
                task.parents.discard(parent)
                if not task.parents and task.state is State.PENDING:
                    task.state = State.READY

    def _cancel_below(self, parent: TaskId, reason: str) -> None:
        for task_id in self._below(parent):
            task = self.tasks[task_id]
            if task.state is State.PENDING:
                task.state, task.reason = State.CANCELLED, reason

    def _below(self, parent: TaskId) -> Iterator[TaskId]:
        """Yield every direct and indirect dependent of a task once."""
        seen: set[TaskId] = {parent}
        # Parents are inserted before their children, so one pass finds all of them.
        for task_id, task in self.tasks.items():
            if task.parents & seen:
                seen.add(task_id)
                yield task_id

    def _cancelled_because_of(self, task_id: TaskId) -> list[TaskId]:
        dependents = {dependent: self.tasks[dependent] for dependent in self._below(task_id)}
        return [
            dependent
            for dependent, task in dependents.items()
            if (task.state, task.reason) == (State.CANCELLED, UPSTREAM_FAILED)
        ]

    def _cannot_run(self, task_id: TaskId, revived: Sequence[TaskId]) -> bool:
        """Return whether a task waits for a parent that has ended and is not revived."""
        return any(
            parent not in revived and self.tasks[parent].state in FINAL
            for parent in self.tasks[task_id].parents
        )

    def _judged(self, task: Task, result: Result, agent: str) -> Verdict:
        history = TaskHistory(
            task.attempts, task.max_attempts, task.retry, agent, tuple(task.failures)
        )
        return judge(history, result, 0.0)

    def _assumed_result(self, task: Task, *, died: bool) -> Result:
        if task.state is State.CLAIMED:
            return Expired()
        if task.cancel_requested_at is not None:
            return StoppedByCancel()
        assert task.held is not None
        alive_until = self._alive_until(task.held)
        if task.deadline is not None and alive_until >= task.deadline:
            return TimedOut(by_plan=task.plan_limited)
        in_bundle = task.held.bundle is not None
        return Died(in_bundle=in_bundle) if died else Lost(in_bundle=in_bundle)

    def _alive_until(self, held: HeldClaim) -> datetime:
        """Return until when a run is known to have lived: its last heartbeat, once it is silent."""
        if held.heartbeat_at is None or held.expires_at > self.now:
            return self.now
        return held.heartbeat_at

    def _charge(self, task: Task, ran_seconds: float | None) -> None:
        """Charge a run's seconds, or those its holder measured, to their billing months."""
        if task.held is None or task.held.started_at is None:
            return
        since = task.held.started_at
        granted = task.held.granted
        limit = timedelta(seconds=granted if ran_seconds is None else min(granted, ran_seconds))
        until = min(self.now, since + limit)
        anchor = self.users[task.user].anchor
        for cycle in range(cycle_at(anchor, since), cycle_at(anchor, until) + 1):
            begin, end = boundary(anchor, cycle), boundary(anchor, cycle + 1)
            seconds = (min(until, end) - max(since, begin)).total_seconds()
            self.used[task.user, cycle] += int(seconds)

    def _claimable_with(self, capabilities: Iterable[frozenset[str]]) -> list[TaskId]:
        sets = list(capabilities)
        shared = frozenset.intersection(*sets) if sets else frozenset()
        return [task_id for task_id, task in self.tasks.items() if self._may_run(task, shared)]

    def _may_run(self, task: Task, capabilities: frozenset[str]) -> bool:
        return (
            task.state is State.READY
            and len(self.of(task.user, ACTIVE)) < self.users[task.user].limits.max_concurrent_agents
            and task.capabilities <= capabilities
            and self.granted(task) <= self.seconds_left(task.user)
            and not any(
                are_in_conflict(task.locks, held.locks) for held in self.of(task.user, ACTIVE)
            )
        )

    def _used_now(self, user: UserId) -> int:
        return self.used[user, cycle_at(self.users[user].anchor, self.now)]

    def _is_live(self, agent: Agent) -> bool:
        return agent.seen_at > self.now - self.liveness
