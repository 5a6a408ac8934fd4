"""Budgets: they block the gate, stop runs, and continue after an approval."""

from datetime import timedelta
from decimal import Decimal

import pytest

from overnight.errors import InvalidRequest, NotAwaitingApproval, TaskNotFound
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
from overnight_server.domain.ids import DagId, TaskId, UserId
from overnight_server.domain.results import Lost, Raised, Returned, StoppedByBudget
from overnight_server.explain.explain import explain
from overnight_server.insight.budgets import list_approvals
from overnight_server.insight.tasks import get_task
from overnight_server.intake.new_graph import Edge, NewTask
from overnight_server.intake.submit import submit_graph
from overnight_server.maintenance.reap import reap
from overnight_server.outcome.heartbeat import HeartbeatAnswer, heartbeat
from overnight_server.outcome.presence import WorkerDescription, join
from tests.support.costs import ACTOR, beat, start_all
from tests.support.deployment import AGENT, CLAIM_SETTINGS, LEASE, LOOSE, Deployment
from tests.support.invariants import describe_violations, violations
from tests.support.rivals import Connect, Rival, meet_at_lane

DAY = timedelta(days=1)


@pytest.fixture(autouse=True)
def _no_violations_at_the_end(deployment: Deployment) -> object:
    yield
    broken = violations(deployment.owner)
    assert not broken, describe_violations(broken)


def graph(
    deployment: Deployment, user: UserId, count: int, *, budget: float, cost: float
) -> list[TaskId]:
    tasks = [NewTask(f"t{n}", "echo", max_cost_usd=cost) for n in range(count)]
    made = submit_graph(deployment.app, user, tasks, LOOSE, budget_usd=budget)
    return [submitted.task_id for submitted in made]


def dag_of(deployment: Deployment, task: TaskId) -> DagId:
    return DagId(deployment.row(task)["dag_id"])


