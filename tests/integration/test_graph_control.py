"""Cancel and retry of graphs."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection

from overnight.errors import (
    DagAlreadyFinished,
    DagNotFound,
    InvalidRequest,
    NotRetryable,
    TaskNotFound,
    TooManyPending,
)
from overnight_server.control import retry as retry_module
from overnight_server.control.cancel import cancel, cancel_dag
from overnight_server.control.dead_letters import discard
from overnight_server.control.dead_letters import retry as retry_letter
from overnight_server.control.fork import fork
from overnight_server.control.retry import retry, retry_dag
from overnight_server.domain.graphs import Condition
from overnight_server.domain.ids import DagId, TaskId, UserId, show_task
from overnight_server.domain.results import Raised, Returned, StoppedByCancel
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import Edge
from tests.support.deployment import LOOSE, Deployment
from tests.support.graphs import assert_invariants, begin, dag_of, end, linked, states, status

ME = "human:me"
FATAL = Raised("auth_failure", "wrong key")
FALLBACK, CLEAN_UP = Condition.FAILURE, Condition.FINISHED


@pytest.fixture
def user(deployment: Deployment) -> UserId:
    deployment.agent()
    return deployment.user()


def test_cancelling_a_graph_cancels_waiting_and_stops_running_tasks(
    deployment: Deployment, user: UserId
) -> None:
    root, running, claimed, below, clean_up = linked(
        deployment, user, 5, Edge(0, 1), Edge(0, 2), Edge(1, 3), Edge(3, 4, CLEAN_UP)
    )
    end(deployment, root, Returned())
    [run] = begin(deployment, running)
    deployment.claim()

    answer = cancel_dag(deployment.app, user, dag_of(deployment, root), actor="human:ada")

    assert (len(answer.cancelled), len(answer.requested)) == (3, 1)
    assert states(deployment, root, running) == ["completed", "running"]
    assert states(deployment, claimed, below, clean_up) == ["cancelled"] * 3
    assert deployment.row(running)["cancel_requested_at"] is not None
    actors = deployment.rows("SELECT DISTINCT actor FROM events WHERE to_state = 'cancelled'")
    assert [row["actor"] for row in actors] == ["human:ada"]
    deployment.settle(run, StoppedByCancel())
    assert status(deployment, root) == "cancelled"
    assert_invariants(deployment)


def test_a_graph_that_has_ended_cannot_be_cancelled(deployment: Deployment, user: UserId) -> None:
    task, _ = linked(deployment, user, 2, Edge(0, 1, FALLBACK))
    end(deployment, task, Returned())

    with pytest.raises(DagAlreadyFinished) as refused:
        cancel_dag(deployment.app, user, dag_of(deployment, task), actor=ME)

    assert refused.value.details == {"status": "completed"}


def test_a_lone_task_is_a_graph_that_can_be_cancelled(deployment: Deployment, user: UserId) -> None:
    task = deployment.task(user)

    assert cancel_dag(deployment.app, user, DagId(task), actor=ME).cancelled == [task]

    assert deployment.state(task) == "cancelled"


def test_another_users_graph_is_not_found(deployment: Deployment, user: UserId) -> None:
    task, _ = linked(deployment, user, 2, Edge(0, 1))
    other_user = deployment.user()

    for dag in (dag_of(deployment, task), DagId(uuid4())):
        with pytest.raises(DagNotFound):
            cancel_dag(deployment.app, other_user, dag, actor=ME)
        with pytest.raises(DagNotFound):
            retry_dag(deployment.app, other_user, dag, actor=ME)
    for unknown in (task, TaskId(uuid4())):
        with pytest.raises(TaskNotFound):
            retry(deployment.app, other_user, unknown, actor=ME)
        with pytest.raises(TaskNotFound):
            fork(deployment.app, other_user, unknown, LOOSE, actor=ME)
    assert deployment.state(task) == "ready"


def test_a_retry_revives_cancelled_dependents_and_keeps_completed_tasks(
    deployment: Deployment, user: UserId
) -> None:
    root, failed, sibling, joined = linked(
        deployment, user, 4, Edge(0, 1), Edge(0, 2), Edge(1, 3), Edge(2, 3)
    )
    end(deployment, root, Returned())
    end(deployment, failed, FATAL)
    end(deployment, sibling, Returned())
    assert status(deployment, root) == "failed"

    back = retry(deployment.app, user, failed, actor=ME, note="key renewed")

    assert back == [failed, joined]
    assert states(deployment, root, failed, sibling, joined) == [
        "completed",
        "ready",
        "completed",
        "pending",
    ]
    dag = deployment.one("SELECT * FROM dags")
    assert (dag["status"], dag["finished_at"]) == ("running", None)
    letter = deployment.one("SELECT * FROM dead_letters")
    assert (letter["resolution"], letter["resolved_by"], letter["note"]) == (
        "retry",
        ME,
        "key renewed",
    )
    end(deployment, failed, Returned())
    end(deployment, joined, Returned())
    assert status(deployment, root) == "completed"
    assert_invariants(deployment)


def test_a_cancelled_task_is_retried_with_its_cancelled_dependents(
    deployment: Deployment, user: UserId
) -> None:
    root, child, fallback = linked(deployment, user, 3, Edge(0, 1), Edge(0, 2, FALLBACK))
    cancel(deployment.app, user, root, actor=ME)

    back = retry(deployment.app, user, root, actor=ME)

    assert (back[0], set(back)) == (root, {root, child, fallback})
    assert states(deployment, root, child, fallback) == ["ready", "pending", "pending"]
    end(deployment, root, Returned())
    assert states(deployment, child, fallback) == ["ready", "cancelled"]
    assert_invariants(deployment)


def test_a_task_stopped_on_its_last_attempt_can_be_retried(
    deployment: Deployment, user: UserId
) -> None:
    run = deployment.running(user, max_attempts=1)
    deployment.settle(run, StoppedByCancel())

    retry(deployment.app, user, run.claim.task_id, actor=ME, attempts=1)
    end(deployment, run.claim.task_id, FATAL)

    assert deployment.state(run.claim.task_id) == "dead_lettered"
    assert_invariants(deployment)


def test_a_retry_does_not_undo_a_fallback_that_ran(deployment: Deployment, user: UserId) -> None:
    task, fallback, child = linked(deployment, user, 3, Edge(0, 1, FALLBACK), Edge(0, 2))
    end(deployment, task, FATAL)
    end(deployment, fallback, Returned())

    retry(deployment.app, user, task, actor=ME)

    assert states(deployment, task, fallback, child) == ["ready", "completed", "pending"]
    end(deployment, task, Returned())
    end(deployment, child, Returned())
    assert status(deployment, task) == "completed"
    assert_invariants(deployment)


def test_a_task_with_an_unmet_parent_cannot_be_retried_alone(
    deployment: Deployment, user: UserId
) -> None:
    root, child = linked(deployment, user, 2, Edge(0, 1))
    end(deployment, root, FATAL)

    with pytest.raises(InvalidRequest, match=f"waits for {show_task(root)}") as refused:
        retry(deployment.app, user, child, actor=ME)

    assert refused.value.fields[0].field == "task_id"
    assert states(deployment, root, child) == ["dead_lettered", "cancelled"]


def test_a_skipped_fallback_stays_cancelled_after_a_retry(
    deployment: Deployment, user: UserId
) -> None:
    done, failed, child = linked(deployment, user, 3, Edge(0, 2, FALLBACK), Edge(1, 2))
    end(deployment, failed, FATAL)
    end(deployment, done, Returned())

    assert retry(deployment.app, user, failed, actor=ME) == [failed]
    end(deployment, failed, Returned())

    assert deployment.state(child) == "cancelled"
    assert status(deployment, failed) == "completed"
    assert_invariants(deployment)


def test_only_failed_or_cancelled_tasks_can_be_retried(
    deployment: Deployment, user: UserId
) -> None:
    waiting, done, closed = deployment.task(user), deployment.task(user), deployment.task(user)
    end(deployment, done, Returned())
    end(deployment, closed, FATAL)
    discard(deployment.app, closed, actor="operator:ada")

    for task, state in ((waiting, "ready"), (done, "completed"), (closed, "closed for good")):
        with pytest.raises(NotRetryable, match=state):
            retry(deployment.app, user, task, actor=ME)
    with pytest.raises(InvalidRequest, match="attempts"):
        retry(deployment.app, user, waiting, actor=ME, attempts=0)


def test_a_cancelled_graph_is_retried_whole(deployment: Deployment, user: UserId) -> None:
    root, running, below, clean_up = linked(
        deployment, user, 4, Edge(0, 1), Edge(1, 2), Edge(2, 3, CLEAN_UP)
    )
    end(deployment, root, Returned())
    [run] = begin(deployment, running)
    cancel_dag(deployment.app, user, dag_of(deployment, root), actor=ME)
    deployment.settle(run, StoppedByCancel())

    back = retry_dag(deployment.app, user, dag_of(deployment, root), actor="human:ada")

    assert set(back) == {running, below, clean_up}
    assert states(deployment, root, running, below, clean_up) == [
        *("completed", "ready", "pending", "pending")
    ]
    assert status(deployment, root) == "running"
    for task in (running, below, clean_up):
        end(deployment, task, Returned())
    assert status(deployment, root) == "completed"
    assert_invariants(deployment)


def test_a_retried_task_revives_tasks_cancelled_with_it(
    deployment: Deployment, user: UserId
) -> None:
    root, below, clean_up, beside, before = linked(
        deployment, user, 5, Edge(0, 1), Edge(0, 2, CLEAN_UP), Edge(0, 4)
    )
    cancel(deployment.app, user, before, actor=ME)
    [run] = begin(deployment, root)
    cancel_dag(deployment.app, user, dag_of(deployment, root), actor=ME)
    deployment.settle(run, StoppedByCancel())

    back = retry(deployment.app, user, root, actor=ME)

    assert (back[0], set(back)) == (root, {root, below, clean_up})
    assert states(deployment, root, below, clean_up) == ["ready", "pending", "pending"]
    assert states(deployment, beside, before) == ["cancelled", "cancelled"]
    assert_invariants(deployment)


def test_a_retried_graph_keeps_completed_and_closed_tasks(
    deployment: Deployment, user: UserId
) -> None:
    done, failed, closed, below_failed, below_closed, fallback = linked(
        deployment, user, 6, Edge(0, 1), Edge(0, 2), Edge(1, 3), Edge(2, 4), Edge(1, 5, FALLBACK)
    )
    end(deployment, done, Returned())
    end(deployment, failed, FATAL)
    end(deployment, closed, FATAL)
    end(deployment, fallback, FATAL)
    discard(deployment.app, closed, actor="operator:ada")

    back = retry_dag(deployment.app, user, dag_of(deployment, done), actor=ME, note="key renewed")

    assert set(back) == {failed, below_failed, fallback}
    assert states(deployment, failed, below_failed, fallback) == ["ready", "pending", "pending"]
    assert states(deployment, done, closed, below_closed) == [
        "completed",
        "cancelled",
        "cancelled",
    ]
    letters = deployment.rows(
        "SELECT resolution, count(*) AS n FROM dead_letters GROUP BY 1 ORDER BY 1"
    )
    assert [(letter["resolution"], letter["n"]) for letter in letters] == [
        ("cancel", 1),
        ("retry", 2),
    ]
    end(deployment, failed, Returned())
    assert states(deployment, below_failed, fallback) == ["ready", "cancelled"]
    assert_invariants(deployment)


def test_a_large_graph_is_retried_in_chunks_and_a_second_retry_goes_on(
    deployment: Deployment, user: UserId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first chunk has the root alone; it runs again and ends before its dependents are back."""
    monkeypatch.setattr(retry_module, "CHUNK", 1)
    root, below, fallback, last = linked(
        deployment, user, 4, Edge(0, 1), Edge(0, 2, FALLBACK), Edge(1, 3)
    )
    end(deployment, root, FATAL)
    end(deployment, fallback, FATAL)
    revive = retry_module._revive
    chunks: list[Sequence[UUID]] = []

    def crash_in_the_second_chunk(
        tx: Connection, chunk: Sequence[UUID], *args: Any, **options: Any
    ) -> Any:
        chunks.append(chunk)
        if len(chunks) == 2:
            raise KeyboardInterrupt
        return revive(tx, chunk, *args, **options)

    monkeypatch.setattr(retry_module, "_revive", crash_in_the_second_chunk)
    with pytest.raises(KeyboardInterrupt):
        retry_dag(deployment.app, user, dag_of(deployment, root), actor=ME)
    assert states(deployment, root, below, fallback, last) == [
        *("ready", "cancelled", "dead_lettered", "cancelled")
    ]
    end(deployment, root, Returned())

    back = retry_dag(deployment.app, user, dag_of(deployment, root), actor=ME)

    assert set(back) == {below, last}, "the fallback is not needed any more"
    assert states(deployment, below, last) == ["ready", "pending"]
    for task in (below, last):
        end(deployment, task, Returned())
    assert_invariants(deployment)


