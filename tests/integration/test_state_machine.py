"""A deployment is compared with its model after any sequence of acts and faults."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from overnight.models.enums import PlanTier
from overnight_server.domain.plans import PlanLimits
from overnight_server.domain.results import (
    Deferred,
    Died,
    Interrupted,
    Raised,
    Result,
    Returned,
    StoppedByCancel,
    TimedOut,
)
from overnight_server.domain.retry import RetryRules, Strategy
from overnight_server.intake.new_graph import NewTask
from overnight_server.maintenance.audit import audit
from tests.support.deployment import Deployment
from tests.support.model_comparison import ALL_SLOTS, QUICK, SECOND, ModelComparison
from tests.support.stopped_clock import prepare

# Checked after every step because they are quick; the rest is checked at the end of a sequence.
EVERY_STEP = frozenset({"lane_counters", "lane_limits", "graph_counters", "claims"})

PLANS = (
    (PlanTier.FREE, PlanLimits(1, 30, 10)),
    (PlanTier.PRO, PlanLimits(3, 120, 100)),
    (PlanTier.TEAM, PlanLimits(2, 60, 2)),
    (PlanTier.ENTERPRISE, PlanLimits(4, 480, None)),
)
POLICIES = (
    RetryRules(jitter=False),
    RetryRules(Strategy.IMMEDIATE, jitter=False),
    RetryRules(Strategy.FIXED, initial_delay_sec=60, jitter=False, retry_on=("crash",)),
)
FAILURES: tuple[Result, ...] = (
    Raised("error", "no luck", cost_usd=0.25),
    Raised("auth_failure", "wrong key"),
    Raised("rate_limit", "slow down", wait_seconds=120),
    Raised("error", "hopeless", retryable=False),
    TimedOut(by_plan=False),
    TimedOut(by_plan=True),
    Died(),
)
RESULTS = (
    Returned({"ok": True}, cost_usd=0.5),
    Returned(ran_seconds=7.0),
    Interrupted(),
    Deferred(wait_seconds=30),
    *FAILURES,
)

Graph = tuple[list[NewTask], Sequence[set[int]]]
Sweep = Callable[[ModelComparison], None]

picks = st.integers(min_value=0, max_value=99)
new_tasks = st.builds(
    NewTask,
    title=st.just("a task"),
    type=st.sampled_from(["echo", QUICK]),
    priority=st.integers(0, 90),
    timeout_seconds=st.sampled_from([1200, None, 20, 5400]),
    max_attempts=st.sampled_from([3, 2, 1]),
    retry=st.sampled_from(POLICIES),
    required_capabilities=st.sampled_from([(), (), ("gpu",)]),
    locks=st.sampled_from([(), (), ("repository",), ("path:src",), ("path:src/a", "repository")]),
)
# For each task of a graph, which of the tasks before it it waits for.
graphs = st.lists(new_tasks, min_size=2, max_size=5).flatmap(
    lambda tasks: st.tuples(
        st.just(tasks),
        st.tuples(
            st.just(frozenset[int]()),
            *(st.frozensets(st.integers(0, n - 1)) for n in range(1, len(tasks))),
        ),
    )
)
durations = st.sampled_from([1, 20, 29, 31, 61, 300, 1300, 3600, 6 * 3600])
SWEEPS = (
    ModelComparison.reap,
    ModelComparison.end_overdue,
    ModelComparison.promote,
    ModelComparison.begin_months,
)
sweeps = st.lists(st.sampled_from(SWEEPS), max_size=4, unique=True)


def some(things: Sequence[Any], pick: int) -> Any:
    """Choose one of the current items."""
    return things[pick % len(things)]


class DeploymentMachine(RuleBasedStateMachine):
    """Acts of users, workers and sweeps, and faults, in any order."""

    def __init__(self, deployment: Deployment) -> None:
        super().__init__()
        self.comparison = ModelComparison(deployment, PLANS)

    @initialize(tasks=st.lists(st.tuples(picks, new_tasks), min_size=2, max_size=5), graph=graphs)
    def first_submits(self, tasks: list[tuple[int, NewTask]], graph: Graph) -> None:
        self.comparison.join(4, frozenset())
        for user, task in tasks:
            self.submit(user, task)
        self.submit_a_graph(1, graph)
        self.work_is_handed_out(0)

    # -- producers and people ---------------------------------------------------------------------

    @rule(user=picks, task=new_tasks)
    def submit(self, user: int, task: NewTask) -> None:
        self.comparison.submit(some(self.comparison.users, user), [task])

    @rule(user=picks, task=new_tasks, key=st.sampled_from(["a", "b"]))
    def submit_under_a_key(self, user: int, task: NewTask, key: str) -> None:
        self.comparison.submit_under_a_key(some(self.comparison.users, user), task, key)

    @rule(user=picks, graph=graphs)
    def submit_a_graph(self, user: int, graph: Graph) -> None:
        tasks, parents = graph
        # Different priorities, so that the order of two tasks is determined.
        ranked = [replace(task, priority=9 * number) for number, task in enumerate(tasks)]
        self.comparison.submit(some(self.comparison.users, user), ranked, parents)

    @precondition(lambda self: self.comparison.open_tasks)
    @rule(pick=picks)
    def someone_cancels(self, pick: int) -> None:
        self.comparison.cancel(some(self.comparison.open_tasks, pick))

    @precondition(lambda self: self.comparison.ended)
    @rule(pick=picks)
    def people_send_invalid_requests(self, pick: int) -> None:
        self.comparison.cancel_too_late(some(self.comparison.ended, pick))
        self.comparison.cancel_as_stranger(some(list(self.comparison.model.tasks), pick))
        for task_id in set(self.comparison.model.tasks) - set(self.comparison.letters):
            self.comparison.revive_other(task_id)

    @precondition(lambda self: self.comparison.letters)
    @rule(pick=picks, again=st.sampled_from([True, True, False]))
    def a_dead_letter_is_resolved(self, pick: int, *, again: bool) -> None:
        letter = some(self.comparison.letters, pick)
        self.comparison.revive(letter) if again else self.comparison.discard(letter)

    @rule(user=picks, plan=st.sampled_from(PLANS))
    def someone_changes_plan(self, user: int, plan: tuple[PlanTier, PlanLimits]) -> None:
        self.comparison.change_plan(some(self.comparison.users, user), *plan)

    # -- claims and messages ----------------------------------------------------------------------

    @rule(agent=picks)
    def work_is_handed_out(self, agent: int) -> None:
        self.comparison.claim_all()
        while self.comparison.messages:
            self.comparison.deliver(
                self.comparison.messages.pop(), some(self.comparison.agents, agent)
            )

    @rule(limit=st.sampled_from([1, 2, ALL_SLOTS]))
    def work_is_sent(self, limit: int) -> None:
        self.comparison.claim_all(limit)

    @precondition(lambda self: self.comparison.messages)
    @rule(pick=picks, agent=picks, again=st.booleans())
    def a_message_arrives(self, pick: int, agent: int, *, again: bool) -> None:
        message = self.comparison.messages.pop(pick % len(self.comparison.messages))
        self.comparison.deliver(message, some(self.comparison.agents, agent))
        if again:
            self.comparison.messages.append(message)

    @precondition(lambda self: self.comparison.messages)
    @rule(pick=picks)
    def a_message_is_lost(self, pick: int) -> None:
        self.comparison.messages.pop(pick % len(self.comparison.messages))

    @precondition(lambda self: self.comparison.messages)
    @rule(pick=picks, agent=picks, arrived=st.booleans())
    def a_publisher_gives_up(self, pick: int, agent: int, *, arrived: bool) -> None:
        message = self.comparison.messages.pop(pick % len(self.comparison.messages))
        if arrived:
            self.comparison.deliver(message, some(self.comparison.agents, agent))
        self.comparison.hand_back(message)

    # -- runs -------------------------------------------------------------------------------------

    @precondition(lambda self: self.comparison.held)
    @rule(pick=picks)
    def a_run_finishes(self, pick: int) -> None:
        self.comparison.settle(some(self.comparison.held, pick), Returned())

    @precondition(lambda self: self.comparison.held)
    @rule(pick=picks, result=st.sampled_from(RESULTS))
    def a_run_ends(self, pick: int, result: Result) -> None:
        self.comparison.settle(some(self.comparison.held, pick), result)

    @precondition(lambda self: self.comparison.held)
    @rule(pick=picks, failure=st.sampled_from(FAILURES))
    def a_run_fails(self, pick: int, failure: Result) -> None:
        self.comparison.settle(some(self.comparison.held, pick), failure)

    @precondition(lambda self: self.comparison.stopping)
    @rule(pick=picks, result=st.sampled_from([StoppedByCancel(), StoppedByCancel(), *RESULTS]))
    def a_run_stops(self, pick: int, result: Result) -> None:
        self.comparison.settle(some(self.comparison.stopping, pick), result)

    @precondition(lambda self: self.comparison.runs)
    @rule(pick=picks, handling=st.booleans())
    def a_process_dies(self, pick: int, *, handling: bool) -> None:
        self.comparison.die(some(self.comparison.runs, pick), handling=handling)

    @precondition(lambda self: self.comparison.stale)
    @rule(pick=picks, result=st.sampled_from(RESULTS))
    def a_stale_run_answers(self, pick: int, result: Result) -> None:
        stale = some(self.comparison.stale, pick)
        self.comparison.beat(stale[0])
        self.comparison.settle(stale, result)

    @precondition(lambda self: self.comparison.runs)
    @rule(pick=picks)
    def a_forger_answers(self, pick: int) -> None:
        self.comparison.forge(some(self.comparison.runs, pick))

    # -- workers, time and sweeps -----------------------------------------------------------------

    @rule(slots=st.integers(1, 4), capabilities=st.frozensets(st.just("gpu")))
    def a_worker_joins(self, slots: int, capabilities: frozenset[str]) -> None:
        self.comparison.join(slots, capabilities)

    @rule(pick=picks, orderly=st.booleans())
    def a_worker_goes(self, pick: int, *, orderly: bool) -> None:
        agent = some(self.comparison.agents, pick)
        self.comparison.leave(agent) if orderly else self.comparison.fall_silent(agent)

    @rule(seconds=durations, then=sweeps)
    def time_passes_with_sweeps(self, seconds: int, then: Sequence[Sweep]) -> None:
        self.comparison.pass_by(timedelta(seconds=seconds))
        self.sweep(then)

    @rule(seconds=durations, then=sweeps)
    def work_goes_on(self, seconds: int, then: Sequence[Sweep]) -> None:
        self.comparison.work_on(timedelta(seconds=seconds))
        self.sweep(then)

    @rule(before=st.sampled_from([timedelta(minutes=10), SECOND, -SECOND]), then=sweeps)
    def a_month_ends(self, before: timedelta, then: Sequence[Sweep]) -> None:
        self.comparison.until_month_ends(before)
        self.sweep(then)

    def sweep(self, all_of: Sequence[Sweep]) -> None:
        for sweep in all_of:
            sweep(self.comparison)

    # -- what must hold ---------------------------------------------------------------------------

    @invariant()
    def the_rows_are_as_predicted(self) -> None:
        self.comparison.compare()
        self.comparison.check(EVERY_STEP)

    def teardown(self) -> None:
        self.comparison.check()
        self.comparison.drain()
        self.comparison.compare()
        self.comparison.compare_charges()
        self.comparison.check(drained=True)
        assert audit(self.comparison.deployment.dispatcher) == 0


@pytest.fixture
def schema_deployment(deployment: Deployment) -> Deployment:
    prepare(deployment)
    return deployment


@pytest.mark.timeout(600)
def test_no_sequence_of_acts_and_faults_breaks_the_deployment(
    schema_deployment: Deployment,
) -> None:
    _search(schema_deployment, examples=40, steps=30)


@pytest.mark.proof
@pytest.mark.timeout(4 * 3600)
def test_no_long_sequence_of_acts_and_faults_breaks_the_deployment(
    schema_deployment: Deployment,
) -> None:
    _search(schema_deployment, examples=2_000, steps=80)


def _search(deployment: Deployment, *, examples: int, steps: int) -> None:
    run_state_machine_as_test(
        lambda: DeploymentMachine(deployment),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
