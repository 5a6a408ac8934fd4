"""What a person asks of a graph: stop it, or try a part of it again."""

from uuid import uuid4

import pytest

from overnight_server.control.cancel import cancel
from overnight_server.control.dead_letters import discard
from overnight_server.control.dead_letters import retry as retry_letter
from overnight_server.control.fork import fork
from overnight_server.control.graphs import CancelledDag, cancel_dag, retry, retry_dag
from overnight_server.domain.errors import (
    DagAlreadyFinished,
    DagNotFound,
    InvalidRequest,
    NotRetryable,
    TaskNotFound,
    TooManyPending,
)
from overnight_server.domain.graphs import Condition
from overnight_server.domain.ids import DagId, TaskId, UserId, show_task
from overnight_server.domain.results import Raised, Returned, Stopped
from overnight_server.intake.submit import Caps, Edge
from tests.support.graphs import begin, dag_of, end, linked, sound, states, status
from tests.support.house import LOOSE, House

ME = "human:me"
FATAL = Raised("auth_failure", "wrong key")
FALLBACK, CLEAN_UP = Condition.FAILURE, Condition.FINISHED


@pytest.fixture
def user(house: House) -> UserId:
    house.agent()
    return house.user()


def test_cancelling_a_graph_stops_what_waits_and_asks_what_runs(house: House, user: UserId) -> None:
    root, running, claimed, below, clean_up = linked(
        house, user, 5, Edge(0, 1), Edge(0, 2), Edge(1, 3), Edge(3, 4, CLEAN_UP)
    )
    end(house, root, Returned())
    [run] = begin(house, running)
    house.claim()

    answer = cancel_dag(house.app, user, dag_of(house, root), actor="human:ada")

    assert answer == CancelledDag(stopped=3, asked=1)
    assert states(house, root, running) == ["completed", "running"]
    assert states(house, claimed, below, clean_up) == ["cancelled"] * 3
    assert house.row(running)["cancel_requested_at"] is not None
    actors = house.rows("SELECT DISTINCT actor FROM events WHERE to_state = 'cancelled'")
    assert [row["actor"] for row in actors] == ["human:ada"]
    house.settle(run, Stopped())
    assert status(house, root) == "cancelled"
    sound(house)


def test_a_graph_that_has_ended_cannot_be_cancelled(house: House, user: UserId) -> None:
    task, _ = linked(house, user, 2, Edge(0, 1, FALLBACK))
    end(house, task, Returned())

    with pytest.raises(DagAlreadyFinished) as refused:
        cancel_dag(house.app, user, dag_of(house, task), actor=ME)

    assert refused.value.details == {"status": "completed"}


def test_a_lone_task_is_a_graph_that_can_be_cancelled(house: House, user: UserId) -> None:
    task = house.task(user)

    assert cancel_dag(house.app, user, DagId(task), actor=ME) == CancelledDag(1, 0)

    assert house.state(task) == "cancelled"


def test_another_users_graph_looks_like_none(house: House, user: UserId) -> None:
    task, _ = linked(house, user, 2, Edge(0, 1))
    stranger = house.user()

    for dag in (dag_of(house, task), DagId(uuid4())):
        with pytest.raises(DagNotFound):
            cancel_dag(house.app, stranger, dag, actor=ME)
        with pytest.raises(DagNotFound):
            retry_dag(house.app, stranger, dag, actor=ME)
    for unknown in (task, TaskId(uuid4())):
        with pytest.raises(TaskNotFound):
            retry(house.app, stranger, unknown, actor=ME)
        with pytest.raises(TaskNotFound):
            fork(house.app, stranger, unknown, LOOSE, actor=ME)
    assert house.state(task) == "ready"


def test_a_retry_brings_back_what_ended_because_of_it_beside_what_completed(
    house: House, user: UserId
) -> None:
    root, failed, sibling, joined = linked(
        house, user, 4, Edge(0, 1), Edge(0, 2), Edge(1, 3), Edge(2, 3)
    )
    end(house, root, Returned())
    end(house, failed, FATAL)
    end(house, sibling, Returned())
    assert status(house, root) == "failed"

    back = retry(house.app, user, failed, actor=ME, note="key renewed")

    assert back == [failed, joined]
    assert states(house, root, failed, sibling, joined) == [
        "completed",
        "ready",
        "completed",
        "pending",
    ]
    dag = house.one("SELECT * FROM dags")
    assert (dag["status"], dag["finished_at"]) == ("running", None)
    letter = house.one("SELECT * FROM dead_letters")
    assert (letter["resolution"], letter["resolved_by"], letter["note"]) == (
        "retry",
        ME,
        "key renewed",
    )
    end(house, failed, Returned())
    end(house, joined, Returned())
    assert status(house, root) == "completed"
    sound(house)