def test_a_parent_that_fails_again_between_two_chunks_cancels_its_dependents(
    deployment: Deployment, user: UserId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry_module, "CHUNK", 1)
    root, below = linked(deployment, user, 2, Edge(0, 1))
    end(deployment, root, FATAL)

    def after_each_chunk(point: str) -> None:
        if point == "dead_letter.after_commit" and deployment.state(root) == "ready":
            end(deployment, root, FATAL)

    monkeypatch.setattr(retry_module, "fault", after_each_chunk)
    retry_dag(deployment.app, user, dag_of(deployment, root), actor=ME)

    assert states(deployment, root, below) == ["dead_lettered", "cancelled"]
    assert_invariants(deployment)


def test_a_graph_without_failed_tasks_is_not_retried(deployment: Deployment, user: UserId) -> None:
    task, fallback = linked(deployment, user, 2, Edge(0, 1, FALLBACK))

    with pytest.raises(NotRetryable, match="the graph is running"):
        retry_dag(deployment.app, user, dag_of(deployment, task), actor=ME)
    end(deployment, task, Returned())
    with pytest.raises(NotRetryable, match="the graph is completed"):
        retry_dag(deployment.app, user, dag_of(deployment, task), actor=ME)

    assert deployment.state(fallback) == "cancelled"


