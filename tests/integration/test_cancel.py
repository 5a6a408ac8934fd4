"""Cancel: at once for a waiting task, by request for a running one."""

from collections.abc import Callable
from uuid import uuid4

import pytest

from overnight.errors import TaskAlreadyCompleted, TaskNotFound
from overnight_server.control.cancel import cancel
from overnight_server.domain.ids import TaskId
from overnight_server.domain.lifecycle import State
from overnight_server.domain.results import Raised, Returned
from tests.support.deployment import Deployment
from tests.support.graphs import begin, graph

ME = "human:me"
FATAL = Raised("auth_failure", "wrong key")


def _ready(deployment: Deployment, task_id: TaskId) -> None:
    assert deployment.state(task_id) == "ready"


def _claimed(deployment: Deployment, task_id: TaskId) -> None:
    deployment.claim()


def _retrying(deployment: Deployment, task_id: TaskId) -> None:
    [run] = begin(deployment, task_id)
    deployment.settle(run, Raised("error", "no luck"))


@pytest.mark.parametrize("bring_to", [_ready, _claimed, _retrying])
def test_a_task_that_is_not_running_is_cancelled_at_once(
    deployment: Deployment, bring_to: Callable[[Deployment, TaskId], None]
) -> None:
    user = deployment.user()
    deployment.agent()
    task_id = deployment.task(user)
    bring_to(deployment, task_id)

    assert cancel(deployment.app, user, task_id, actor=ME) is State.CANCELLED

    row = deployment.row(task_id)
    assert (row["state"], row["failure_reason"]) == ("cancelled", "cancelled")
    assert row["finished_at"] is not None
    lane = deployment.lane(user)
    assert (lane["active"], lane["ready"], lane["waiting"]) == (0, 0, 0)
    assert lane["reserved_seconds"] == 0
    assert deployment.one("SELECT status FROM graphs")["status"] == "cancelled"


def test_a_cancelled_claim_ends_its_attempt_unspent(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    task_id = deployment.task(user)
    [claimed] = deployment.claim().claims

    cancel(deployment.app, user, task_id, actor=ME)

    attempt = deployment.one("SELECT * FROM attempts")
    assert (attempt["outcome"], attempt["spent"]) == ("cancelled", False)
    assert attempt["ended_at"] is not None
    assert deployment.start(claimed) is None


def test_a_running_task_is_asked_to_stop_and_keeps_its_slot(
    deployment: Deployment,
) -> None:
    user = deployment.user()
    deployment.agent()
    run = deployment.running(user)

    first = cancel(deployment.app, user, run.claim.task_id, actor=ME)
    asked_at = deployment.row(run.claim.task_id)["cancel_requested_at"]
    again = cancel(deployment.app, user, run.claim.task_id, actor=ME)

    row = deployment.row(run.claim.task_id)
    assert (first, again) == (State.RUNNING, State.RUNNING)
    assert (row["state"], row["cancel_requested_at"]) == ("running", asked_at)
    assert deployment.lane(user)["active"] == 1


@pytest.mark.parametrize(("result", "state"), [(Returned(), "completed"), (FATAL, "dead_lettered")])
def test_a_task_that_has_ended_cannot_be_cancelled(
    deployment: Deployment, result: Returned | Raised, state: str
) -> None:
    user = deployment.user()
    deployment.agent()
    run = deployment.running(user)
    deployment.settle(run, result)
    before = deployment.row(run.claim.task_id)

    with pytest.raises(TaskAlreadyCompleted) as refused:
        cancel(deployment.app, user, run.claim.task_id, actor=ME)

    assert refused.value.details == {"state": state}
    assert deployment.row(run.claim.task_id) == before


def test_another_users_task_is_not_found(deployment: Deployment) -> None:
    owner, other_user = deployment.user(), deployment.user()
    deployment.agent()
    waiting, run = deployment.task(owner, required_capabilities=["x"]), deployment.running(owner)

    refusals = []
    for task_id in (waiting, run.claim.task_id, TaskId(uuid4())):
        with pytest.raises(TaskNotFound) as refused:
            cancel(deployment.app, other_user, task_id, actor=ME)
        refusals.append((refused.value.message, refused.value.details))

    assert refusals == [refusals[0]] * 3
    assert deployment.state(waiting) == "ready"
    assert deployment.row(run.claim.task_id)["cancel_requested_at"] is None


def test_dependents_of_a_cancelled_task_are_cancelled_too(deployment: Deployment) -> None:
    user = deployment.user()
    root, child, grandchild, unrelated = graph(deployment, user, 4, [(0, 1), (1, 2)])

    cancel(deployment.app, user, root, actor=ME)

    assert [deployment.row(task_id)["failure_reason"] for task_id in (child, grandchild)] == [
        "upstream_cancelled",
        "upstream_cancelled",
    ]
    assert deployment.state(unrelated) == "ready"


def test_the_history_names_who_cancelled(deployment: Deployment) -> None:
    user = deployment.user()
    root, _ = graph(deployment, user, 2, [(0, 1)])

    cancel(deployment.app, user, root, actor="human:ada")

    events = deployment.rows("SELECT actor FROM events WHERE to_state = 'cancelled'")
    assert [event["actor"] for event in events] == ["human:ada", "human:ada"]
    # the next act on the connection has another actor
    deployment.task(user)
    last = deployment.one("SELECT actor FROM events ORDER BY id DESC LIMIT 1")
    assert last["actor"] == "test"
