"""Concurrent acts on one graph: the second act sees the changes of the first."""

from collections.abc import Callable

import pytest
from sqlalchemy import Connection

from overnight.errors import TooManyPending
from overnight_server.control.cancel import cancel_dag
from overnight_server.control.fork import ForkedDag, fork
from overnight_server.control.retry import retry
from overnight_server.domain.graphs import Condition
from overnight_server.domain.ids import UserId
from overnight_server.domain.results import Raised, Returned
from overnight_server.gate.claim import claim
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import Edge, NewTask
from overnight_server.intake.submit import submit
from overnight_server.outcome.settle import settle
from overnight_server.outcome.start import start
from overnight_server.store.db import Db
from tests.support.deployment import AGENT, CLAIM_SETTINGS, LEASE, LOOSE, POOL, Deployment
from tests.support.graphs import assert_invariants, begin, dag_of, end, linked, states, status
from tests.support.rivals import Rival, meet_at_lane, meet_at_task, queue_up

ME = "human:me"
FATAL = Raised("auth_failure", "wrong key")
FALLBACK, CLEAN_UP = Condition.FAILURE, Condition.FINISHED


@pytest.fixture
def user(deployment: Deployment) -> UserId:
    deployment.agent()
    return deployment.user()


def test_two_parents_that_end_differently_at_once_resolve_their_child_once(
    deployment: Deployment, user: UserId, connect: Callable[..., Db]
) -> None:
    failing, passing, child = linked(deployment, user, 3, Edge(0, 2, FALLBACK), Edge(1, 2))
    runs = begin(deployment, failing, passing)

    won = meet_at_lane(
        connect,
        user,
        Rival(connect, "failing", settle, runs[0], FATAL, agent=AGENT),
        Rival(connect, "passing", settle, runs[1], Returned(), agent=AGENT),
    )

    assert won == [True, True]
    moves = deployment.rows(
        "SELECT to_state FROM events WHERE task_id = :id ORDER BY seq", id=child
    )
    assert [move["to_state"] for move in moves] == ["pending", "ready"]
    assert_invariants(deployment)


@pytest.mark.parametrize("retry_first", [True, False])
def test_a_retry_and_the_end_of_a_sibling_leave_a_consistent_child(
    deployment: Deployment, user: UserId, connect: Callable[..., Db], *, retry_first: bool
) -> None:
    failed, sibling, child = linked(deployment, user, 3, Edge(0, 2), Edge(1, 2))
    end(deployment, failed, FATAL)
    [run] = begin(deployment, sibling)
    rivals = [
        Rival(connect, "person", retry, user, failed, actor=ME),
        Rival(connect, "worker", settle, run, Returned(), agent=AGENT),
    ]

    meet_at_lane(connect, user, *(rivals if retry_first else reversed(rivals)))

    assert states(deployment, failed, sibling, child) == ["ready", "completed", "pending"]
    assert deployment.row(child)["unmet"] == 1
    end(deployment, failed, Returned())
    assert deployment.state(child) == "ready"
    assert_invariants(deployment)


@pytest.mark.parametrize("retry_first", [True, False])
def test_a_retry_and_a_dead_letter_never_leave_the_child_stuck(
    deployment: Deployment, user: UserId, connect: Callable[..., Db], *, retry_first: bool
) -> None:
    failed, dying, child = linked(deployment, user, 3, Edge(0, 2), Edge(1, 2))
    end(deployment, failed, FATAL)
    [run] = begin(deployment, dying)
    rivals = [
        Rival(connect, "person", retry, user, failed, actor=ME),
        Rival(connect, "worker", settle, run, FATAL, agent=AGENT),
    ]

    meet_at_lane(connect, user, *(rivals if retry_first else reversed(rivals)))

    assert states(deployment, failed, dying, child) == ["ready", "dead_lettered", "cancelled"]
    assert_invariants(deployment)


