"""What a person asks of a graph: stop it, try a part again, or fork it."""

from collections.abc import Callable
from uuid import uuid4

import pytest
from sqlalchemy import Connection

from app.control.cancel import cancel
from app.control.dead_letters import discard
from app.control.fork import Forked, fork
from app.control.graphs import CancelledDag, cancel_dag, retry
from app.domain.errors import (
    DagAlreadyFinished,
    DagNotFound,
    InvalidRequest,
    NotRetryable,
    TaskNotFound,
    TooManyPending,
)
from app.domain.graphs import Condition, OnUnmet
from app.domain.ids import DagId, TaskId, UserId, show_task
from app.domain.results import Raised, Returned, Stopped
from app.gate.claim import claim
from app.intake.submit import Caps, Edge, NewTask, submit_graph
from app.outcome.settle import settle
from app.outcome.start import start
from app.store.db import Db
from tests.support.graphs import begin
from tests.support.house import AGENT, LEASE, LOOSE, POOL, TERMS, House
from tests.support.invariants import told, violations
from tests.support.rivals import Rival, meet_at_lane, meet_at_task, queue_up

ME = "human:me"
FATAL = Raised("auth_failure", "wrong key")
FALLBACK, CLEAN_UP = Condition.FAILURE, Condition.FINISHED


@pytest.fixture
def user(house: House) -> UserId:
    house.agent()
    return house.user()


def linked(house: House, user: UserId, size: int, *edges: Edge) -> list[TaskId]:
    tasks = [NewTask(f"task {place}", "echo") for place in range(size)]
    made = submit_graph(house.app, user, tasks, LOOSE, edges=edges, title="a graph")
    return [one.task_id for one in made]


def end(house: House, task: TaskId, result: Returned | Raised | Stopped) -> None:
    house.settle(*begin(house, task), result)


def states(house: House, *tasks: TaskId) -> list[str]:
    return [house.state(task) for task in tasks]


def dag_of(house: House, task: TaskId) -> DagId:
    return DagId(house.row(task)["dag_id"])


def status(house: House, task: TaskId) -> str:
    sql = "SELECT status FROM graphs WHERE id = :id"
    return str(house.one(sql, id=dag_of(house, task))["status"])


def sound(house: House) -> None:
    found = violations(house.dispatcher)
    assert not found, told(found)


# -- edges ---------------------------------------------------------------------------------------


def test_a_fallback_takes_over_and_the_graph_stays_failed(house: House, user: UserId) -> None:
    task, fallback = linked(house, user, 2, Edge(0, 1, FALLBACK))

    end(house, task, FATAL)
    assert house.state(fallback) == "ready"
    end(house, fallback, Returned())

    assert status(house, task) == "failed"
    sound(house)


def test_a_fallback_that_is_not_needed_leaves_the_graph_completed(
    house: House, user: UserId
) -> None:
    task, fallback, behind = linked(house, user, 3, Edge(0, 1, FALLBACK), Edge(1, 2))

    end(house, task, Returned())

    rows = [house.row(one) for one in (fallback, behind)]
    assert {(row["state"], row["failure_reason"]) for row in rows} == {("cancelled", "not_needed")}
    dag = house.one("SELECT * FROM dags")
    assert (dag["status"], dag["cancelled"], dag["stopped"]) == ("completed", 2, 0)
    sound(house)


def test_a_clean_up_runs_whatever_became_of_the_chain_before_it(house: House, user: UserId) -> None:
    root, middle, last, clean_up = linked(
        house, user, 4, Edge(0, 1), Edge(1, 2), Edge(2, 3, CLEAN_UP)
    )

    end(house, root, FATAL)

    assert states(house, middle, last, clean_up) == ["cancelled", "cancelled", "ready"]
    sound(house)


def test_an_edge_that_continues_does_not_mind_a_failure(house: House, user: UserId) -> None:
    optional, needed, child = linked(
        house, user, 3, Edge(0, 2, on_unmet=OnUnmet.CONTINUE), Edge(1, 2)
    )

    end(house, optional, FATAL)
    assert house.state(child) == "pending"
    end(house, needed, Returned())

    assert house.state(child) == "ready"
    sound(house)


