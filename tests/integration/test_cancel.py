"""Stopping a task: at once where nobody runs it, by request where somebody does."""

from collections.abc import Callable
from uuid import uuid4

import pytest

from overnight_server.control.cancel import cancel
from overnight_server.domain.errors import TaskAlreadyFinished, TaskNotFound
from overnight_server.domain.ids import TaskId
from overnight_server.domain.lifecycle import State
from overnight_server.domain.results import Raised, Returned
from tests.support.graphs import begin, graph
from tests.support.house import House

ME = "human:me"
FATAL = Raised("auth_failure", "wrong key")


def _ready(house: House, task_id: TaskId) -> None:
    assert house.state(task_id) == "ready"


def _claimed(house: House, task_id: TaskId) -> None:
    house.claim()


def _retrying(house: House, task_id: TaskId) -> None:
    [run] = begin(house, task_id)
    house.settle(run, Raised("error", "no luck"))


@pytest.mark.parametrize("bring_to", [_ready, _claimed, _retrying])
def test_a_task_nobody_runs_is_cancelled_at_once(
    house: House, bring_to: Callable[[House, TaskId], None]
) -> None:
    user = house.user()
    house.agent()
    task_id = house.task(user)
    bring_to(house, task_id)

    assert cancel(house.app, user, task_id, actor=ME) is State.CANCELLED

    row = house.row(task_id)
    assert (row["state"], row["failure_reason"]) == ("cancelled", "cancelled")
    assert row["finished_at"] is not None
    lane = house.lane(user)
    assert (lane["active"], lane["ready"], lane["waiting"]) == (0, 0, 0)
    assert lane["reserved_seconds"] == 0
    assert house.one("SELECT status FROM graphs")["status"] == "cancelled"


def test_a_cancelled_claim_ends_its_attempt_unspent(house: House) -> None:
    user = house.user()
    house.agent()
    task_id = house.task(user)
    [claimed] = house.claim().claims

    cancel(house.app, user, task_id, actor=ME)

    attempt = house.one("SELECT * FROM attempts")
    assert (attempt["outcome"], attempt["spent"]) == ("cancelled", False)
    assert attempt["ended_at"] is not None
    assert house.start(claimed) is None


def test_a_running_task_is_asked_to_stop_and_keeps_its_slot_until_then(house: House) -> None:
    user = house.user()
    house.agent()
    run = house.running(user)

    first = cancel(house.app, user, run.claim.task_id, actor=ME)
    asked_at = house.row(run.claim.task_id)["cancel_requested_at"]
    again = cancel(house.app, user, run.claim.task_id, actor=ME)

    row = house.row(run.claim.task_id)
    assert (first, again) == (State.RUNNING, State.RUNNING)
    assert (row["state"], row["cancel_requested_at"]) == ("running", asked_at)
    assert house.lane(user)["active"] == 1


@pytest.mark.parametrize(("result", "state"), [(Returned(), "completed"), (FATAL, "dead_lettered")])
def test_a_task_that_has_ended_cannot_be_cancelled(
    house: House, result: Returned | Raised, state: str
) -> None:
    user = house.user()
    house.agent()
    run = house.running(user)
    house.settle(run, result)
    before = house.row(run.claim.task_id)

    with pytest.raises(TaskAlreadyFinished) as refused:
        cancel(house.app, user, run.claim.task_id, actor=ME)

    assert refused.value.details == {"state": state}
    assert house.row(run.claim.task_id) == before


def test_another_users_task_looks_like_none(house: House) -> None:
    owner, stranger = house.user(), house.user()
    house.agent()
    waiting, run = house.task(owner, required_capabilities=["x"]), house.running(owner)

    refusals = []
    for task_id in (waiting, run.claim.task_id, TaskId(uuid4())):
        with pytest.raises(TaskNotFound) as refused:
            cancel(house.app, stranger, task_id, actor=ME)
        refusals.append((refused.value.message, refused.value.details))

    assert refusals == [refusals[0]] * 3
    assert house.state(waiting) == "ready"
    assert house.row(run.claim.task_id)["cancel_requested_at"] is None


def test_what_waits_for_a_cancelled_task_is_cancelled_too(house: House) -> None:
    user = house.user()
    root, child, grandchild, stranger = graph(house, user, 4, [(0, 1), (1, 2)])

    cancel(house.app, user, root, actor=ME)

    assert [house.row(one)["failure_reason"] for one in (child, grandchild)] == [
        "upstream_cancelled",
        "upstream_cancelled",
    ]
    assert house.state(stranger) == "ready"


def test_the_history_names_who_cancelled(house: House) -> None:
    user = house.user()
    root, _ = graph(house, user, 2, [(0, 1)])

    cancel(house.app, user, root, actor="human:ada")

    events = house.rows("SELECT actor FROM events WHERE to_state = 'cancelled'")
    assert [event["actor"] for event in events] == ["human:ada", "human:ada"]
    # and whoever acts next is not taken for her
    house.task(user)
    last = house.one("SELECT actor FROM events ORDER BY id DESC LIMIT 1")
    assert last["actor"] == "test"