@pytest.mark.parametrize("cancel_first", [True, False])
def test_a_graph_cancel_and_a_settle_end_alike_in_either_order(
    deployment: Deployment, user: UserId, connect: Callable[..., Db], *, cancel_first: bool
) -> None:
    parent, child = linked(deployment, user, 2, Edge(0, 1))
    [run] = begin(deployment, parent)
    rivals = [
        Rival(connect, "person", cancel_dag, user, dag_of(deployment, parent), actor=ME),
        Rival(connect, "worker", settle, run, Returned(), agent=AGENT),
    ]

    meet_at_lane(connect, user, *(rivals if cancel_first else reversed(rivals)))

    assert states(deployment, parent, child) == ["completed", "cancelled"]
    assert status(deployment, parent) == "cancelled"
    assert_invariants(deployment)


@pytest.mark.parametrize("start_first", [True, False])
def test_a_graph_cancel_and_a_start_serialize_on_the_row(
    deployment: Deployment, user: UserId, connect: Callable[..., Db], *, start_first: bool
) -> None:
    task, other = linked(deployment, user, 2)
    [claimed, *_] = [
        claimed for claimed in deployment.claim().claims if claimed.claim.task_id == task
    ]
    rivals = [
        Rival(connect, "worker", start, claimed.claim, holder=AGENT, lease=LEASE),
        Rival(connect, "person", cancel_dag, user, dag_of(deployment, task), actor=ME),
    ]

    answers = meet_at_task(connect, task, *(rivals if start_first else reversed(rivals)))

    run, cancelled = answers if start_first else reversed(answers)
    counts = (len(cancelled.cancelled), len(cancelled.requested))
    assert (run is not None, counts) == ((True, (1, 1)) if start_first else (False, (2, 0)))
    assert states(deployment, task, other) == [
        "running" if start_first else "cancelled",
        "cancelled",
    ]
    assert_invariants(deployment)


def test_a_graph_cancel_cancels_a_task_claimed_just_before(
    deployment: Deployment, user: UserId, connect: Callable[..., Db]
) -> None:
    tasks = linked(deployment, user, 3)
    person = Rival(connect, "person", cancel_dag, user, dag_of(deployment, tasks[0]), actor=ME)

    with connect("claimer", pool_size=1).engine.begin() as tx:
        taken = claim(
            InTransaction(tx), POOL, holder="claimer", claim_settings=CLAIM_SETTINGS, limit=2
        )  # type: ignore[arg-type]
        queue_up(connect, [person])

    assert len(taken.claims) == 2
    assert sorted(person.answer().cancelled) == sorted(tasks)
    assert [deployment.start(claimed) for claimed in taken.claims] == [None, None]
    assert deployment.claim().claims == []
    assert states(deployment, *tasks) == ["cancelled"] * 3
    assert_invariants(deployment)


class InTransaction:
    """A database whose transactions are all part of one transaction that the test holds open."""

    def __init__(self, tx: Connection) -> None:
        self._tx = tx

    def atomically(self, work: Callable[[Connection], object]) -> object:
        return work(self._tx)


def test_forks_of_one_graph_at_once_are_two_graphs(
    deployment: Deployment, user: UserId, connect: Callable[..., Db]
) -> None:
    root, _ = linked(deployment, user, 2, Edge(0, 1))
    end(deployment, root, Returned())

    first, second = meet_at_lane(
        connect,
        user,
        *(Rival(connect, f"person-{n}", fork, user, root, LOOSE, actor=ME) for n in range(2)),
    )

    assert isinstance(first, ForkedDag)
    assert first.dag_id != second.dag_id
    assert deployment.one("SELECT count(*) AS n FROM tasks")["n"] == 6
    assert_invariants(deployment)


def test_a_retry_and_a_submit_never_exceed_the_cap_together(
    deployment: Deployment, user: UserId, connect: Callable[..., Db]
) -> None:
    [task] = linked(deployment, user, 1)
    end(deployment, task, FATAL)
    caps = Caps(max_pending_per_user=1)
    late = Rival(connect, "person", retry, user, task, actor=ME, caps=caps)

    with pytest.raises(TooManyPending):
        meet_at_lane(
            connect,
            user,
            Rival(connect, "producer", submit, user, NewTask("new", "echo"), caps),
            late,
        )

    assert deployment.state(task) == "dead_lettered"
    assert deployment.one("SELECT waiting FROM lanes WHERE user_id = :u", u=user)["waiting"] == 1
    assert_invariants(deployment)