def test_words_that_edges_do_not_know_are_refused(house: House, user: UserId) -> None:
    for edge, field in (
        (Edge(0, 1, "sometimes"), "edges.condition"),
        (Edge(0, 1, on_unmet="shrug"), "edges.on_unmet"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            linked(house, user, 2, edge)
        assert refused.value.details["field"] == field
    with pytest.raises(InvalidRequest, match="2 edges lead from 0 to 1"):
        linked(house, user, 2, Edge(0, 1), Edge(0, 1, FALLBACK))


def test_a_chain_of_a_thousand_falls_in_one_statement(house: House, user: UserId) -> None:
    chain = linked(house, user, 1000, *(Edge(n, n + 1) for n in range(999)))

    cancel(house.app, user, chain[0], actor=ME)

    dag = house.one("SELECT * FROM dags")
    assert (dag["status"], dag["cancelled"], dag["stopped"]) == ("cancelled", 1000, 1)


# -- cancel --------------------------------------------------------------------------------------


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
    for unknown in (task, TaskId(uuid4())):
        with pytest.raises(TaskNotFound):
            retry(house.app, stranger, unknown, actor=ME)
        with pytest.raises(TaskNotFound):
            fork(house.app, stranger, unknown, LOOSE, actor=ME)
    assert house.state(task) == "ready"


# -- retry ---------------------------------------------------------------------------------------


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


# -- fork ----------------------------------------------------------------------------------------


def test_a_fork_runs_the_chosen_task_and_all_after_it_anew(house: House, user: UserId) -> None:
    root, chosen, other, joined = linked(
        house, user, 4, Edge(0, 1), Edge(0, 2), Edge(1, 3), Edge(2, 3)
    )
    for task, output in ((root, "r"), (chosen, "c"), (other, "o"), (joined, "j")):
        end(house, task, Returned(output))
    before = [house.row(one) for one in (root, chosen, other, joined)]

    forked = fork(house.app, user, chosen, LOOSE, actor="human:ada", title="once more")

    copies = [forked.tasks[one] for one in (root, chosen, other, joined)]
    assert states(house, *copies) == ["completed", "ready", "completed", "pending"]
    assert [house.row(one)["output"] for one in copies] == ["r", None, "o", None]
    assert [house.row(one)["taken_from"] for one in copies] == [root, None, other, None]
    assert forked.again == {copies[1], copies[3]}
    assert [house.row(one) for one in (root, chosen, other, joined)] == before
    dag = house.one("SELECT * FROM dags WHERE id = :id", id=forked.dag_id)
    assert (dag["title"], dag["status"], dag["completed"]) == ("once more", "running", 2)
    assert dag["forked_from"] == before[0]["dag_id"]
    end(house, copies[1], Returned())
    end(house, copies[3], Returned())
    assert status(house, copies[0]) == "completed"
    sound(house)


def test_a_fork_costs_nothing_for_what_it_takes_over(house: House, user: UserId) -> None:
    root, child = linked(house, user, 2, Edge(0, 1))
    end(house, root, Returned(cost_usd=0.5))
    before = (house.lane(user)["used_seconds"], house.lane(user)["waiting"])

    forked = fork(house.app, user, child, LOOSE, actor=ME)

    row = house.row(forked.tasks[root])
    assert (row["cost_usd"], row["epoch"], row["attempts"]) == (0, 0, 0)
    assert (house.lane(user)["used_seconds"], house.lane(user)["waiting"]) == (
        before[0],
        before[1] + 1,
    )
    sound(house)


def test_a_fork_drops_what_is_not_needed_and_runs_what_is_lacking(
    house: House, user: UserId
) -> None:
    done, fallback, dead, joined, aside = linked(
        house, user, 5, Edge(0, 1, FALLBACK), Edge(0, 3), Edge(2, 3), Edge(2, 4, CLEAN_UP)
    )
    end(house, done, Returned())
    end(house, dead, FATAL)
    end(house, aside, Returned())

    forked = fork(house.app, user, joined, LOOSE, actor=ME)

    # The dead one must run for the chosen to run; the fallback was not needed and is left behind.
    assert set(forked.tasks) == {done, dead, joined, aside}
    copies = [forked.tasks[one] for one in (done, dead, joined, aside)]
    assert states(house, *copies) == ["completed", "ready", "pending", "completed"]
    again = fork(house.app, user, fallback, LOOSE, actor=ME)
    # Forked by name, it is still not needed.
    assert house.row(again.tasks[fallback])["failure_reason"] == "not_needed"
    sound(house)


def test_a_fork_names_copies_where_specs_named_tasks(house: House, user: UserId) -> None:
    root, child = linked(house, user, 2, Edge(0, 1))
    house.run(
        "UPDATE tasks SET spec = jsonb_build_object('context_refs',"
        " jsonb_build_array(CAST(:ref AS text), 'artifact:x')) WHERE id = :id",
        ref=f"task:{show_task(root)}:output",
        id=child,
    )
    end(house, root, Returned("seen"))

    forked = fork(house.app, user, root, LOOSE, actor=ME)

    spec = house.row(forked.tasks[child])["spec"]
    assert spec["context_refs"] == [f"task:{show_task(forked.tasks[root])}:output", "artifact:x"]


def test_a_lone_task_can_be_forked(house: House, user: UserId) -> None:
    task = house.task(user)
    end(house, task, Returned())

    forked = fork(house.app, user, task, LOOSE, actor=ME)

    assert states(house, task, forked.tasks[task]) == ["completed", "ready"]
    sound(house)


def test_a_fork_that_exceeds_a_cap_leaves_nothing_behind(house: House, user: UserId) -> None:
    root, *_ = linked(house, user, 3, Edge(0, 1), Edge(1, 2))
    before = house.one("SELECT count(*) AS n FROM tasks")["n"]

    with pytest.raises(TooManyPending):
        fork(house.app, user, root, Caps(max_pending_per_user=5), actor=ME)
    with pytest.raises(InvalidRequest, match="at most 2"):
        fork(house.app, user, root, Caps(100, max_tasks_per_dag=2), actor=ME)

    assert house.one("SELECT count(*) AS n FROM tasks")["n"] == before
    assert house.one("SELECT count(*) AS n FROM dags")["n"] == 1


# -- races ---------------------------------------------------------------------------------------


def test_two_parents_that_end_otherwise_at_once_judge_their_child_once(
    house: House, user: UserId, connect: Callable[..., Db]
) -> None:
    failing, passing, child = linked(house, user, 3, Edge(0, 2, FALLBACK), Edge(1, 2))
    runs = begin(house, failing, passing)

    won = meet_at_lane(
        connect,
        user,
        Rival(connect, "failing", settle, runs[0], FATAL, agent=AGENT),
        Rival(connect, "passing", settle, runs[1], Returned(), agent=AGENT),
    )

    assert won == [True, True]
    moves = house.rows("SELECT to_state FROM events WHERE task_id = :id ORDER BY seq", id=child)
    assert [move["to_state"] for move in moves] == ["pending", "ready"]
    sound(house)


@pytest.mark.parametrize("retry_first", [True, False])
def test_a_retry_and_the_end_of_a_sibling_agree_on_the_child(
    house: House, user: UserId, connect: Callable[..., Db], *, retry_first: bool
) -> None:
    failed, sibling, child = linked(house, user, 3, Edge(0, 2), Edge(1, 2))
    end(house, failed, FATAL)
    [run] = begin(house, sibling)
    rivals = [
        Rival(connect, "person", retry, user, failed, actor=ME),
        Rival(connect, "worker", settle, run, Returned(), agent=AGENT),
    ]

    meet_at_lane(connect, user, *(rivals if retry_first else reversed(rivals)))

    assert states(house, failed, sibling, child) == ["ready", "completed", "pending"]
    assert house.row(child)["unmet"] == 1
    end(house, failed, Returned())
    assert house.state(child) == "ready"
    sound(house)


@pytest.mark.parametrize("retry_first", [True, False])
def test_a_retry_and_a_death_never_leave_the_child_waiting_in_vain(
    house: House, user: UserId, connect: Callable[..., Db], *, retry_first: bool
) -> None:
    failed, dying, child = linked(house, user, 3, Edge(0, 2), Edge(1, 2))
    end(house, failed, FATAL)
    [run] = begin(house, dying)
    rivals = [
        Rival(connect, "person", retry, user, failed, actor=ME),
        Rival(connect, "worker", settle, run, FATAL, agent=AGENT),
    ]

    meet_at_lane(connect, user, *(rivals if retry_first else reversed(rivals)))

    assert states(house, failed, dying, child) == ["ready", "dead_lettered", "cancelled"]
    sound(house)


@pytest.mark.parametrize("cancel_first", [True, False])
def test_a_graphs_cancel_and_a_settle_meet(
    house: House, user: UserId, connect: Callable[..., Db], *, cancel_first: bool
) -> None:
    parent, child = linked(house, user, 2, Edge(0, 1))
    [run] = begin(house, parent)
    rivals = [
        Rival(connect, "person", cancel_dag, user, dag_of(house, parent), actor=ME),
        Rival(connect, "worker", settle, run, Returned(), agent=AGENT),
    ]

    meet_at_lane(connect, user, *(rivals if cancel_first else reversed(rivals)))

    assert states(house, parent, child) == ["completed", "cancelled"]
    assert status(house, parent) == "cancelled"
    sound(house)


@pytest.mark.parametrize("start_first", [True, False])
def test_a_graphs_cancel_and_a_start_meet_at_the_row(
    house: House, user: UserId, connect: Callable[..., Db], *, start_first: bool
) -> None:
    task, other = linked(house, user, 2)
    [claimed, *_] = [one for one in house.claim().claims if one.claim.task_id == task]
    rivals = [
        Rival(connect, "worker", start, claimed.claim, holder=AGENT, lease=LEASE),
        Rival(connect, "person", cancel_dag, user, dag_of(house, task), actor=ME),
    ]

    answers = meet_at_task(connect, task, *(rivals if start_first else reversed(rivals)))

    run, cancelled = answers if start_first else reversed(answers)
    assert (run is not None, cancelled) == (
        (True, CancelledDag(1, 1)) if start_first else (False, CancelledDag(2, 0))
    )
    assert states(house, task, other) == ["running" if start_first else "cancelled", "cancelled"]
    sound(house)


def test_a_graphs_cancel_takes_back_what_a_claim_took_just_before(
    house: House, user: UserId, connect: Callable[..., Db]
) -> None:
    tasks = linked(house, user, 3)
    person = Rival(connect, "person", cancel_dag, user, dag_of(house, tasks[0]), actor=ME)

    with connect("claimer", pool_size=1).engine.begin() as tx:
        taken = claim(InTransaction(tx), POOL, holder="claimer", terms=TERMS, limit=2)  # type: ignore[arg-type]
        queue_up(connect, [person])

    assert len(taken.claims) == 2
    assert person.answer() == CancelledDag(3, 0)
    assert [house.start(one) for one in taken.claims] == [None, None]
    assert house.claim().claims == []
    assert states(house, *tasks) == ["cancelled"] * 3
    sound(house)


class InTransaction:
    """A database whose every work is a part of one transaction that the test holds open."""

    def __init__(self, tx: Connection) -> None:
        self._tx = tx

    def atomically(self, work: Callable[[Connection], object]) -> object:
        return work(self._tx)


def test_forks_of_one_graph_at_once_are_two_graphs(
    house: House, user: UserId, connect: Callable[..., Db]
) -> None:
    root, _ = linked(house, user, 2, Edge(0, 1))
    end(house, root, Returned())

    first, second = meet_at_lane(
        connect,
        user,
        *(Rival(connect, f"person-{n}", fork, user, root, LOOSE, actor=ME) for n in range(2)),
    )

    assert isinstance(first, Forked)
    assert first.dag_id != second.dag_id
    assert house.one("SELECT count(*) AS n FROM tasks")["n"] == 6
    sound(house)
