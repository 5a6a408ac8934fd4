"""Budgets: what the gate will not start, what stops a run, and how it goes on."""

from datetime import timedelta
from decimal import Decimal

import pytest

from overnight_server.control.budgets import (
    approve,
    set_agent_budget,
    set_dag_budget,
    stop,
)
from overnight_server.control.cancel import cancel
from overnight_server.control.dead_letters import retry
from overnight_server.domain.budgets import Budget, next_cost
from overnight_server.domain.claims import Run
from overnight_server.domain.errors import InvalidRequest, NotAwaitingApproval, TaskNotFound
from overnight_server.domain.ids import DagId, TaskId, UserId
from overnight_server.domain.results import Lost, Raised, Returned, Suspended
from overnight_server.explain.explain import explain
from overnight_server.insight.budgets import list_approvals, money_of
from overnight_server.insight.tasks import get_task
from overnight_server.intake.submit import Edge, NewTask, submit_graph
from overnight_server.maintenance.reap import reap
from overnight_server.outcome.heartbeat import Answer, heartbeat
from overnight_server.outcome.presence import AgentCard, join
from tests.support.house import AGENT, LEASE, LOOSE, TERMS, House
from tests.support.invariants import told, violations
from tests.support.money import ACTOR, beat, started
from tests.support.rivals import Connect, Rival, meet_at_lane

DAY = timedelta(days=1)


@pytest.fixture(autouse=True)
def _books_balance(house: House) -> object:
    yield
    found = violations(house.owner)
    assert not found, told(found)


def graph(house: House, user: UserId, count: int, *, budget: float, cost: float) -> list[TaskId]:
    tasks = [NewTask(f"t{n}", "echo", max_cost_usd=cost) for n in range(count)]
    made = submit_graph(house.app, user, tasks, LOOSE, budget_usd=budget)
    return [one.task_id for one in made]


def dag_of(house: House, task: TaskId) -> DagId:
    return DagId(house.row(task)["dag_id"])


def test_a_run_at_its_ceiling_is_told_and_asks_instead_of_dying(house: House) -> None:
    user = house.user()
    house.agent()
    run = house.running(user, max_cost_usd=1.0, project_id="site")

    assert beat(house, run, 0.4) is Answer.CONTINUE
    assert beat(house, run, 1.0) is Answer.BUDGET
    assert house.settle(run, Suspended("the task has cost $1.10 of its $1.00", cost_usd=1.1))

    row = house.row(run.claim.task_id)
    assert (row["state"], row["awaits_budget"], row["attempts"]) == ("pending", "task", 0)
    assert float(row["cost_usd"]) == 1.1
    assert row["failure_reason"] == "budget_exceeded"
    lane = house.lane(user)
    assert (lane["active"], lane["reserved_seconds"], lane["night_reserved_usd"]) == (0, 0, 0)
    assert not house.rows("SELECT 1 FROM held_locks")
    view = get_task(house.app, user, run.claim.task_id)
    assert (view.state, view.wait_reason) == ("pending", "approval")
    [event] = house.rows("SELECT * FROM events WHERE to_state = 'pending'")
    assert event["reason"] == "budget_exceeded"
    assert not house.claim().claims


def test_an_approval_raises_the_ceiling_and_the_task_completes(house: House) -> None:
    user = house.user()
    house.agent()
    run = house.running(user, max_cost_usd=1.0)
    task = run.claim.task_id
    house.settle(run, Suspended(cost_usd=1.2))

    [asking] = list_approvals(house.app)
    assert (asking.budget, asking.spent_usd, asking.limit_usd) == ("task", 1.2, 1.0)
    approved = approve(house.app, task, 2.5, actor=ACTOR)

    assert (approved.budget, approved.resumed) == (Budget.TASK, 1)
    assert float(house.row(task)["max_cost_usd"]) == 3.7
    [again] = started(house)
    assert (again.ceiling_usd, again.spent_usd) == (3.7, 1.2)
    assert house.settle(again, Returned("done", cost_usd=1.0))
    assert house.state(task) == "completed"
    assert float(house.row(task)["cost_usd"]) == 2.2
    [event] = house.rows("SELECT actor FROM events WHERE from_state = 'pending'")
    assert event["actor"] == ACTOR
    assert not list_approvals(house.app)


