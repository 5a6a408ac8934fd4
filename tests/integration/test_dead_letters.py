"""Resolving dead letters: another chance for the task and all its death took along, or rest."""

from collections.abc import Callable
from datetime import timedelta
from uuid import uuid4

import pytest

from overnight.errors import DagNotRetryable, NotDeadLettered, TaskNotFound
from overnight_server.control.cancel import cancel
from overnight_server.control.dead_letters import discard, retry
from overnight_server.control.retry import retry_dag
from overnight_server.domain.claims import Run
from overnight_server.domain.graphs import Condition
from overnight_server.domain.ids import TaskId, UserId, show_dag, show_task
from overnight_server.domain.results import Raised, Returned
from overnight_server.insight.dead_letters import get_dead_letter, list_dead_letters
from overnight_server.intake.new_graph import Edge
from overnight_server.store.db import Db
from tests.support.deployment import Deployment
from tests.support.graphs import (
    assert_invariants,
    begin,
    dag_of,
    end,
    graph,
    linked,
    states,
    status,
)
from tests.support.rivals import Rival, meet_at_lane

ADA = "operator:ada"
FATAL = Raised("auth_failure", "wrong key", cost_usd=0.5)


def test_a_retried_dead_letter_has_fresh_attempts(deployment: Deployment) -> None:
    _, run = _dead(deployment)

    retry(deployment.app, run.claim.task_id, actor=ADA, note="key renewed")

    row = deployment.row(run.claim.task_id)
    assert (row["state"], row["attempts"], row["max_attempts"]) == ("ready", 1, 4)
    assert (row["failure_reason"], row["error"], row["finished_at"]) == (None, None, None)
    letter = deployment.one("SELECT * FROM dead_letters")
    assert (letter["resolution"], letter["resolved_by"]) == ("retry", ADA)
    assert (letter["note"], letter["reviewed"]) == ("key renewed", True)
    assert deployment.one("SELECT status FROM graphs")["status"] == "running"


def test_a_revived_task_can_be_completed(deployment: Deployment) -> None:
    user, run = _dead(deployment)
    retry(deployment.app, run.claim.task_id, actor=ADA)

    [again] = begin(deployment, run.claim.task_id)
    deployment.settle(again, Returned("at last"))

    assert again.claim.epoch == run.claim.epoch + 1
    assert deployment.row(run.claim.task_id)["state"] == "completed"
    assert deployment.one("SELECT status FROM graphs")["status"] == "completed"
    assert deployment.lane(user)["waiting"] == 0


def test_a_revived_task_that_fails_again_has_a_second_dead_letter(deployment: Deployment) -> None:
    _, run = _dead(deployment)
    retry(deployment.app, run.claim.task_id, actor=ADA)
    [again] = begin(deployment, run.claim.task_id)

    deployment.settle(again, FATAL)

    letters = deployment.rows("SELECT * FROM dead_letters ORDER BY id")
    assert [letter["resolution"] for letter in letters] == ["retry", None]
    assert [len(letter["failure_history"]) for letter in letters] == [1, 2]


def test_a_retry_revives_every_dependent_that_the_dead_letter_cancelled(
    deployment: Deployment,
) -> None:
    user = deployment.user()
    deployment.agent()
    root, child, grandchild = graph(deployment, user, 3, [(0, 1), (1, 2)])
    _kill(deployment, root)

    retry(deployment.app, root, actor=ADA)

    assert [deployment.state(task_id) for task_id in (root, child, grandchild)] == [
        "ready",
        "pending",
        "pending",
    ]
    for task_id in (root, child, grandchild):
        [run] = begin(deployment, task_id)
        deployment.settle(run, Returned())
    assert deployment.one("SELECT status FROM graphs")["status"] == "completed"


