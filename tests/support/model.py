"""The deployment in plain dicts: what each act must lead to, told without a database.

The model knows who holds what, counts tries and seconds, and follows edges. It takes two things
on trust: which of several possible tasks the gate picks, and the judge's word on a finished run,
which is pure and has tests of its own.
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
from overnight_server.domain.locks import are_in_conflict
from overnight_server.domain.plans import PlanLimits
from overnight_server.domain.results import Died, Expired, Lost, Result, StoppedByCancel, TimedOut
from overnight_server.domain.retry import RetryRules
from overnight_server.domain.verdicts import TaskHistory, Verdict, judge

UPSTREAM_FAILED = "upstream_failed"
UPSTREAM_CANCELLED = "upstream_cancelled"
CANCELLED = "cancelled"


@dataclass
class Holding:
    """A claim as its task knows it."""

    token: UUID
    holder: str
    granted: int
    expires_at: datetime
    bundle: UUID | None = None
    started_at: datetime | None = None


@dataclass
class Task:
    """One task: what was asked for, and how far it has come."""

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
    held: Holding | None = None
    retry_at: datetime | None = None
    cancel_asked: datetime | None = None
    reason: str | None = None
    failures: list[FailedRun] = field(default_factory=list)
    has_open_letter: bool = False

    @property
    def deadline(self) -> datetime | None:
        """When the run has used up the time it was granted."""
        if self.held is None or self.held.started_at is None:
            return None
        return self.held.started_at + timedelta(seconds=self.held.granted)

    @property
    def plan_limited(self) -> bool:
        """Whether the plan, not the task's owner, set the time of the run."""
        assert self.held is not None
        return self.timeout is None or self.held.granted < self.timeout


@dataclass
class User:
    """A user's limits, the beginning of all their months, and what they do without hours."""

    limits: PlanLimits
    anchor: datetime
    rejects: bool


@dataclass(frozen=True)
class Slots:
    """Messages that may be sent: of any kind to free slots, of quick tasks also behind others."""

    free: int
    in_all: int


@dataclass
class Agent:
    """A worker; `beats` False means it hangs, and only the deployment's silence will tell."""

    slots: int
    capabilities: frozenset[str]
    seen_at: datetime
    beats: bool = True
    known: bool = True


