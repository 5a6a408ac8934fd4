"""A deployment and its model: each act is done to both, and answers and rows must be equal.

The database clock is stopped and moved by the test, so that a sequence can be repeated exactly.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from overnight.errors import (
    MonthlyLimitReached,
    NotDeadLettered,
    TaskAlreadyCompleted,
    TaskNotFound,
)
from overnight.models.enums import PlanTier
from overnight_server.control import cancel as cancelling
from overnight_server.control import dead_letters
from overnight_server.control.retry import DEFAULT_ATTEMPTS
from overnight_server.control.users import change_plan
from overnight_server.domain.billing_months import boundary, cycle_at
from overnight_server.domain.claims import Claim, Claimed, Run
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.domain.lifecycle import ACTIVE, FINAL, WAITING, State
from overnight_server.domain.lock_keys import keys_of
from overnight_server.domain.plans import PlanLimits
from overnight_server.domain.results import Expired, Result, Returned
from overnight_server.gate.claim import BundleLimits, ClaimSettings, claim
from overnight_server.intake.new_graph import Edge, NewTask
from overnight_server.intake.submit import submit_graph
from overnight_server.maintenance.promote import promote
from overnight_server.maintenance.reap import (
    end_overdue,
    reap,
    retire_agents,
    settle_runs_of_dead_process,
)
from overnight_server.maintenance.reset import reset_cycles
from overnight_server.outcome import presence
from overnight_server.outcome.heartbeat import HeartbeatAnswer, heartbeat
from overnight_server.outcome.presence import WorkerDescription
from overnight_server.outcome.settle import release, settle
from overnight_server.outcome.start import start
from tests.support.deployment import CLAIM_TTL, LEASE, LOOSE, POOL, Deployment
from tests.support.invariants import describe_violations, violations
from tests.support.model import Agent, Model, Task, User
from tests.support.stopped_clock import DELETE_ALL

# The test begins ten minutes before all billing months end, and the next month has no 31st.
START = datetime(2026, 1, 31, 23, 30, tzinfo=UTC)
BILLED_SINCE = datetime(2025, 12, 31, 23, 40, tzinfo=UTC)
SECOND = timedelta(seconds=1)
LIVENESS = timedelta(seconds=15)
SILENCE = LIVENESS * 4
GRACE = timedelta(seconds=10)
DISPATCHER = "dispatcher"
OPERATOR = "human:operator"
ENOUGH_ROUNDS = 60
# A bundle has at most two quick tasks: 0.25 s has room for two and a half.
BUNDLING = BundleLimits(seconds=0.25)
QUICK = "quick"
INSERT_DURATIONS = f"INSERT INTO type_durations (type, seconds) VALUES ('{QUICK}', 0.1)"
ALL_SLOTS = 100

ROWS = """
    SELECT id, state, attempts, max_attempts, epoch, unmet, token, claimed_by, reserved_seconds,
           expires_at, CASE WHEN state = 'running' THEN started_at END AS started_at, retry_at,
           cancel_requested_at, failure_reason, bundle, runs_alone
      FROM tasks
"""
CHARGES = """
    SELECT e.user_id, cycle_at(u.billing_anchor_at, e.period_started_at) AS cycle,
           sum(e.seconds) AS seconds
      FROM usage_ledger e
      JOIN users u ON u.id = e.user_id
     GROUP BY 1, 2
    HAVING sum(e.seconds) <> 0