def test_a_stop_ends_it_and_what_waits_for_it(house: House) -> None:
    user = house.user()
    house.agent()
    tasks = [NewTask("a", "echo", max_cost_usd=1.0), NewTask("b", "echo")]
    first, second = submit_graph(house.app, user, tasks, LOOSE, edges=[Edge(0, 1)])
    [run] = started(house)
    house.settle(run, Suspended(cost_usd=1.0))
    assert house.state(second.task_id) == "pending"

    stop(house.app, first.task_id, actor=ACTOR)

    row = house.row(first.task_id)
    assert (row["state"], row["failure_reason"]) == ("cancelled", "budget_exceeded")
    assert house.state(second.task_id) == "cancelled"
    with pytest.raises(NotAwaitingApproval):
        approve(house.app, first.task_id, 1.0, actor=ACTOR)


def test_a_task_that_asks_can_be_cancelled_like_any_other(house: House) -> None:
    user = house.user()
    house.agent()
    run = house.running(user, max_cost_usd=1.0)
    house.settle(run, Suspended(cost_usd=1.0))

    cancel(house.app, user, run.claim.task_id, actor="user:x")

    assert house.row(run.claim.task_id)["awaits_budget"] is None


def test_only_a_task_that_asks_is_approved_and_only_its_owners(house: House) -> None:
    user, other = house.user(), house.user()
    house.agent()
    waiting = house.task(user, max_cost_usd=1.0)
    with pytest.raises(NotAwaitingApproval):
        approve(house.app, waiting, 1.0, actor=ACTOR)
    with pytest.raises(NotAwaitingApproval):
        stop(house.app, waiting, actor=ACTOR)
    with pytest.raises(TaskNotFound):
        approve(house.app, waiting, 1.0, actor=ACTOR, user_id=other)
    with pytest.raises(InvalidRequest):
        approve(house.app, waiting, 0, actor=ACTOR)


def test_costs_reported_on_the_way_are_kept_when_the_worker_is_lost(house: House) -> None:
    user = house.user()
    house.agent()
    run = house.running(user, max_cost_usd=5.0)
    beat(house, run, 0.7)
    beat(house, run, 0.7)
    house.move_clock(LEASE + timedelta(seconds=1))

    reap(house.dispatcher)

    assert float(house.row(run.claim.task_id)["cost_usd"]) == 0.7
    assert float(house.lane(user)["night_spent_usd"]) == 0.7
    assert house.lane(user)["night_reserved_usd"] == 0


def test_a_crash_at_the_ceiling_asks_too(house: House) -> None:
    run = _dear_run(house)

    house.settle(run, Lost())

    row = house.row(run.claim.task_id)
    assert (row["state"], row["attempts"]) == ("pending", 1)


def test_an_output_over_the_ceiling_still_completes(house: House) -> None:
    run = _dear_run(house)

    house.settle(run, Returned("paid for", cost_usd=9.0))

    assert house.state(run.claim.task_id) == "completed"


def test_a_dead_task_at_its_ceiling_asks_when_it_is_revived(house: House) -> None:
    run = _dear_run(house)
    house.settle(run, Raised("auth_failure", "no", cost_usd=1.0))
    assert house.state(run.claim.task_id) == "dead_lettered"

    retry(house.app, run.claim.task_id, actor=ACTOR)

    row = house.row(run.claim.task_id)
    assert (row["state"], row["awaits_budget"]) == ("pending", "task")


def test_a_graph_starts_only_what_its_budget_can_pay(house: House) -> None:
    user = house.user()
    house.agent()
    tasks = graph(house, user, 5, budget=2.5, cost=1.0)

    runs = started(house)

    assert len(runs) == 2
    assert not house.claim().claims
    house.settle(runs[0], Returned(cost_usd=0.1))
    assert len(house.claim().claims) == 1  # 0.1 spent, 2 promised: no room for a third beside two
    assert house.lane(user)["active"] == 2
    assert money_of(house.app, tasks[4]).shortage is not None


def test_a_graph_that_is_used_up_stops_what_spends_and_raising_it_lets_all_go_on(
    house: House,
) -> None:
    user = house.user()
    house.agent()
    tasks = [NewTask(f"t{n}", "echo") for n in range(3)]
    made = submit_graph(house.app, user, tasks, LOOSE, budget_usd=1.0)
    runs = started(house)
    assert len(runs) == 3  # nobody said what they cost
    assert beat(house, runs[0], 0.6) is Answer.CONTINUE
    assert beat(house, runs[1], 0.6) is Answer.BUDGET
    assert heartbeat(house.dispatcher, runs[0].claim, lease=LEASE) is Answer.BUDGET
    assert heartbeat(house.dispatcher, runs[2].claim, lease=LEASE) is Answer.CONTINUE
    for run in runs[:2]:
        house.settle(run, Suspended(cost_usd=0.6))
    assert [one.budget for one in list_approvals(house.app)] == ["dag", "dag"]

    set_dag_budget(house.app, dag_of(house, made[0].task_id), 5.0, actor=ACTOR)

    assert len(started(house)) == 2
    assert not list_approvals(house.app)