def test_a_cancelled_task_can_be_tried_again_with_what_it_took_along(
    house: House, user: UserId
) -> None:
    root, child, fallback = linked(house, user, 3, Edge(0, 1), Edge(0, 2, FALLBACK))
    cancel(house.app, user, root, actor=ME)

    back = retry(house.app, user, root, actor=ME)

    assert (back[0], set(back)) == (root, {root, child, fallback})
    assert states(house, root, child, fallback) == ["ready", "pending", "pending"]
    end(house, root, Returned())
    assert states(house, child, fallback) == ["ready", "cancelled"]
    sound(house)


def test_a_task_stopped_on_its_last_try_can_run_again(house: House, user: UserId) -> None:
    run = house.running(user, max_attempts=1)
    house.settle(run, Stopped())

    retry(house.app, user, run.claim.task_id, actor=ME, attempts=1)
    end(house, run.claim.task_id, FATAL)

    assert house.state(run.claim.task_id) == "dead_lettered"
    sound(house)


def test_what_a_failure_set_going_is_not_called_back(house: House, user: UserId) -> None:
    task, fallback, child = linked(house, user, 3, Edge(0, 1, FALLBACK), Edge(0, 2))
    end(house, task, FATAL)
    end(house, fallback, Returned())

    retry(house.app, user, task, actor=ME)

    assert states(house, task, fallback, child) == ["ready", "completed", "pending"]
    end(house, task, Returned())
    end(house, child, Returned())
    assert status(house, task) == "completed"
    sound(house)


def test_a_task_that_waits_in_vain_cannot_be_retried_by_itself(house: House, user: UserId) -> None:
    root, child = linked(house, user, 2, Edge(0, 1))
    end(house, root, FATAL)

    with pytest.raises(InvalidRequest, match=f"waits for {show_task(root)}") as refused:
        retry(house.app, user, child, actor=ME)

    assert refused.value.details["field"] == "task_id"
    assert states(house, root, child) == ["dead_lettered", "cancelled"]


def test_what_was_not_needed_besides_stays_so(house: House, user: UserId) -> None:
    done, failed, child = linked(house, user, 3, Edge(0, 2, FALLBACK), Edge(1, 2))
    end(house, failed, FATAL)
    end(house, done, Returned())

    assert retry(house.app, user, failed, actor=ME) == [failed]
    end(house, failed, Returned())

    assert house.state(child) == "cancelled"
    assert status(house, failed) == "completed"
    sound(house)


def test_only_what_ended_badly_can_be_retried(house: House, user: UserId) -> None:
    waiting, done, closed = house.task(user), house.task(user), house.task(user)
    end(house, done, Returned())
    end(house, closed, FATAL)
    discard(house.app, closed, actor="operator:ada")

    for task, state in ((waiting, "ready"), (done, "completed"), (closed, "closed for good")):
        with pytest.raises(NotRetryable, match=state):
            retry(house.app, user, task, actor=ME)
    with pytest.raises(InvalidRequest, match="attempts"):
        retry(house.app, user, waiting, actor=ME, attempts=0)


def test_a_graph_cancelled_whole_comes_back_whole(house: House, user: UserId) -> None:
    root, running, below, clean_up = linked(
        house, user, 4, Edge(0, 1), Edge(1, 2), Edge(2, 3, CLEAN_UP)
    )
    end(house, root, Returned())
    [run] = begin(house, running)
    cancel_dag(house.app, user, dag_of(house, root), actor=ME)
    house.settle(run, Stopped())

    back = retry_dag(house.app, user, dag_of(house, root), actor="human:ada")

    assert set(back) == {running, below, clean_up}
    assert states(house, root, running, below, clean_up) == [
        *("completed", "ready", "pending", "pending")
    ]
    assert status(house, root) == "running"
    for task in (running, below, clean_up):
        end(house, task, Returned())
    assert status(house, root) == "completed"
    sound(house)