"""
MONTHS = "SELECT user_id, cycle_started_at, resets_at, used_seconds FROM lanes"
Held = tuple[Run, str]


class ModelComparison:
    """A deployment, its model, the messages that are not delivered yet, and the workers' runs."""

    def __init__(
        self, deployment: Deployment, plans: Sequence[tuple[PlanTier, PlanLimits]]
    ) -> None:
        self.deployment = deployment
        self.model = Model(START, LIVENESS)
        self.messages: list[Claimed] = []
        self.runs: list[Held] = []
        self.keys: dict[tuple[UserId, str], TaskId] = {}
        deployment.run(DELETE_ALL)
        deployment.run(INSERT_DURATIONS)
        self.pass_by(SECOND)
        for number, (plan, limits) in enumerate(plans):
            self._make_user(number, plan, limits)

    # -- objects to choose from -------------------------------------------------------------------

    @property
    def users(self) -> list[UserId]:
        """Every user, in the order of creation."""
        return list(self.model.users)

    @property
    def agents(self) -> list[str]:
        """Every worker, also those that have left: they may still receive a message."""
        return list(self.model.agents)

    @property
    def held(self) -> list[Held]:
        """The runs that hold their task."""
        return [held for held in self.runs if self.model.runs(held[0].claim)]

    @property
    def stale(self) -> list[Held]:
        """The runs that have lost their task, or ended it."""
        return [held for held in self.runs if not self.model.runs(held[0].claim)]

    @property
    def stopping(self) -> list[Held]:
        """The runs whose cancel was requested."""
        tasks = self.model.tasks
        return [held for held in self.held if tasks[held[0].claim.task_id].cancel_requested_at]

    @property
    def open_tasks(self) -> list[TaskId]:
        """The tasks that have not ended."""
        return self.model.in_states(*WAITING, *ACTIVE)

    @property
    def ended(self) -> list[TaskId]:
        """The tasks that have ended."""
        return self.model.in_states(*FINAL)

    @property
    def letters(self) -> list[TaskId]:
        """The tasks with an unresolved dead letter."""
        return [task_id for task_id, task in self.model.tasks.items() if task.has_open_letter]

    # -- producers and people ---------------------------------------------------------------------

    def submit(
        self, user: UserId, tasks: Sequence[NewTask], parents: Sequence[set[int]] = ()
    ) -> list[TaskId]:
        """Submit tasks with their edges; return no ids if the hours are used up."""
        self.pass_by(SECOND)
        edges = [Edge(parent, child) for child, of in enumerate(parents) for parent in of]
        title = "a graph" if parents else None

        def insert_graph() -> list[TaskId]:
            created = submit_graph(
                self.deployment.app, user, tasks, LOOSE, edges=edges, title=title
            )
            return [submitted.task_id for submitted in created]

        if self.model.is_exhausted(user):
            with pytest.raises(MonthlyLimitReached):
                insert_graph()
            return []
        ids = insert_graph()
        for number, (task_id, task) in enumerate(zip(ids, tasks, strict=True)):
            parent_ids = {ids[parent] for parent in parents[number]} if parents else set()
            self.model.submit(task_id, _as_model_task(user, task, parent_ids))
        return ids

    def submit_under_a_key(self, user: UserId, task: NewTask, key: str) -> None:
        """Submit with an idempotency key; the second submit must return the first task."""
        keyed = replace(task, idempotency_key=key)
        existing_task = self.keys.get((user, key))
        if existing_task is not None:
            [again] = submit_graph(self.deployment.app, user, [keyed], LOOSE)
            _assert_same((again.task_id, again.created), (existing_task, False))
            return
        for task_id in self.submit(user, [keyed]):
            self.keys[user, key] = task_id

    def cancel(self, task_id: TaskId) -> None:
        """Cancel a task that has not ended, as its owner."""
        self.pass_by(SECOND)
        state = self._cancel_as(self.model.tasks[task_id].user, task_id)
        _assert_same(state, self.model.cancel(task_id))

    def cancel_too_late(self, task_id: TaskId) -> None:
        """Cancel a task that has ended: the request is refused and changes nothing."""
        with pytest.raises(TaskAlreadyCompleted):
            self._cancel_as(self.model.tasks[task_id].user, task_id)

    def cancel_as_stranger(self, task_id: TaskId) -> None:
        """Cancel a task of another user: the answer is that it does not exist."""
        owner = self.model.tasks[task_id].user
        with pytest.raises(TaskNotFound):
            self._cancel_as(next(user for user in self.users if user != owner), task_id)

    def revive(self, task_id: TaskId) -> None:
        """Retry a dead-lettered task, as an operator."""
        self.pass_by(SECOND)
        dead_letters.retry(self.deployment.app, task_id, actor=OPERATOR)
        self.model.revive(task_id, DEFAULT_ATTEMPTS)

    def revive_other(self, task_id: TaskId) -> None:
        """Retry a task that is not dead-lettered: the request is refused."""
        with pytest.raises(NotDeadLettered):
            dead_letters.retry(self.deployment.app, task_id, actor=OPERATOR)

    def discard(self, task_id: TaskId) -> None:
        """Resolve a dead letter without a retry, as an operator."""
        self.pass_by(SECOND)
        dead_letters.discard(self.deployment.app, task_id, actor=OPERATOR)
        self.model.discard(task_id)

    def change_plan(self, user: UserId, plan: PlanTier, limits: PlanLimits) -> None:
        """Put a user on another plan."""
        self.pass_by(SECOND)
        change_plan(self.deployment.app, user, plan, limits=limits)
        self.model.users[user].limits = limits

    # -- claims, messages and runs ----------------------------------------------------------------

    def claim_all(self, limit: int = ALL_SLOTS) -> None:
        """Let the gate claim what it may; with a free slot it must leave no claimable task."""
        self.pass_by(SECOND)
        taken = self._claim(limit)
        while taken and limit == ALL_SLOTS:
            taken = self._claim(limit)
        if not taken and self.model.slots().free > 0:
            _assert_same(self.model.surely_claimable(), [])

    def deliver(self, claimed: Claimed, agent: str) -> None:
        """Let a worker start a claim, after an attempt with a wrong token."""
        self.pass_by(SECOND)
        forged = _forged(claimed.claim)
        _assert_same(start(self.deployment.dispatcher, forged, holder="forger", lease=LEASE), None)
        run = start(self.deployment.dispatcher, claimed.claim, holder=agent, lease=LEASE)
        _assert_same(run is not None, self.model.start(claimed.claim, agent, LEASE))
        if run is not None:
            self.runs.append((run, agent))

    def hand_back(self, claimed: Claimed) -> None:
        """Release a claim that could not be published."""
        self.pass_by(SECOND)
        given_back = release(self.deployment.dispatcher, [claimed], reason="broker")
        _assert_same(given_back, self.model.settle(claimed.claim, Expired("broker"), ""))

    def beat(self, run: Run) -> None:
        """Send the heartbeat of a run."""
        answer = heartbeat(self.deployment.dispatcher, run.claim, lease=LEASE)
        _assert_same(answer, self.model.beat(run.claim, LEASE))

    def settle(self, held: Held, result: Result) -> None:
        """Settle a run; a stale one must change nothing."""
        self.pass_by(SECOND)
        run, agent = held
        won = settle(self.deployment.dispatcher, run, result, agent=agent)
        _assert_same(won, self.model.settle(run.claim, result, agent))

    def die(self, held: Held, *, handling: bool) -> None:
        """Report the death of the process of a run, which may be stale."""
        self.pass_by(SECOND)
        claim = held[0].claim
        holds = self.model.holds(claim)
        ended = settle_runs_of_dead_process(self.deployment.dispatcher, [claim], handling=handling)
        _assert_same(ended, int(holds))
        if holds:
            in_time = claim.task_id not in self.model.expired()
            self.model.take_back(claim.task_id, died=handling and in_time)

    def forge(self, held: Held) -> None:
        """Send a heartbeat and a result with the right claim and a wrong token."""
        run, agent = held
        forged = replace(run, claim=_forged(run.claim))
        _assert_same(
            heartbeat(self.deployment.dispatcher, forged.claim, lease=LEASE), HeartbeatAnswer.LOST
        )
        won = settle(self.deployment.dispatcher, forged, Returned("forged"), agent=agent)
        assert not won, "a result with a wrong token was accepted"

    # -- sweeps -----------------------------------------------------------------------------------

    def reap(self) -> None:
        """Take back every expired claim."""
        self.pass_by(SECOND)
        retire_agents(self.deployment.dispatcher, silence=SILENCE)
        self.model.retire(SILENCE)
        expected = self.model.expired()
        _assert_same(reap(self.deployment.dispatcher), len(expected))
        for task_id in expected:
            self.model.take_back(task_id)

    def end_overdue(self) -> None:
        """End the runs that should have stopped and still send heartbeats."""
        self.pass_by(SECOND)
        expected = self.model.overdue(GRACE)
        killed: list[TaskId] = []

        def kill(*ended: Any) -> None:
            killed.append(ended[0].task_id)

        end_overdue(self.deployment.dispatcher, grace=GRACE, kill=kill)
        _assert_same(sorted(killed), sorted(expected))
        for task_id in expected:
            self.model.take_back(task_id)

    def promote(self) -> None:
        """Make due retries ready."""
        self.pass_by(SECOND)
        _assert_same(promote(self.deployment.dispatcher), self.model.promote())

    def begin_months(self) -> None:
        """Begin the current billing month wherever the last one is over."""
        self.pass_by(SECOND)
        reset_cycles(self.deployment.dispatcher)
        months = {
            row["user_id"]: (row["cycle_started_at"], row["resets_at"], row["used_seconds"])
            for row in self.deployment.rows(MONTHS)
        }
        _assert_same(months, {user: self.model.month(user) for user in self.users})
        _assert_same(reset_cycles(self.deployment.dispatcher), 0)

    # -- workers and time -------------------------------------------------------------------------

    def join(self, slots: int, capabilities: frozenset[str]) -> str:
        """Register a new worker."""
        self.pass_by(SECOND)
        name = f"worker-{len(self.agents)}"
        self.model.agents[name] = Agent(slots, capabilities, self.model.now)
        self._announce(name)
        return name

    def leave(self, name: str) -> None:
        """Shut a worker down orderly."""
        presence.leave(self.deployment.dispatcher, name)
        self.model.agents[name].known = self.model.agents[name].beats = False

    def fall_silent(self, name: str) -> None:
        """Let a worker hang: it sends no heartbeats, but may still settle its runs later."""
        self.model.agents[name].beats = False

    def pass_by(self, by: timedelta) -> None:
        """Move the clock; nothing else happens."""
        self.model.now += by
        self.deployment.run("UPDATE stopped_clock SET at = :at", at=self.model.now)

    def work_on(self, by: timedelta) -> None:
        """Move the clock; all workers that do not hang send heartbeats, also of their runs."""
        self.pass_by(by)
        for name, agent in self.model.agents.items():
            if agent.beats:
                answer = presence.record_heartbeat(self.deployment.dispatcher, name)
                _assert_same(answer is not None, agent.known)
                agent.seen_at = self.model.now
                if not answer:
                    self._announce(name)
        for run, name in self.held:
            if self.model.agents[name].beats:
                self.beat(run)

    def until_month_ends(self, before: timedelta) -> None:
        """Move to shortly before or after the end of the billing month, with heartbeats."""
        anchor = next(iter(self.model.users.values())).anchor
        ends_at = boundary(anchor, cycle_at(anchor, self.model.now) + 1)
        self.work_on(max(ends_at - before - self.model.now, SECOND))

    def drain(self) -> None:
        """Work without faults until every task that can end has ended."""
        last = self.join(20, frozenset({"gpu"}))
        for name in self.agents:
            if name != last:
                self.leave(name)
        for _ in range(ENOUGH_ROUNDS):
            if not self.open_tasks:
                return
            self._work_a_round(last)

    # -- comparing --------------------------------------------------------------------------------

    def compare(self) -> None:
        """Compare every row with what the model predicts."""
        rows = {row["id"]: row for row in self.deployment.rows(ROWS)}
        for task_id, task in self.model.tasks.items():
            _assert_same(rows.get(task_id), {"id": task_id, **_as_row(task)})
        _assert_same(rows.keys(), self.model.tasks.keys())

    def compare_charges(self) -> None:
        """Compare the seconds charged to each user's months with what the model predicts."""
        charged = {
            (row["user_id"], row["cycle"]): row["seconds"] for row in self.deployment.rows(CHARGES)
        }
        _assert_same(charged, {key: seconds for key, seconds in self.model.used.items() if seconds})

    def check(self, codes: frozenset[str] | None = None, *, drained: bool = False) -> None:
        """Check that no invariant is violated."""
        acked = list(self.model.tasks)
        violated = violations(self.deployment.dispatcher, codes=codes, acked=acked, drained=drained)
        assert not violated, describe_violations(violated)

    # -- helpers ----------------------------------------------------------------------------------

    def _make_user(self, number: int, plan: PlanTier, limits: PlanLimits) -> None:
        rejects = number % 2 == 0
        user = self.deployment.user(
            plan,
            # The same in every repetition, because the gate orders equal users by id.
            id=UUID(int=number + 1),
            max_concurrent_agents=limits.max_concurrent_agents,
            max_task_duration_minutes=limits.max_task_duration_minutes,
            monthly_agent_hours_limit=limits.monthly_agent_hours,
            on_exhausted="reject" if rejects else "hold",
            billing_anchor_at=BILLED_SINCE,
        )
        self.model.users[user] = User(limits, BILLED_SINCE, rejects)

    def _cancel_as(self, user: UserId, task_id: TaskId) -> State:
        return cancelling.cancel(self.deployment.app, user, task_id, actor=f"user:{user}")

    def _claim(self, limit: int) -> list[Claimed]:
        taken = claim(
            self.deployment.dispatcher,
            POOL,
            holder=DISPATCHER,
            claim_settings=ClaimSettings(CLAIM_TTL, LIVENESS, bundle_limits=BUNDLING),
            limit=limit,
        )
        self.model.take(taken.claims, holder=DISPATCHER, ttl=CLAIM_TTL)
        # Sorted by submission: ids, and with them the gate's order, differ between repetitions.
        oldest_first = list(self.model.tasks)
        sent = sorted(taken.claims, key=lambda claimed: oldest_first.index(claimed.claim.task_id))
        self.messages += sent
        return sent

    def _announce(self, name: str) -> None:
        agent = self.model.agents[name]
        description = WorkerDescription(name, POOL, sorted(agent.capabilities), agent.slots)
        presence.join(self.deployment.dispatcher, description)
        agent.known, agent.seen_at = True, self.model.now

    def _work_a_round(self, agent: str) -> None:
        self.work_on(SECOND)
        self.reap()
        self.promote()
        self.claim_all()
        if not self.messages and not self.held:
            # The open tasks wait for a retry, for an expiry, or for the next month's hours.
            waits = self.model.in_states(State.RETRYING, *ACTIVE)
            self.work_on(timedelta(hours=1)) if waits else self.until_month_ends(-SECOND)
        while self.messages:
            self.deliver(self.messages.pop(), agent)
        for held in self.held:
            self.settle(held, Returned())