def test_a_retried_graph_keeps_the_attempts_of_its_tasks(
    deployment: Deployment, user: UserId
) -> None:
    run = deployment.running(user, max_attempts=1)
    task = run.claim.task_id
    cancel_dag(deployment.app, user, dag_of(deployment, task), actor=ME)
    deployment.settle(run, StoppedByCancel())
    waiting = deployment.task(user, max_attempts=1)
    cancel_dag(deployment.app, user, dag_of(deployment, waiting), actor=ME)

    for task_id in (task, waiting):
        retry_dag(deployment.app, user, dag_of(deployment, task_id), actor=ME)

    attempts = deployment.row(task)["attempts"]
    assert deployment.row(task)["max_attempts"] in {1, attempts + 3}
    assert deployment.row(task)["max_attempts"] > attempts
    assert deployment.row(waiting)["max_attempts"] == 1
    assert_invariants(deployment)


def test_revived_tasks_count_against_the_cap(deployment: Deployment, user: UserId) -> None:
    root, child = linked(deployment, user, 2, Edge(0, 1))
    end(deployment, root, FATAL)
    dag = dag_of(deployment, root)
    deployment.task(user)

    for again in (
        lambda caps: retry(deployment.app, user, root, actor=ME, caps=caps),
        lambda caps: retry_dag(deployment.app, user, dag, actor=ME, caps=caps),
        lambda caps: retry_letter(deployment.app, root, actor=ME, user_id=user, caps=caps),
    ):
        with pytest.raises(TooManyPending) as refused:
            again(Caps(max_pending_per_user=2))
        assert refused.value.details["pending"] == 1
    assert states(deployment, root, child) == ["dead_lettered", "cancelled"]
    assert deployment.one("SELECT resolution FROM dead_letters")["resolution"] is None

    assert len(retry(deployment.app, user, root, actor=ME, caps=Caps(max_pending_per_user=3))) == 2
    assert_invariants(deployment)