@dataclass
class Model:
    """Everything that was done so far, and what it must have led to."""

    now: datetime
    liveness: timedelta
    users: dict[UserId, User] = field(default_factory=dict)
    tasks: dict[TaskId, Task] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)
    used: Counter[tuple[UserId, int]] = field(default_factory=Counter)

    # -- looking --------------------------------------------------------------------------------

    def of(self, user: UserId, states: Iterable[State]) -> list[Task]:
        """Return a user's tasks in these states."""
        wanted = frozenset(states)
        return [one for one in self.tasks.values() if one.user == user and one.state in wanted]

    def in_states(self, *states: State) -> list[TaskId]:
        """Return all tasks in these states, oldest first."""
        return [task_id for task_id, one in self.tasks.items() if one.state in states]

    def holds(self, claim: Claim) -> bool:
        """Whether this claim is the one its task is held by."""
        task = self.tasks[claim.task_id]
        return task.held is not None and (task.epoch, task.held.token) == (claim.epoch, claim.token)

    def runs(self, claim: Claim) -> bool:
        """Whether this claim holds its task and was started."""
        return self.holds(claim) and self.tasks[claim.task_id].state is State.RUNNING

    def live(self) -> list[Agent]:
        """Return the workers whose slots count."""
        return [one for one in self.agents.values() if one.known and self._shows_life(one)]

    def slots(self) -> Slots:
        """Return what the workers could take now."""
        bundles = [one.held.bundle for one in self.tasks.values() if one.held is not None]
        together = len({bundle for bundle in bundles if bundle is not None})
        there_are = sum(one.slots for one in self.live())
        free = there_are - bundles.count(None) - together
        return Slots(free, free + min(together, there_are))

    def seconds_left(self, user: UserId) -> float:
        """Return what is left of the user's month, without what is promised."""
        owner = self.users[user]
        if owner.limits.monthly_agent_hours is None:
            return float("inf")
        promised = sum(one.held.granted for one in self.of(user, ACTIVE) if one.held)
        return owner.limits.monthly_agent_hours * 3600 - self._used_now(user) - promised

    def month(self, user: UserId) -> tuple[datetime, datetime, int]:
        """Return where the user's month began, where it ends, and the seconds used in it."""
        anchor = self.users[user].anchor
        cycle = cycle_at(anchor, self.now)
        return boundary(anchor, cycle), boundary(anchor, cycle + 1), self._used_now(user)

    def is_exhausted(self, user: UserId) -> bool:
        """Whether the user's month is used up and more work is not let in."""
        owner = self.users[user]
        hours = owner.limits.monthly_agent_hours
        return owner.rejects and hours is not None and self._used_now(user) >= hours * 3600

    def granted(self, task: Task) -> int:
        """Return the seconds a claim of this task would be granted."""
        longest = self.users[task.user].limits.max_task_duration_minutes * 60
        return min(task.timeout or longest, longest)

    def claimable(self) -> list[TaskId]:
        """Return every task the gate may take next, were there a slot."""
        return self._within(one.capabilities for one in self.live())

    def surely_claimable(self) -> list[TaskId]:
        """Return what the gate must take, were there a slot.

        A lane the pool has looked into in vain is not looked into again because a worker falls
        silent, but only when the worker is written off.
        """
        known = [one.capabilities for one in self.agents.values() if one.known]
        return [task_id for task_id in self.claimable() if task_id in self._within(known)]

    # -- acting ---------------------------------------------------------------------------------

    def submit(self, task_id: TaskId, task: Task) -> None:
        """Let a task in."""
        task.state = State.PENDING if task.parents else State.READY
        self.tasks[task_id] = task

    def take(self, claims: Sequence[Claimed], *, holder: str, ttl: timedelta) -> None:
        """Check that the gate might take these tasks in one pass, and take them."""
        slots = self.slots()
        singles = [one for one in claims if one.bundle is None]
        bundles = {one.bundle for one in claims} - {None}
        assert len(singles) <= max(0, slots.free), "more single tasks than slots"
        assert len(singles) + len(bundles) <= max(0, slots.in_all), "more messages than slots"
        for claimed in claims:
            self._take(claimed, Holding(claimed.claim.token, holder, 0, self.now + ttl))

    def _take(self, claimed: Claimed, held: Holding) -> None:
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
        """Start a claim; False if it is not this one's to start."""
        task = self.tasks[claim.task_id]
        if not self.holds(claim) or task.state is not State.CLAIMED:
            return False
        assert task.held is not None
        if task.held.expires_at <= self.now:
            return False
        task.state = State.RUNNING
        task.held.holder = agent
        task.held.started_at = self.now
        task.held.expires_at = self.now + lease
        return True

    def beat(self, claim: Claim, lease: timedelta) -> str:
        """Extend a run's lease, and say what its holder hears."""
        task = self.tasks[claim.task_id]
        if not self.runs(claim) or task.held is None:
            return "lost"
        task.held.expires_at = self.now + lease
        return "cancel" if task.cancel_asked else "continue"

    def settle(self, claim: Claim, result: Result, agent: str) -> bool:
        """End a held claim; False if it is not held, or did not run and yet has a result."""
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
        """Return what the reaper must find."""
        return [
            task_id
            for task_id, one in self.tasks.items()
            if one.held is not None and one.held.expires_at <= self.now
        ]

    def overdue(self, grace: timedelta) -> list[TaskId]:
        """Return the runs that should have stopped by themselves and beat on."""
        return [
            task_id
            for task_id in self.in_states(State.RUNNING)
            if task_id not in self.expired()
            and any(
                since is not None and since + grace <= self.now
                for since in (self.tasks[task_id].deadline, self.tasks[task_id].cancel_asked)
            )
        ]

    def take_back(self, task_id: TaskId, *, died: bool = False) -> None:
        """End a claim from outside, for what can be known to have happened to it."""
        task = self.tasks[task_id]
        assert task.held is not None
        holder = task.held.holder
        result = self._what_happened(task, died=died)
        self._end(task_id, self._judged(task, result, holder), holder)

    def promote(self) -> int:
        """Make due retries ready."""
        due = [one for one in self.tasks.values() if one.retry_at and one.retry_at <= self.now]
        for task in due:
            task.state, task.retry_at = State.READY, None
        return len(due)

    def cancel(self, task_id: TaskId) -> State:
        """Cancel a task that has not ended, or ask its run to stop."""
        task = self.tasks[task_id]
        task.cancel_asked = task.cancel_asked or self.now
        if task.state is State.RUNNING:
            return State.RUNNING
        self._finish(task_id, State.CANCELLED, CANCELLED)
        return State.CANCELLED

    def revive(self, task_id: TaskId, attempts: int) -> None:
        """Bring a dead task back, and with it what its death alone had cancelled.

        Only the dead one gets a new budget, and what it did before is forgiven.
        """
        back = [task_id, *self._doomed_by(task_id)]
        while unwilling := [one for one in back if self._waits_in_vain(one, back)]:
            back = [one for one in back if one not in unwilling]
        for one in back:
            task = self.tasks[one]
            if task.state is State.DEAD_LETTERED:
                task.max_attempts = task.attempts + attempts
                task.failures.clear()
            task.state = State.PENDING if task.parents else State.READY
            task.cancel_asked = task.reason = None
        self.tasks[task_id].has_open_letter = False

    def retire(self, silence: timedelta) -> None:
        """Write off the workers that were silent for so long."""
        for agent in self.agents.values():
            if agent.seen_at <= self.now - silence:
                agent.known = False

    # -- following ------------------------------------------------------------------------------

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
        if task.cancel_asked is not None and target not in FINAL:
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
        """Walk down everything that waits for a task, however far; each once."""
        seen: set[TaskId] = {parent}
        # Tasks are kept parents first, so one pass reaches the bottom.
        for task_id, task in self.tasks.items():
            if task.parents & seen:
                seen.add(task_id)
                yield task_id

    def _doomed_by(self, task_id: TaskId) -> list[TaskId]:
        return [
            one
            for one in self._below(task_id)
            if (self.tasks[one].state, self.tasks[one].reason) == (State.CANCELLED, UPSTREAM_FAILED)
        ]

    def _waits_in_vain(self, task_id: TaskId, back: Sequence[TaskId]) -> bool:
        """Whether a task waits for one that has ended otherwise and does not come back."""
        return any(
            parent not in back and self.tasks[parent].state in FINAL
            for parent in self.tasks[task_id].parents
        )

    def _judged(self, task: Task, result: Result, agent: str) -> Verdict:
        standing = TaskHistory(
            task.attempts, task.max_attempts, task.retry, agent, tuple(task.failures)
        )
        return judge(standing, result, 0.0)

    def _what_happened(self, task: Task, *, died: bool) -> Result:
        if task.state is State.CLAIMED:
            return Expired()
        if task.cancel_asked is not None:
            return StoppedByCancel()
        assert task.held is not None
        # A run whose lease ended before its time was lost before it could be late.
        lasted_until = min(task.held.expires_at, self.now)
        if task.deadline is not None and lasted_until >= task.deadline:
            return TimedOut(by_plan=task.plan_limited)
        together = task.held.bundle is not None
        return Died(in_bundle=together) if died else Lost(in_bundle=together)

    def _charge(self, task: Task, ran_seconds: float | None) -> None:
        """Charge a run's seconds to the months they passed in, or what its holder measured."""
        if task.held is None or task.held.started_at is None:
            return
        since = task.held.started_at
        longest = timedelta(seconds=min(task.held.granted, ran_seconds or task.held.granted))
        until = min(self.now, since + longest)
        anchor = self.users[task.user].anchor
        for cycle in range(cycle_at(anchor, since), cycle_at(anchor, until) + 1):
            begin, end = boundary(anchor, cycle), boundary(anchor, cycle + 1)
            seconds = (min(until, end) - max(since, begin)).total_seconds()
            self.used[task.user, cycle] += int(seconds)

    def _within(self, capabilities: Iterable[frozenset[str]]) -> list[TaskId]:
        each = list(capabilities)
        shared = frozenset.intersection(*each) if each else frozenset()
        return [task_id for task_id, one in self.tasks.items() if self._may_go(one, shared)]

    def _may_go(self, task: Task, able: frozenset[str]) -> bool:
        return (
            task.state is State.READY
            and len(self.of(task.user, ACTIVE)) < self.users[task.user].limits.max_concurrent_agents
            and task.capabilities <= able
            and self.granted(task) <= self.seconds_left(task.user)
            and not any(are_in_conflict(task.locks, o.locks) for o in self.of(task.user, ACTIVE))
        )

    def _used_now(self, user: UserId) -> int:
        return self.used[user, cycle_at(self.users[user].anchor, self.now)]

    def _shows_life(self, agent: Agent) -> bool:
        return agent.seen_at > self.now - self.liveness