def _assert_same(actual: object, predicted: object) -> None:
    """Fail with both values, because pytest explains asserts only in test modules."""
    assert actual == predicted, f"actual {actual!r}, predicted {predicted!r}"


def _forged(claim: Claim) -> Claim:
    return replace(claim, token=UUID(int=0))


def _as_row(task: Task) -> dict[str, object]:
    """Return the row that a task of the model must have."""
    held = task.held
    return {
        "state": task.state.value,
        "attempts": task.attempts,
        "max_attempts": task.max_attempts,
        "epoch": task.epoch,
        "unmet": len(task.parents),
        "token": held and held.token,
        "claimed_by": held and held.holder,
        "reserved_seconds": held and held.granted,
        "expires_at": held and held.expires_at,
        "started_at": held and held.started_at,
        "retry_at": task.retry_at,
        "cancel_requested_at": task.cancel_requested_at,
        "failure_reason": task.reason,
        "bundle": held and held.bundle,
        "runs_alone": task.alone,
    }


def _as_model_task(user: UserId, task: NewTask, parents: set[TaskId]) -> Task:
    """Return a submitted task as a task of the model."""
    return Task(
        user=user,
        state=State.CREATED,
        max_attempts=task.max_attempts,
        retry=task.retry,
        timeout=task.timeout_seconds,
        capabilities=frozenset(task.required_capabilities),
        locks=keys_of(task.locks, task.project_id, "project") or (),
        is_quick=task.type == QUICK,
        parents=parents,
    )
