"""Read services: only own tasks, in order, page by page, with the names of the wire."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import uuid4

import pytest

from overnight.errors import TaskNotFound, UserNotFound
from overnight.models.enums import PlanTier
from overnight.models.tasks import TaskResponse
from overnight_server.control.cancel import cancel
from overnight_server.control.drain import drain
from overnight_server.domain.ids import TaskId, UserId, show_dag, show_task
from overnight_server.domain.lifecycle import State, states_of
from overnight_server.domain.results import Raised, Returned
from overnight_server.insight import tasks as task_views
from overnight_server.insight.limits import user_limits
from overnight_server.insight.queue_status import queue_status
from overnight_server.insight.tasks import get_task, list_tasks
from overnight_server.insight.workers import health
from overnight_server.maintenance.sweeps import run_sweep
from overnight_server.outcome.heartbeat import heartbeat
from overnight_server.outcome.presence import leave, record_heartbeat
from overnight_server.settings import load
from tests.support.deployment import AGENT, CLAIM_SETTINGS, LEASE, Deployment


def test_a_queue_position_follows_the_order_of_the_gate(deployment: Deployment) -> None:
    user = deployment.user()
    late, normal, critical = (deployment.task(user, priority=score) for score in (90, 50, 5))
    deployment.task(deployment.user(), priority=0)  # another user's tasks are not in this queue

    places = [
        get_task(deployment.app, user, task_id).queue_position
        for task_id in (critical, normal, late)
    ]

    assert places == [1, 2, 3]


def test_only_a_ready_task_has_a_position(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    run = deployment.running(user)

    running = get_task(deployment.app, user, run.claim.task_id)
    deployment.settle(run, Returned())

    assert running.position is None
    assert get_task(deployment.app, user, run.claim.task_id).position is None


def test_positions_far_back_are_not_counted(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_views, "MAX_POSITION", 2)
    user = deployment.user()
    made = [deployment.task(user) for _ in range(4)]

    assert [get_task(deployment.app, user, task_id).position for task_id in made] == [
        1,
        2,
        None,
        None,
    ]


def test_another_users_task_is_not_found(deployment: Deployment) -> None:
    other_user = deployment.user()
    task_id = deployment.task(deployment.user())

    for unknown in (task_id, TaskId(uuid4())):
        with pytest.raises(TaskNotFound, match=r"^no such task$"):
            get_task(deployment.app, other_user, unknown)
    assert list_tasks(deployment.app, other_user) == []


def test_pages_follow_each_other_without_gap_or_repetition(deployment: Deployment) -> None:
    user = deployment.user()
    made = [deployment.task(user) for _ in range(7)]

    first = list_tasks(deployment.app, user, limit=3)
    second = list_tasks(deployment.app, user, limit=3, before=made[4])
    third = list_tasks(deployment.app, user, limit=3, before=made[1])

    newest_first = [show_task(task_id) for task_id in reversed(made)]
    assert _ids(first) + _ids(second) + _ids(third) == newest_first


def test_a_new_task_does_not_shift_the_next_page(deployment: Deployment) -> None:
    user = deployment.user()
    made = [deployment.task(user) for _ in range(4)]
    deployment.task(user)

    page = list_tasks(deployment.app, user, before=made[2])

    assert _ids(page) == [show_task(made[1]), show_task(made[0])]


def test_a_list_is_filtered_by_states(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    run = deployment.running(user)
    deployment.settle(run, Raised("error", "no luck"))
    ready = deployment.task(user)
    gone = deployment.task(user)
    cancel(deployment.app, user, gone, actor="human:me")

    def listed(states: Sequence[State] | frozenset[State]) -> list[str]:
        return _ids(list_tasks(deployment.app, user, states=states))

    assert listed(states_of("pending")) == [show_task(ready), show_task(run.claim.task_id)]
    assert listed([State.RETRYING]) == [show_task(run.claim.task_id)]
    assert listed(states_of("cancelled")) == [show_task(gone)]
    assert listed([]) == []


def _ids(views: Sequence[TaskResponse]) -> list[str]:
    return [view.id for view in views]


def test_a_task_has_the_field_names_of_the_wire(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    run = deployment.running(
        user,
        title="fix the site",
        description="all of it",
        payload={"repo": "site"},
        project_id="site",
        priority=20,
        tags=["web"],
        timeout_seconds=600,
    )
    heartbeat(deployment.dispatcher, run.claim, lease=LEASE, progress={"percent": 50})
    while_running = get_task(deployment.app, user, run.claim.task_id)
    deployment.settle(run, Returned({"ok": True}, "fixed", ("index.html",), cost_usd=0.25))

    done = get_task(deployment.app, user, run.claim.task_id)

    assert (while_running.status, while_running.state) == ("running", "running")
    assert while_running.progress == {"percent": 50}
    assert done.id == done.queue_id == show_task(run.claim.task_id)
    assert done.dag_id == show_dag(run.dag_id)
    assert (done.title, done.description, done.payload) == (
        "fix the site",
        "all of it",
        {"repo": "site"},
    )
    assert (done.priority, done.priority_score, done.tags) == (2, 20, ["web"])
    assert (done.status, done.output, done.result_summary) == ("completed", {"ok": True}, "fixed")
    assert (done.files_changed, done.cost_usd, done.attempts) == (["index.html"], 0.25, 1)
    assert done.started_at is not None
    assert done.completed_at is not None
    assert done.started_at < done.completed_at


def test_a_waiting_retry_says_when_and_why(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    run = deployment.running(user)
    deployment.settle(run, Raised("error", "no luck"))

    view = get_task(deployment.app, user, run.claim.task_id)

    assert (view.status, view.state, view.failure_reason) == ("pending", "retrying", "error")
    assert view.retry_at is not None
    assert view.completed_at is None


def test_queue_status_counts_running_and_pending_tasks(deployment: Deployment) -> None:
    user = deployment.user(PlanTier.FREE)
    deployment.agent()
    empty = queue_status(deployment.app, user)
    deployment.running(user, timeout_seconds=60)
    deployment.task(user)

    full = queue_status(deployment.app, user)

    assert (empty.running, empty.pending, empty.can_start_more) == (0, 0, True)
    assert (full.running, full.pending, full.can_start_more) == (1, 1, False)
    assert (full.max_concurrent, full.monthly_hours_limit) == (1, 10)


def holds(deployment: Deployment, user: UserId) -> tuple[bool, list[str]]:
    status = queue_status(deployment.app, user, CLAIM_SETTINGS)
    return status.can_start_more, [hold.code for hold in status.held_by]


def test_more_can_start_only_where_a_worker_has_a_free_slot(deployment: Deployment) -> None:
    user = deployment.user()
    assert holds(deployment, user) == (False, ["no_worker"])
    deployment.agent(slots=1, types=["echo"])
    assert holds(deployment, user) == (True, [])
    deployment.running(user)
    assert holds(deployment, user) == (False, ["slots"])
    drain(deployment.dispatcher, AGENT)
    assert holds(deployment, user) == (False, ["no_worker"])


def test_more_can_start_only_if_hours_and_money_suffice_for_one_that_waits(
    deployment: Deployment,
) -> None:
    deployment.agent()
    user = deployment.user(monthly_agent_hours_limit=1, night_budget_usd=1)
    assert holds(deployment, user) == (True, [])
    deployment.task(user, timeout_seconds=7200)
    assert holds(deployment, user) == (False, ["monthly_hours"])
    deployment.task(user, timeout_seconds=60, max_cost_usd=2.0)
    # The other is short enough but too dear.
    assert holds(deployment, user) == (False, ["monthly_hours"])
    deployment.task(user, timeout_seconds=60)
    assert holds(deployment, user) == (True, [])


def test_hours_are_shown_as_they_are_used(deployment: Deployment) -> None:
    user = deployment.user(PlanTier.PRO)
    deployment.agent()
    run = deployment.running(user, timeout_seconds=7200)
    deployment.move_clock(timedelta(minutes=90))
    deployment.settle(run, Returned())

    limits = user_limits(deployment.app, user)

    assert (limits.plan, limits.monthly_agent_hours_limit) == ("pro", 100)
    assert limits.monthly_agent_hours_used == 1.5


def test_an_unknown_user_has_no_queue_status(deployment: Deployment) -> None:
    with pytest.raises(UserNotFound):
        queue_status(deployment.app, UserId(uuid4()))


def test_health_counts_live_workers(deployment: Deployment) -> None:
    liveness = timedelta(seconds=15)
    deployment.agent(slots=4, agent_id="steady")
    deployment.agent(slots=2, agent_id="silent")
    deployment.agent(slots=8, agent_id="gone")
    deployment.move_clock(timedelta(seconds=20))
    record_heartbeat(deployment.dispatcher, "steady")
    record_heartbeat(deployment.dispatcher, "gone")
    leave(deployment.dispatcher, "gone")

    signs = health(deployment.app, liveness=liveness)

    assert (signs.workers, signs.slots) == (1, 4)


def test_health_says_how_long_ago_each_sweep_ran(deployment: Deployment) -> None:
    run_sweep(deployment.dispatcher, load({}), "promote")
    deployment.move_clock(timedelta(seconds=40))

    sweeps = health(deployment.app).sweeps

    assert list(sweeps) == ["promote"]
    assert 40 <= sweeps["promote"] < 60
