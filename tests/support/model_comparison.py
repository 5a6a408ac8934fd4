"""The deployment and its model, acted on together: every answer and every row must be the same.

The database clock stands still and is moved by hand, so that a sequence can be repeated exactly.
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
from overnight_server.control.users import change_plan
from overnight_server.domain.billing_months import boundary, cycle_at
from overnight_server.domain.claims import Claim, Claimed, Run
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.domain.lifecycle import ACTIVE, FINAL, WAITING, State
from overnight_server.domain.locks import keys_of
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
from overnight_server.outcome.presence import WorkerCard
from overnight_server.outcome.settle import release, settle
from overnight_server.outcome.start import start
from tests.support.deployment import CLAIM_TTL, LEASE, LOOSE, POOL, Deployment
from tests.support.invariants import describe_violations, violations
from tests.support.model import Agent, Model, Task, User
from tests.support.stopped_clock import FORGET

# The deployment opens ten minutes before everyone's month ends, and the next month has no 31st.
OPENING = datetime(2026, 1, 31, 23, 30, tzinfo=UTC)
BILLED_SINCE = datetime(2025, 12, 31, 23, 40, tzinfo=UTC)
SECOND = timedelta(seconds=1)
LIVENESS = timedelta(seconds=15)
SILENCE = LIVENESS * 4
GRACE = timedelta(seconds=10)
DISPATCHER = "dispatcher"
OPERATOR = "human:operator"
ENOUGH_ROUNDS = 60
# Two and a half quick tasks to a message.
BUNDLING = BundleLimits(seconds=0.25)
QUICK = "quick"
PACES = f"INSERT INTO type_durations (type, seconds) VALUES ('{QUICK}', 0.1)"
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
    """One deployment, its model, the messages on their way and the runs that workers hold."""

    def __init__(
        self, deployment: Deployment, plans: Sequence[tuple[PlanTier, PlanLimits]]
    ) -> None:
        self.deployment = deployment
        self.model = Model(OPENING, LIVENESS)
        self.wire: list[Claimed] = []
        self.runs: list[Held] = []
        self.keys: dict[tuple[UserId, str], TaskId] = {}
        deployment.run(FORGET)
        deployment.run(PACES)
        self.pass_by(SECOND)
        for number, (plan, limits) in enumerate(plans):
            self._make_user(number, plan, limits)

    # -- what there is to choose from -----------------------------------------------------------

    @property
    def users(self) -> list[UserId]:
        """Every user, in the order of their coming."""
        return list(self.model.users)

    @property
    def agents(self) -> list[str]:
        """Every worker there ever was; also the dead may still read a message."""
        return list(self.model.agents)

    @property
    def held(self) -> list[Held]:
        """The runs that hold their task."""
        return [one for one in self.runs if self.model.runs(one[0].claim)]

    @property
    def stale(self) -> list[Held]:
        """The runs that have lost their task, or ended it."""
        return [one for one in self.runs if not self.model.runs(one[0].claim)]

    @property
    def stopping(self) -> list[Held]:
        """The runs that were asked to stop."""
        return [one for one in self.held if self.model.tasks[one[0].claim.task_id].cancel_asked]

    @property
    def open_tasks(self) -> list[TaskId]:
        """What has not ended."""
        return self.model.in_states(*WAITING, *ACTIVE)

    @property
    def ended(self) -> list[TaskId]:
        """What has ended."""
        return self.model.in_states(*FINAL)

    @property
    def letters(self) -> list[TaskId]:
        """What lies in the dead letters, unresolved."""
        return [task_id for task_id, one in self.model.tasks.items() if one.has_open_letter]

    # -- producers and people -------------------------------------------------------------------

    def submit(
        self, user: UserId, tasks: Sequence[NewTask], parents: Sequence[set[int]] = ()
    ) -> list[TaskId]:
        """Submit tasks, with for each the earlier ones it waits for; none if hours are used up."""
        self.pass_by(SECOND)
        edges = [Edge(above, child) for child, all_of in enumerate(parents) for above in all_of]
        title = "a graph" if parents else None

        def insert_graph() -> list[TaskId]:
            made = submit_graph(self.deployment.app, user, tasks, LOOSE, edges=edges, title=title)
            return [one.task_id for one in made]

        if self.model.is_exhausted(user):
            with pytest.raises(MonthlyLimitReached):
                insert_graph()
            return []
        made = insert_graph()
        for number, (task_id, task) in enumerate(zip(made, tasks, strict=True)):
            above = {made[parent] for parent in parents[number]} if parents else set()
            self.model.submit(task_id, _asked_for(user, task, above))
        return made

    def submit_under_a_key(self, user: UserId, task: NewTask, key: str) -> None:
        """Submit under an idempotency key, which the deployment must recognise the second time."""
        keyed = replace(task, idempotency_key=key)
        known = self.keys.get((user, key))
        if known is not None:
            [again] = submit_graph(self.deployment.app, user, [keyed], LOOSE)
            _same((again.task_id, again.created), (known, False))
            return
        for task_id in self.submit(user, [keyed]):
            self.keys[user, key] = task_id

    def cancel(self, task_id: TaskId) -> None:
        """Have its owner cancel a task that has not ended."""
        self.pass_by(SECOND)
        state = self._cancel_as(self.model.tasks[task_id].user, task_id)
        _same(state, self.model.cancel(task_id))

    def cancel_too_late(self, task_id: TaskId) -> None:
        """Have its owner cancel a task that has ended: refused, and nothing changes."""
        with pytest.raises(TaskAlreadyCompleted):
            self._cancel_as(self.model.tasks[task_id].user, task_id)

    def cancel_as_stranger(self, task_id: TaskId) -> None:
        """Have someone else cancel a task: it looks as if there were none."""
        owner = self.model.tasks[task_id].user
        with pytest.raises(TaskNotFound):
            self._cancel_as(next(user for user in self.users if user != owner), task_id)

    def revive(self, task_id: TaskId) -> None:
        """Have an operator give a dead task another chance."""
        self.pass_by(SECOND)
        dead_letters.retry(self.deployment.app, task_id, actor=OPERATOR)
        self.model.revive(task_id, dead_letters.DEFAULT_ATTEMPTS)

    def revive_in_vain(self, task_id: TaskId) -> None:
        """Have an operator revive what is not in the dead letters: refused."""
        with pytest.raises(NotDeadLettered):
            dead_letters.retry(self.deployment.app, task_id, actor=OPERATOR)

    def discard(self, task_id: TaskId) -> None:
        """Have an operator close a dead letter for good."""
        self.pass_by(SECOND)
        dead_letters.discard(self.deployment.app, task_id, actor=OPERATOR)
        self.model.tasks[task_id].has_open_letter = False

    def change_plan(self, user: UserId, plan: PlanTier, limits: PlanLimits) -> None:
        """Put a user on another plan."""
        self.pass_by(SECOND)
        change_plan(self.deployment.app, user, plan, limits=limits)
        self.model.users[user].limits = limits

    # -- gate, wire and runs --------------------------------------------------------------------

    def look(self, limit: int = ALL_SLOTS) -> None:
        """Let the gate take what it may; it must leave nothing behind that it could have taken."""
        self.pass_by(SECOND)
        taken = self._claim(limit)
        while taken and limit == ALL_SLOTS:
            taken = self._claim(limit)
        if not taken and self.model.slots().free > 0:
            _same(self.model.surely_claimable(), [])

    def deliver(self, claimed: Claimed, agent: str) -> None:
        """Let a worker read a message, after a forged one that lacks only the token."""
        self.pass_by(SECOND)
        forged = _forged(claimed.claim)
        _same(start(self.deployment.dispatcher, forged, holder="forger", lease=LEASE), None)
        run = start(self.deployment.dispatcher, claimed.claim, holder=agent, lease=LEASE)
        _same(run is not None, self.model.start(claimed.claim, agent, LEASE))
        if run is not None:
            self.runs.append((run, agent))

    def give_up(self, claimed: Claimed) -> None:
        """Let a publisher that could not send a claim give it back."""
        self.pass_by(SECOND)
        given_back = release(self.deployment.dispatcher, [claimed], reason="broker")
        _same(given_back, self.model.settle(claimed.claim, Expired("broker"), ""))

    def beat(self, run: Run) -> None:
        """Let a run say that it is still there."""
        answer = heartbeat(self.deployment.dispatcher, run.claim, lease=LEASE)
        _same(answer, self.model.beat(run.claim, LEASE))

    def settle(self, held: Held, result: Result) -> None:
        """Let a run end, or a stale one believe that it does."""
        self.pass_by(SECOND)
        run, agent = held
        won = settle(self.deployment.dispatcher, run, result, agent=agent)
        _same(won, self.model.settle(run.claim, result, agent))

    def die(self, held: Held, *, handling: bool) -> None:
        """Let a run's process die under its worker, which says so, or of a stale one."""
        self.pass_by(SECOND)
        claim = held[0].claim
        holds = self.model.holds(claim)
        ended = settle_runs_of_dead_process(self.deployment.dispatcher, [claim], handling=handling)
        _same(ended, int(holds))
        if holds:
            in_time = claim.task_id not in self.model.expired()
            self.model.take_back(claim.task_id, died=handling and in_time)

    def forge(self, held: Held) -> None:
        """Let someone who guesses all but the token answer for a run."""
        run, agent = held
        forged = replace(run, claim=_forged(run.claim))
        _same(
            heartbeat(self.deployment.dispatcher, forged.claim, lease=LEASE), HeartbeatAnswer.LOST
        )
        won = settle(self.deployment.dispatcher, forged, Returned("forged"), agent=agent)
        assert not won, "a forged answer was accepted"

    # -- sweeps ---------------------------------------------------------------------------------

    def reap(self) -> None:
        """Take back every claim whose lease is over."""
        self.pass_by(SECOND)
        retire_agents(self.deployment.dispatcher, silence=SILENCE)
        self.model.retire(SILENCE)
        expected = self.model.expired()
        _same(reap(self.deployment.dispatcher), len(expected))
        for task_id in expected:
            self.model.take_back(task_id)

    def end_overdue(self) -> None:
        """End the runs that beat on though they should have stopped."""
        self.pass_by(SECOND)
        expected = self.model.overdue(GRACE)
        killed: list[TaskId] = []

        def kill(*ended: Any) -> None:
            killed.append(ended[0].task_id)

        end_overdue(self.deployment.dispatcher, grace=GRACE, kill=kill)
        _same(sorted(killed), sorted(expected))
        for task_id in expected:
            self.model.take_back(task_id)

    def promote(self) -> None:
        """Make due retries ready."""
        self.pass_by(SECOND)
        _same(promote(self.deployment.dispatcher), self.model.promote())

    def begin_months(self) -> None:
        """Begin the current billing month wherever the last one is over."""
        self.pass_by(SECOND)
        reset_cycles(self.deployment.dispatcher)
        months = {
            row["user_id"]: (row["cycle_started_at"], row["resets_at"], row["used_seconds"])
            for row in self.deployment.rows(MONTHS)
        }
        _same(months, {user: self.model.month(user) for user in self.users})
        _same(reset_cycles(self.deployment.dispatcher), 0)

    # -- workers and time -----------------------------------------------------------------------

    def join(self, slots: int, capabilities: frozenset[str]) -> str:
        """Let a new worker come."""
        self.pass_by(SECOND)
        name = f"worker-{len(self.agents)}"
        self.model.agents[name] = Agent(slots, capabilities, self.model.now)
        self._announce(name)
        return name

    def leave(self, name: str) -> None:
        """Let a worker shut down in good order."""
        presence.leave(self.deployment.dispatcher, name)
        self.model.agents[name].known = self.model.agents[name].beats = False

    def fall_silent(self, name: str) -> None:
        """Let a worker hang: it says nothing more, but may still wake up and answer."""
        self.model.agents[name].beats = False

    def pass_by(self, by: timedelta) -> None:
        """Let time pass while nobody does anything."""
        self.model.now += by
        self.deployment.run("UPDATE stopped_clock SET at = :at", at=self.model.now)

    def work_on(self, by: timedelta) -> None:
        """Let time pass while every worker that is not silent keeps itself and its runs alive."""
        self.pass_by(by)
        for name, agent in self.model.agents.items():
            if agent.beats:
                knows = presence.beat(self.deployment.dispatcher, name)
                _same(knows is not None, agent.known)
                agent.seen_at = self.model.now
                if not knows:
                    self._announce(name)
        for run, name in self.held:
            if self.model.agents[name].beats:
                self.beat(run)

    def until_month_ends(self, before: timedelta) -> None:
        """Work on until shortly before, or after, the end of the billing month."""
        anchor = next(iter(self.model.users.values())).anchor
        ends_at = boundary(anchor, cycle_at(anchor, self.model.now) + 1)
        self.work_on(max(ends_at - before - self.model.now, SECOND))

    def drain(self) -> None:
        """No more faults: everything that can still end must end."""
        last = self.join(20, frozenset({"gpu"}))
        for name in self.agents:
            if name != last:
                self.leave(name)
        for _ in range(ENOUGH_ROUNDS):
            if not self.open_tasks:
                return
            self._work_a_round(last)

    # -- comparing ------------------------------------------------------------------------------

    def compare(self) -> None:
        """Compare every row with what the model predicts."""
        found = {row["id"]: row for row in self.deployment.rows(ROWS)}
        for task_id, task in self.model.tasks.items():
            _same(found.get(task_id), {"id": task_id, **_as_row(task)})
        _same(found.keys(), self.model.tasks.keys())

    def compare_charges(self) -> None:
        """Compare the seconds charged to each user's months with what the model predicts."""
        charged = {
            (row["user_id"], row["cycle"]): row["seconds"] for row in self.deployment.rows(CHARGES)
        }
        _same(charged, {key: seconds for key, seconds in self.model.used.items() if seconds})

    def check(self, codes: frozenset[str] | None = None, *, drained: bool = False) -> None:
        """Check that no invariant is broken."""
        acked = list(self.model.tasks)
        broken = violations(self.deployment.dispatcher, codes=codes, acked=acked, drained=drained)
        assert not broken, describe_violations(broken)

    # -- parts ----------------------------------------------------------------------------------

    def _make_user(self, number: int, plan: PlanTier, limits: PlanLimits) -> None:
        rejects = number % 2 == 0
        user = self.deployment.user(
            plan,
            # The same in every repetition, because the gate breaks ties by it.
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
        # In the order of submission: ids, and with them the gate's order, differ in a repetition.
        oldest_first = list(self.model.tasks)
        sent = sorted(taken.claims, key=lambda one: oldest_first.index(one.claim.task_id))
        self.wire += sent
        return sent

    def _announce(self, name: str) -> None:
        agent = self.model.agents[name]
        card = WorkerCard(name, POOL, sorted(agent.capabilities), agent.slots)
        presence.join(self.deployment.dispatcher, card)
        agent.known, agent.seen_at = True, self.model.now

    def _work_a_round(self, agent: str) -> None:
        self.work_on(SECOND)
        self.reap()
        self.promote()
        self.look()
        if not self.wire and not self.held:
            # What is left waits for a retry, for a lease to end, or for the next month's hours.
            waits = self.model.in_states(State.RETRYING, *ACTIVE)
            self.work_on(timedelta(hours=1)) if waits else self.until_month_ends(-SECOND)
        while self.wire:
            self.deliver(self.wire.pop(), agent)
        for one in self.held:
            self.settle(one, Returned())


def _same(found: object, predicted: object) -> None:
    """Fail with both, since asserts are only explained in test modules."""
    assert found == predicted, f"found {found!r}, predicted {predicted!r}"


def _forged(claim: Claim) -> Claim:
    return replace(claim, token=UUID(int=0))


def _as_row(task: Task) -> dict[str, object]:
    """Write a task of the model as the database should have it."""
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
        "cancel_requested_at": task.cancel_asked,
        "failure_reason": task.reason,
        "bundle": held and held.bundle,
        "runs_alone": task.alone,
    }


def _asked_for(user: UserId, task: NewTask, parents: set[TaskId]) -> Task:
    """Write a submitted task as the model has it."""
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