def test_revived_dependents_keep_their_attempts(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    root, child = graph(deployment, user, 2, [(0, 1)])
    deployment.run("UPDATE tasks SET max_attempts = 7 WHERE id = :id", id=child)
    _kill(deployment, root)

    retry(deployment.app, root, actor=ADA)

    assert deployment.row(child)["max_attempts"] == 7


def test_a_child_of_two_dead_lettered_parents_waits_until_both_are_retried(
    deployment: Deployment,
) -> None:
    user = deployment.user()
    deployment.agent()
    left, right, child, grandchild = graph(deployment, user, 4, [(0, 2), (1, 2), (2, 3)])
    _kill(deployment, left, right)

    retry(deployment.app, left, actor=ADA)
    after_one = [deployment.state(task_id) for task_id in (left, child, grandchild)]
    retry(deployment.app, right, actor=ADA)
    after_both = [deployment.state(task_id) for task_id in (right, child, grandchild)]

    assert after_one == ["ready", "cancelled", "cancelled"]
    assert after_both == ["ready", "pending", "pending"]


def test_a_retry_does_not_revive_a_task_that_its_owner_cancelled(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    root, unwanted, below, wanted = graph(deployment, user, 4, [(0, 1), (1, 2), (0, 3)])
    cancel(deployment.app, user, unwanted, actor="human:me")
    _kill(deployment, root)

    retry(deployment.app, root, actor=ADA)

    states = [deployment.state(task_id) for task_id in (root, unwanted, below, wanted)]
    assert states == ["ready", "cancelled", "cancelled", "pending"]


def test_a_discarded_dead_letter_is_closed_and_its_task_is_cancelled(
    deployment: Deployment,
) -> None:
    _, run = _dead(deployment)
    before = deployment.row(run.claim.task_id)

    discard(deployment.app, run.claim.task_id, actor=ADA, note="not worth it")

    task = deployment.row(run.claim.task_id)
    assert (task["state"], task["failure_reason"]) == ("cancelled", "discarded")
    assert [task[kept] for kept in ("finished_at", "error", "attempts")] == [
        before[kept] for kept in ("finished_at", "error", "attempts")
    ]
    letter = get_dead_letter(deployment.app, run.claim.task_id)
    assert (letter.resolution, letter.failure_reason) == ("cancel", "auth_failure")
    event = deployment.one("SELECT * FROM events WHERE to_state = 'cancelled'")
    assert (event["from_state"], event["actor"]) == ("dead_lettered", ADA)
    assert_invariants(deployment)
    with pytest.raises(NotDeadLettered):
        retry(deployment.app, run.claim.task_id, actor=ADA)


def test_a_graph_whose_only_failure_was_discarded_is_cancelled(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user()
    failed, below, fallback = linked(deployment, user, 3, Edge(0, 1), Edge(0, 2, Condition.FAILURE))
    end(deployment, failed, FATAL)
    end(deployment, fallback, Returned())
    dag_id = dag_of(deployment, failed)
    ended_at = deployment.one("SELECT finished_at FROM dags")["finished_at"]
    assert status(deployment, failed) == "failed"
    deployment.move_clock(timedelta(hours=1))

    discard(deployment.app, failed, actor=ADA)

    assert status(deployment, failed) == "cancelled"
    assert states(deployment, failed, below, fallback) == ["cancelled", "cancelled", "completed"]
    assert deployment.one("SELECT finished_at FROM dags")["finished_at"] == ended_at
    ends = deployment.rows("SELECT kind FROM dag_events WHERE dag_id = :id ORDER BY id", id=dag_id)
    assert [row["kind"] for row in ends] == ["dag.failed", "dag.cancelled"]
    with pytest.raises(DagNotRetryable):
        retry_dag(deployment.app, user, dag_id, actor=ADA)
    assert_invariants(deployment)


def test_only_a_dead_lettered_task_can_be_resolved(deployment: Deployment) -> None:
    task_id = deployment.task(deployment.user())

    with pytest.raises(NotDeadLettered) as refused:
        retry(deployment.app, task_id, actor=ADA)

    assert refused.value.details == {"state": "ready"}
    with pytest.raises(TaskNotFound):
        retry(deployment.app, TaskId(uuid4()), actor=ADA)


def test_two_operators_retry_a_task_once(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    user, run = _dead(deployment)

    answers = meet_at_lane(
        connect,
        user,
        *(Rival(connect, f"operator-{n}", _retried, run.claim.task_id) for n in range(2)),
    )

    assert answers == [True, False]
    assert deployment.row(run.claim.task_id)["max_attempts"] == 4
    assert deployment.lane(user)["ready"] == 1


def _retried(db: Db, task_id: TaskId) -> bool:
    try:
        retry(db, task_id, actor=ADA)
    except NotDeadLettered:
        return False
    return True


def test_a_dead_letter_shows_error_attempts_and_payload(deployment: Deployment) -> None:
    user, run = _dead(deployment, title="fix the site", payload={"repo": "site"})

    letter = get_dead_letter(deployment.app, run.claim.task_id)

    assert (letter.task_id, letter.dag_id) == (show_task(run.claim.task_id), show_dag(run.dag_id))
    assert (letter.title, letter.payload) == ("fix the site", {"repo": "site"})
    assert letter.user == deployment.one("SELECT name FROM users WHERE id = :id", id=user)["name"]
    assert (letter.failure_reason, letter.error) == ("auth_failure", "wrong key")
    assert (letter.attempts, letter.total_cost_usd, letter.poison_pill) == (1, 0.5, False)
    assert (letter.task_type, letter.agent_name, letter.reviewed) == ("echo", None, False)
    [entry] = letter.failure_history
    assert (entry["error_class"], entry["error"]) == ("auth_failure", "wrong key")


def test_dead_letters_are_listed_newest_first_and_resolved_ones_on_request(
    deployment: Deployment,
) -> None:
    _, first = _dead(deployment)
    user, second = _dead(deployment)
    discard(deployment.app, first.claim.task_id, actor=ADA)

    def listed(**wanted: object) -> list[str]:
        return [letter.task_id for letter in list_dead_letters(deployment.app, **wanted)]  # type: ignore[arg-type]

    shown_first, shown_second = show_task(first.claim.task_id), show_task(second.claim.task_id)
    assert listed() == [shown_second]
    assert listed(resolved=True) == [shown_second, shown_first]
    assert listed(user_id=user) == [shown_second]
    assert listed(resolved=True, limit=1) == [shown_second]


def test_a_task_that_was_not_dead_lettered_has_no_dead_letter(deployment: Deployment) -> None:
    task_id = deployment.task(deployment.user())

    with pytest.raises(TaskNotFound):
        get_dead_letter(deployment.app, task_id)


def _dead(deployment: Deployment, **fields: object) -> tuple[UserId, Run]:
    deployment.agent()
    user = deployment.user()
    run = deployment.running(user, **fields)
    deployment.settle(run, FATAL)
    return user, run


def _kill(deployment: Deployment, *task_ids: TaskId) -> None:
    for run in begin(deployment, *task_ids):
        deployment.settle(run, FATAL)