def test_a_run_at_its_cost_limit_waits_for_approval(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    run = deployment.running(user, max_cost_usd=1.0, project_id="site")

    assert beat(deployment, run, 0.4) is HeartbeatAnswer.CONTINUE
    assert beat(deployment, run, 1.0) is HeartbeatAnswer.BUDGET
    assert deployment.settle(
        run, StoppedByBudget("the task has cost $1.10 of its $1.00", cost_usd=1.1)
    )

    row = deployment.row(run.claim.task_id)
    assert (row["state"], row["awaits_budget"], row["attempts"]) == ("pending", "task", 0)
    assert float(row["cost_usd"]) == 1.1
    assert row["failure_reason"] == "budget_exceeded"
    lane = deployment.lane(user)
    assert (lane["active"], lane["reserved_seconds"], lane["night_reserved_usd"]) == (0, 0, 0)
    assert not deployment.rows("SELECT 1 FROM held_locks")
    view = get_task(deployment.app, user, run.claim.task_id)
    assert (view.state, view.wait_reason) == ("pending", "approval")
    [event] = deployment.rows("SELECT * FROM events WHERE to_state = 'pending'")
    assert event["reason"] == "budget_exceeded"
    assert not deployment.claim().claims


def test_an_approval_raises_the_ceiling_and_the_task_completes(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    run = deployment.running(user, max_cost_usd=1.0)
    task = run.claim.task_id
    deployment.settle(run, StoppedByBudget(cost_usd=1.2))

    [asking] = list_approvals(deployment.app)
    assert (asking.budget, asking.spent_usd, asking.limit_usd) == ("task", 1.2, 1.0)
    approved = approve(deployment.app, task, 2.5, actor=ACTOR)

    assert (approved.budget, approved.resumed) == (Budget.TASK, 1)
    assert float(deployment.row(task)["max_cost_usd"]) == 3.7
    [again] = start_all(deployment)
    assert (again.ceiling_usd, again.spent_usd) == (3.7, 1.2)
    assert deployment.settle(again, Returned("done", cost_usd=1.0))
    assert deployment.state(task) == "completed"
    assert float(deployment.row(task)["cost_usd"]) == 2.2
    [event] = deployment.rows("SELECT actor FROM events WHERE from_state = 'pending'")
    assert event["actor"] == ACTOR
    assert not list_approvals(deployment.app)


def test_stopping_a_task_that_waits_for_approval_cancels_its_dependents(
    deployment: Deployment,
) -> None:
    user = deployment.user()
    deployment.agent()
    tasks = [NewTask("a", "echo", max_cost_usd=1.0), NewTask("b", "echo")]
    first, second = submit_graph(deployment.app, user, tasks, LOOSE, edges=[Edge(0, 1)])
    [run] = start_all(deployment)
    deployment.settle(run, StoppedByBudget(cost_usd=1.0))
    assert deployment.state(second.task_id) == "pending"

    stop(deployment.app, first.task_id, actor=ACTOR)

    row = deployment.row(first.task_id)
    assert (row["state"], row["failure_reason"]) == ("cancelled", "budget_exceeded")
    assert deployment.state(second.task_id) == "cancelled"
    with pytest.raises(NotAwaitingApproval):
        approve(deployment.app, first.task_id, 1.0, actor=ACTOR)


def test_a_task_that_waits_for_approval_can_be_cancelled(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    run = deployment.running(user, max_cost_usd=1.0)
    deployment.settle(run, StoppedByBudget(cost_usd=1.0))

    cancel(deployment.app, user, run.claim.task_id, actor="user:x")

    assert deployment.row(run.claim.task_id)["awaits_budget"] is None


@pytest.mark.parametrize("over", ["approve", "stop"])
def test_a_ready_task_that_its_graph_cannot_pay_asks_for_approval(
    deployment: Deployment, over: str
) -> None:
    user = deployment.user()
    deployment.agent()
    [task] = graph(deployment, user, 1, budget=1.0, cost=3.0)
    assert deployment.claim().claims == []

    [asking] = list_approvals(deployment.app, user_id=user)
    assert (asking.budget, asking.needs_usd, asking.limit_usd) == ("dag", 3.0, 1.0)
    [reason] = explain(deployment.app, user, task, CLAIM_SETTINGS).reasons
    assert "without an answer it waits" in reason.message
    if over == "approve":
        assert approve(deployment.app, task, 2.0, actor=ACTOR).resumed == 1
        assert [one.claim.task_id for one in deployment.claim().claims] == [task]
    else:
        stop(deployment.app, task, actor=ACTOR)
        assert deployment.state(task) == "cancelled"
    assert list_approvals(deployment.app) == []


def test_a_ready_task_that_the_night_cannot_pay_asks_for_approval(deployment: Deployment) -> None:
    user = deployment.user(night_budget_usd=2)
    deployment.agent()
    task = deployment.task(user, estimated_cost_usd=3.0)
    fits = deployment.task(user, estimated_cost_usd=1.0)
    assert [one.claim.task_id for one in deployment.claim().claims] == [fits]

    [asking] = list_approvals(deployment.app)
    assert (asking.budget, asking.raised_by) == ("night", "operator")
    approve(deployment.app, task, 2.0, actor=ACTOR)

    assert [one.claim.task_id for one in deployment.claim().claims] == [task]


def test_a_ready_task_that_waits_for_reserved_money_does_not_ask(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    first, second = graph(deployment, user, 2, budget=3.0, cost=2.0)
    [claimed] = deployment.claim().claims

    assert claimed.claim.task_id in {first, second}
    assert list_approvals(deployment.app) == []


def test_only_the_owners_waiting_task_can_be_approved(deployment: Deployment) -> None:
    user, other = deployment.user(), deployment.user()
    deployment.agent()
    waiting = deployment.task(user, max_cost_usd=1.0)
    with pytest.raises(NotAwaitingApproval):
        approve(deployment.app, waiting, 1.0, actor=ACTOR)
    with pytest.raises(NotAwaitingApproval):
        stop(deployment.app, waiting, actor=ACTOR)
    with pytest.raises(TaskNotFound):
        approve(deployment.app, waiting, 1.0, actor=ACTOR, user_id=other)
    with pytest.raises(InvalidRequest):
        approve(deployment.app, waiting, 0, actor=ACTOR)


def test_costs_reported_on_the_way_are_kept_when_the_worker_is_lost(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    run = deployment.running(user, max_cost_usd=5.0)
    beat(deployment, run, 0.7)
    beat(deployment, run, 0.7)
    deployment.move_clock(LEASE + timedelta(seconds=1))

    reap(deployment.dispatcher)

    assert float(deployment.row(run.claim.task_id)["cost_usd"]) == 0.7
    assert float(deployment.lane(user)["night_spent_usd"]) == 0.7
    assert deployment.lane(user)["night_reserved_usd"] == 0


def test_a_crash_at_the_cost_limit_waits_for_approval(deployment: Deployment) -> None:
    run = _dear_run(deployment)

    deployment.settle(run, Lost())

    row = deployment.row(run.claim.task_id)
    assert (row["state"], row["attempts"]) == ("pending", 1)


def test_a_result_over_the_cost_limit_still_completes(deployment: Deployment) -> None:
    run = _dear_run(deployment)

    deployment.settle(run, Returned("paid for", cost_usd=9.0))

    assert deployment.state(run.claim.task_id) == "completed"


def test_a_revived_task_at_its_cost_limit_waits_for_approval(deployment: Deployment) -> None:
    run = _dear_run(deployment)
    deployment.settle(run, Raised("auth_failure", "no", cost_usd=1.0))
    assert deployment.state(run.claim.task_id) == "dead_lettered"

    retry(deployment.app, run.claim.task_id, actor=ACTOR)

    row = deployment.row(run.claim.task_id)
    assert (row["state"], row["awaits_budget"]) == ("pending", "task")


def test_a_graph_starts_only_tasks_that_its_budget_can_pay(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    tasks = graph(deployment, user, 5, budget=2.5, cost=1.0)

    runs = start_all(deployment)

    assert len(runs) == 2
    assert not deployment.claim().claims
    deployment.settle(runs[0], Returned(cost_usd=0.1))
    assert (
        len(deployment.claim().claims) == 1
    )  # 0.1 spent, 2 promised: no room for a third beside two
    assert deployment.lane(user)["active"] == 2
    [reason] = explain(deployment.app, user, tasks[4], CLAIM_SETTINGS).reasons
    assert reason.code == "budget"


def test_a_used_up_graph_budget_stops_its_runs_until_it_is_raised(
    deployment: Deployment,
) -> None:
    user = deployment.user()
    deployment.agent()
    tasks = [NewTask(f"t{n}", "echo") for n in range(3)]
    made = submit_graph(deployment.app, user, tasks, LOOSE, budget_usd=1.0)
    runs = start_all(deployment)
    assert len(runs) == 3  # nobody said what they cost
    assert beat(deployment, runs[0], 0.6) is HeartbeatAnswer.CONTINUE
    assert beat(deployment, runs[1], 0.6) is HeartbeatAnswer.BUDGET
    assert heartbeat(deployment.dispatcher, runs[0].claim, lease=LEASE) is HeartbeatAnswer.BUDGET
    assert heartbeat(deployment.dispatcher, runs[2].claim, lease=LEASE) is HeartbeatAnswer.CONTINUE
    for run in runs[:2]:
        deployment.settle(run, StoppedByBudget(cost_usd=0.6))
    assert [approval.budget for approval in list_approvals(deployment.app)] == ["dag", "dag"]

    set_dag_budget(deployment.app, dag_of(deployment, made[0].task_id), 5.0, actor=ACTOR)

    assert len(start_all(deployment)) == 2
    assert not list_approvals(deployment.app)


def test_approving_a_task_raises_the_budget_of_its_graph(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    tasks = [NewTask(f"t{n}", "echo") for n in range(2)]
    made = submit_graph(deployment.app, user, tasks, LOOSE, budget_usd=1.0)
    for run in start_all(deployment):
        beat(deployment, run, 0.6)
        deployment.settle(run, StoppedByBudget(cost_usd=0.6))

    approved = approve(deployment.app, made[1].task_id, 1.0, actor=ACTOR)

    assert approved.budget is Budget.DAG
    [row] = deployment.rows("SELECT budget_ceiling_usd FROM dags")
    assert float(row["budget_ceiling_usd"]) == 2.2


def test_an_agent_with_a_used_up_budget_gets_no_task(
    deployment: Deployment,
) -> None:
    deployment.agent()
    user = deployment.user()
    task = deployment.task(user)
    set_agent_budget(deployment.dispatcher, AGENT, 0, actor=ACTOR)

    assert list(deployment.claim().claims) == []
    [reason] = explain(deployment.app, user, task, CLAIM_SETTINGS).reasons
    assert (reason.code, reason.details["budget"]) == ("budget", "agent")

    set_agent_budget(deployment.dispatcher, AGENT, 0.01, actor=ACTOR)
    assert len(deployment.claim().claims) == 1


def test_an_agent_gets_only_tasks_that_its_budget_can_pay(deployment: Deployment) -> None:
    user = deployment.user()
    join(deployment.dispatcher, WorkerDescription("poor", "default", (), 10, budget_usd=1.0))
    dear = deployment.task(user, max_cost_usd=2)
    cheap = deployment.task(user, max_cost_usd=1)

    [claimed] = deployment.claim().claims
    assert claimed.claim.task_id == cheap
    run = deployment.start(claimed, agent="poor")
    assert run is not None
    deployment.settle(run, Returned(cost_usd=0.75))
    [agent] = deployment.rows("SELECT budget_remaining_usd AS left FROM agents")
    assert float(agent["left"]) == 0.25
    assert not deployment.claim().claims

    set_agent_budget(deployment.dispatcher, "poor", 2, actor=ACTOR)

    assert [claimed.claim.task_id for claimed in deployment.claim().claims] == [dear]


def test_the_reservation_is_the_estimate_if_it_is_below_the_ceiling(deployment: Deployment) -> None:
    user = deployment.user(night_budget_usd=10)
    deployment.agent()
    for _ in range(3):
        deployment.task(user, max_cost_usd=9, estimated_cost_usd=2)

    assert len(deployment.claim().claims) == 3
    assert deployment.lane(user)["night_reserved_usd"] == 6


@pytest.mark.parametrize("spent", [0, 3, 9])
@pytest.mark.parametrize("ceiling", [None, 0, 5])
@pytest.mark.parametrize("estimated", [None, 0, 2, 7])
def test_sql_and_python_agree_on_the_cost_of_the_next_run(
    deployment: Deployment, estimated: int | None, ceiling: int | None, spent: int
) -> None:
    def money(amount: int | None) -> Decimal | None:
        return None if amount is None else Decimal(amount)

    row = deployment.one(
        "SELECT next_cost(CAST(:e AS numeric), CAST(:c AS numeric), CAST(:s AS numeric)) AS usd",
        e=estimated,
        c=ceiling,
        s=spent,
    )
    assert row["usd"] == next_cost(money(estimated), money(ceiling), Decimal(spent))


def test_lanes_whose_budget_is_used_up_neither_delay_nor_slow_the_others(
    deployment: Deployment,
) -> None:
    deployment.agent(slots=5)
    for _ in range(40):
        graph(deployment, deployment.user(), 3, budget=0.5, cost=1.0)
    last = deployment.task(deployment.user())

    taken = deployment.claim().claims

    assert [claimed.claim.task_id for claimed in taken] == [last]
    [parked] = deployment.rows(
        "SELECT count(*) AS lanes FROM lanes WHERE 'default' = ANY (skipped_by_pools)"
    )
    assert parked["lanes"] == 40


def test_an_approval_and_a_stop_at_once_leave_one_winner(
    deployment: Deployment, connect: Connect
) -> None:
    user = deployment.user()
    deployment.agent()
    run = deployment.running(user, max_cost_usd=1.0)
    deployment.settle(run, StoppedByBudget(cost_usd=1.0))
    task = run.claim.task_id
    first = Rival(connect, "first", approve, task, 1.0, actor=ACTOR)
    second = Rival(connect, "second", stop, task, actor=ACTOR)

    with pytest.raises(NotAwaitingApproval):
        meet_at_lane(connect, user, first, second)

    assert deployment.state(task) == "ready"


def _dear_run(deployment: Deployment) -> Run:
    user = deployment.user()
    deployment.agent()
    run = deployment.running(user, max_cost_usd=1.0)
    beat(deployment, run, 1.0)
    return run