def test_a_retried_task_brings_back_what_was_cancelled_together_with_it(
    house: House, user: UserId
) -> None:
    root, below, clean_up, beside, before = linked(
        house, user, 5, Edge(0, 1), Edge(0, 2, CLEAN_UP), Edge(0, 4)
    )
    cancel(house.app, user, before, actor=ME)
    [run] = begin(house, root)
    cancel_dag(house.app, user, dag_of(house, root), actor=ME)
    house.settle(run, Stopped())

    back = retry(house.app, user, root, actor=ME)

    assert (back[0], set(back)) == (root, {root, below, clean_up})
    assert states(house, root, below, clean_up) == ["ready", "pending", "pending"]
    assert states(house, beside, before) == ["cancelled", "cancelled"]
    sound(house)


def test_a_retried_graph_leaves_what_completed_and_what_is_closed(
    house: House, user: UserId
) -> None:
    done, failed, closed, below_failed, below_closed, fallback = linked(
        house, user, 6, Edge(0, 1), Edge(0, 2), Edge(1, 3), Edge(2, 4), Edge(1, 5, FALLBACK)
    )
    end(house, done, Returned())
    end(house, failed, FATAL)
    end(house, closed, FATAL)
    end(house, fallback, FATAL)
    discard(house.app, closed, actor="operator:ada")

    back = retry_dag(house.app, user, dag_of(house, done), actor=ME, note="key renewed")

    assert set(back) == {failed, below_failed, fallback}
    assert states(house, failed, below_failed, fallback) == ["ready", "pending", "pending"]
    assert states(house, done, closed, below_closed) == ["completed", "dead_lettered", "cancelled"]
    letters = house.rows("SELECT resolution, count(*) AS n FROM dead_letters GROUP BY 1 ORDER BY 1")
    assert [(one["resolution"], one["n"]) for one in letters] == [("cancel", 1), ("retry", 2)]
    end(house, failed, Returned())
    assert states(house, below_failed, fallback) == ["ready", "cancelled"]
    sound(house)


def test_a_graph_with_nothing_to_bring_back_is_not_retried(house: House, user: UserId) -> None:
    task, fallback = linked(house, user, 2, Edge(0, 1, FALLBACK))

    with pytest.raises(NotRetryable, match="it is running"):
        retry_dag(house.app, user, dag_of(house, task), actor=ME)
    end(house, task, Returned())
    with pytest.raises(NotRetryable, match="it is completed"):
        retry_dag(house.app, user, dag_of(house, task), actor=ME)

    assert house.state(fallback) == "cancelled"


def test_a_retried_graph_keeps_the_tries_its_tasks_had(house: House, user: UserId) -> None:
    run = house.running(user, max_attempts=1)
    task = run.claim.task_id
    cancel_dag(house.app, user, dag_of(house, task), actor=ME)
    house.settle(run, Stopped())
    waiting = house.task(user, max_attempts=1)
    cancel_dag(house.app, user, dag_of(house, waiting), actor=ME)

    for one in (task, waiting):
        retry_dag(house.app, user, dag_of(house, one), actor=ME)

    attempts = house.row(task)["attempts"]
    assert house.row(task)["max_attempts"] in {1, attempts + 3}
    assert house.row(task)["max_attempts"] > attempts
    assert house.row(waiting)["max_attempts"] == 1
    sound(house)


def test_what_comes_back_counts_as_waiting_work(house: House, user: UserId) -> None:
    root, child = linked(house, user, 2, Edge(0, 1))
    end(house, root, FATAL)
    dag = dag_of(house, root)
    house.task(user)

    for again in (
        lambda caps: retry(house.app, user, root, actor=ME, caps=caps),
        lambda caps: retry_dag(house.app, user, dag, actor=ME, caps=caps),
        lambda caps: retry_letter(house.app, root, actor=ME, user_id=user, caps=caps),
    ):
        with pytest.raises(TooManyPending) as refused:
            again(Caps(max_pending_per_user=2))
        assert refused.value.details["pending"] == 1
    assert states(house, root, child) == ["dead_lettered", "cancelled"]
    assert house.one("SELECT resolution FROM dead_letters")["resolution"] is None

    assert len(retry(house.app, user, root, actor=ME, caps=Caps(max_pending_per_user=3))) == 2
    sound(house)