def test_approving_one_of_a_graph_raises_the_graphs_budget(house: House) -> None:
    user = house.user()
    house.agent()
    tasks = [NewTask(f"t{n}", "echo") for n in range(2)]
    made = submit_graph(house.app, user, tasks, LOOSE, budget_usd=1.0)
    for run in started(house):
        beat(house, run, 0.6)
        house.settle(run, Suspended(cost_usd=0.6))

    approved = approve(house.app, made[1].task_id, 1.0, actor=ACTOR)

    assert approved.budget is Budget.DAG
    [row] = house.rows("SELECT budget_ceiling_usd FROM dags")
    assert float(row["budget_ceiling_usd"]) == 2.2


def test_an_agent_that_has_used_up_its_budget_is_given_nothing_at_all(house: House) -> None:
    house.agent()
    user = house.user()
    task = house.task(user)
    set_agent_budget(house.dispatcher, AGENT, 0, actor=ACTOR)

    assert list(house.claim().claims) == []
    [reason] = explain(house.app, user, task, TERMS).reasons
    assert (reason.code, reason.details["budget"]) == ("budget", "agent")

    set_agent_budget(house.dispatcher, AGENT, 0.01, actor=ACTOR)
    assert len(house.claim().claims) == 1


def test_an_agent_is_given_only_what_it_can_pay(house: House) -> None:
    user = house.user()
    join(house.dispatcher, AgentCard("poor", "default", (), 10, budget_usd=1.0))
    dear = house.task(user, max_cost_usd=2)
    cheap = house.task(user, max_cost_usd=1)

    [claimed] = house.claim().claims
    assert claimed.claim.task_id == cheap
    run = house.start(claimed, agent="poor")
    assert run is not None
    house.settle(run, Returned(cost_usd=0.75))
    [agent] = house.rows("SELECT budget_remaining_usd AS left FROM agents")
    assert float(agent["left"]) == 0.25
    assert not house.claim().claims

    set_agent_budget(house.dispatcher, "poor", 2, actor=ACTOR)

    assert [one.claim.task_id for one in house.claim().claims] == [dear]


def test_an_estimate_below_the_ceiling_is_what_is_kept_free(house: House) -> None:
    user = house.user(night_budget_usd=10)
    house.agent()
    for _ in range(3):
        house.task(user, max_cost_usd=9, estimated_cost_usd=2)

    assert len(house.claim().claims) == 3
    assert house.lane(user)["night_reserved_usd"] == 6


@pytest.mark.parametrize("spent", [0, 3, 9])
@pytest.mark.parametrize("ceiling", [None, 0, 5])
@pytest.mark.parametrize("estimated", [None, 0, 2, 7])
def test_both_languages_agree_on_what_the_next_run_costs(
    house: House, estimated: int | None, ceiling: int | None, spent: int
) -> None:
    def money(amount: int | None) -> Decimal | None:
        return None if amount is None else Decimal(amount)

    row = house.one(
        "SELECT next_cost(CAST(:e AS numeric), CAST(:c AS numeric), CAST(:s AS numeric)) AS usd",
        e=estimated,
        c=ceiling,
        s=spent,
    )
    assert row["usd"] == next_cost(money(estimated), money(ceiling), Decimal(spent))


def test_lanes_whose_budget_is_used_up_neither_delay_nor_slow_the_others(house: House) -> None:
    house.agent(slots=5)
    for _ in range(40):
        graph(house, house.user(), 3, budget=0.5, cost=1.0)
    last = house.task(house.user())

    taken = house.claim().claims

    assert [one.claim.task_id for one in taken] == [last]
    [parked] = house.rows("SELECT count(*) AS lanes FROM lanes WHERE 'default' = ANY (parked_for)")
    assert parked["lanes"] == 40


def test_an_approval_and_a_stop_at_once_leave_one_winner(house: House, connect: Connect) -> None:
    user = house.user()
    house.agent()
    run = house.running(user, max_cost_usd=1.0)
    house.settle(run, Suspended(cost_usd=1.0))
    task = run.claim.task_id
    first = Rival(connect, "first", approve, task, 1.0, actor=ACTOR)
    second = Rival(connect, "second", stop, task, actor=ACTOR)

    with pytest.raises(NotAwaitingApproval):
        meet_at_lane(connect, user, first, second)

    assert house.state(task) == "ready"


def _dear_run(house: House) -> Run:
    user = house.user()
    house.agent()
    run = house.running(user, max_cost_usd=1.0)
    beat(house, run, 1.0)
    return run
