"""What a person looks at: only their own, in order, a page at a time, in the wire's words."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import uuid4

import pytest

from overnight_server.control.cancel import cancel
from overnight_server.control.drain import drain
from overnight_server.domain.errors import TaskNotFound, UserNotFound
from overnight_server.domain.ids import TaskId, UserId, show_dag, show_task
from overnight_server.domain.lifecycle import State, states_of
from overnight_server.domain.plans import PlanTier
from overnight_server.domain.results import Raised, Returned
from overnight_server.insight import tasks as task_views
from overnight_server.insight.health import health
from overnight_server.insight.queue import queue_status, user_limits
from overnight_server.insight.tasks import TaskView, get_task, list_tasks
from overnight_server.maintenance.sweeps import run_sweep
from overnight_server.outcome.heartbeat import heartbeat
from overnight_server.outcome.presence import beat, leave
from overnight_server.settings import load
from tests.support.house import AGENT, LEASE, TERMS, House


def test_a_place_in_the_queue_is_counted_in_the_gates_order(house: House) -> None:
    user = house.user()
    late, normal, critical = (house.task(user, priority=score) for score in (90, 50, 5))
    house.task(house.user(), priority=0)  # another user's tasks are not in this queue

    places = [get_task(house.app, user, one).queue_position for one in (critical, normal, late)]

    assert places == [1, 2, 3]


def test_only_a_ready_task_has_a_place(house: House) -> None:
    user = house.user()
    house.agent()
    run = house.running(user)

    running = get_task(house.app, user, run.claim.task_id)
    house.settle(run, Returned())

    assert running.position is None
    assert get_task(house.app, user, run.claim.task_id).position is None


def test_places_far_back_are_not_counted(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_views, "MAX_POSITION", 2)
    user = house.user()
    made = [house.task(user) for _ in range(4)]

    assert [get_task(house.app, user, one).position for one in made] == [1, 2, None, None]


def test_another_users_task_looks_like_none(house: House) -> None:
    stranger = house.user()
    task_id = house.task(house.user())

    for unknown in (task_id, TaskId(uuid4())):
        with pytest.raises(TaskNotFound, match=r"^no such task$"):
            get_task(house.app, stranger, unknown)
    assert list_tasks(house.app, stranger) == []


def test_pages_follow_each_other_without_gap_or_repetition(house: House) -> None:
    user = house.user()
    made = [house.task(user) for _ in range(7)]

    first = list_tasks(house.app, user, limit=3)
    second = list_tasks(house.app, user, limit=3, before=made[4])
    third = list_tasks(house.app, user, limit=3, before=made[1])

    newest_first = [show_task(one) for one in reversed(made)]
    assert _ids(first) + _ids(second) + _ids(third) == newest_first


def test_a_task_that_came_in_meanwhile_does_not_shift_the_page(house: House) -> None:
    user = house.user()
    made = [house.task(user) for _ in range(4)]
    house.task(user)

    page = list_tasks(house.app, user, before=made[2])

    assert _ids(page) == [show_task(made[1]), show_task(made[0])]


def test_a_list_can_be_narrowed_to_states(house: House) -> None:
    user = house.user()
    house.agent()
    run = house.running(user)
    house.settle(run, Raised("error", "no luck"))
    ready = house.task(user)
    gone = house.task(user)
    cancel(house.app, user, gone, actor="human:me")

    def listed(states: Sequence[State] | frozenset[State]) -> list[str]:
        return _ids(list_tasks(house.app, user, states=states))

    assert listed(states_of("pending")) == [show_task(ready), show_task(run.claim.task_id)]
    assert listed([State.RETRYING]) == [show_task(run.claim.task_id)]
    assert listed(states_of("cancelled")) == [show_task(gone)]
    assert listed([]) == []


def _ids(views: Sequence[TaskView]) -> list[str]:
    return [view.id for view in views]


def test_a_task_is_shown_in_the_words_of_the_wire(house: House) -> None:
    user = house.user()
    house.agent()
    run = house.running(
        user,
        title="fix the site",
        description="all of it",
        payload={"repo": "site"},
        project_id="site",
        priority=20,
        tags=["web"],
        timeout_seconds=600,
    )
    heartbeat(house.dispatcher, run.claim, lease=LEASE, progress={"percent": 50})
    while_running = get_task(house.app, user, run.claim.task_id)
    house.settle(run, Returned({"ok": True}, "fixed", ("index.html",), cost_usd=0.25))

    done = get_task(house.app, user, run.claim.task_id)

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


def test_a_waiting_retry_says_when_and_why(house: House) -> None:
    user = house.user()
    house.agent()
    run = house.running(user)
    house.settle(run, Raised("error", "no luck"))

    view = get_task(house.app, user, run.claim.task_id)

    assert (view.status, view.state, view.failure_reason) == ("pending", "retrying", "error")
    assert view.retry_at is not None
    assert view.completed_at is None


def test_a_queue_at_a_glance(house: House) -> None:
    user = house.user(PlanTier.FREE)
    house.agent()
    empty = queue_status(house.app, user)
    house.running(user, timeout_seconds=60)
    house.task(user)

    full = queue_status(house.app, user)

    assert (empty.running, empty.pending, empty.can_start_more) == (0, 0, True)
    assert (full.running, full.pending, full.can_start_more) == (1, 1, False)
    assert (full.max_concurrent, full.monthly_hours_limit) == (1, 10)


def holds(house: House, user: UserId) -> tuple[bool, list[str]]:
    status = queue_status(house.app, user, TERMS)
    return status.can_start_more, [hold.code for hold in status.held_by]


def test_more_can_start_only_where_a_worker_has_a_free_slot(house: House) -> None:
    user = house.user()
    assert holds(house, user) == (False, ["no_worker"])
    house.agent(slots=1)
    assert holds(house, user) == (True, [])
    house.running(user)
    assert holds(house, user) == (False, ["slots"])
    drain(house.dispatcher, AGENT)
    assert holds(house, user) == (False, ["no_worker"])


def test_more_can_start_only_if_hours_and_money_suffice_for_one_that_waits(house: House) -> None:
    house.agent()
    user = house.user(monthly_agent_hours_limit=1, night_budget_usd=1)
    assert holds(house, user) == (True, [])
    house.task(user, timeout_seconds=7200)
    assert holds(house, user) == (False, ["monthly_hours"])
    house.task(user, timeout_seconds=60, max_cost_usd=2.0)
    # The other is short enough but too dear.
    assert holds(house, user) == (False, ["monthly_hours"])
    house.task(user, timeout_seconds=60)
    assert holds(house, user) == (True, [])


def test_hours_are_shown_as_they_are_used(house: House) -> None:
    user = house.user(PlanTier.PRO)
    house.agent()
    run = house.running(user, timeout_seconds=7200)
    house.move_clock(timedelta(minutes=90))
    house.settle(run, Returned())

    limits = user_limits(house.app, user)

    assert (limits.plan, limits.monthly_agent_hours_limit) == ("pro", 100)
    assert limits.monthly_agent_hours_used == 1.5


def test_a_stranger_has_no_queue(house: House) -> None:
    with pytest.raises(UserNotFound):
        queue_status(house.app, UserId(uuid4()))


def test_health_counts_workers_that_beat(house: House) -> None:
    liveness = timedelta(seconds=15)
    house.agent(slots=4, agent_id="steady")
    house.agent(slots=2, agent_id="silent")
    house.agent(slots=8, agent_id="gone")
    house.move_clock(timedelta(seconds=20))
    beat(house.dispatcher, "steady")
    beat(house.dispatcher, "gone")
    leave(house.dispatcher, "gone")

    signs = health(house.app, liveness=liveness)

    assert (signs.workers, signs.slots) == (1, 4)


def test_health_says_how_long_ago_each_sweep_ran(house: House) -> None:
    run_sweep(house.dispatcher, load({}), "promote")
    house.move_clock(timedelta(seconds=40))

    sweeps = health(house.app).sweeps

    assert list(sweeps) == ["promote"]
    assert 40 <= sweeps["promote"] < 60
