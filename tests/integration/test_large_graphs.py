"""Large graphs: a cancel and a retry work in chunks, and no read compares all tasks with all."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from overnight.errors import TooManyPending
from overnight_server.control import cancel as cancel_module
from overnight_server.control import retry as retry_module
from overnight_server.control.cancel import cancel_dag
from overnight_server.control.dead_letters import discard
from overnight_server.control.retry import retry, retry_dag
from overnight_server.domain.graphs import Condition
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.domain.results import Raised
from overnight_server.intake import submit as submit_module
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import Edge
from overnight_server.store.batched_statements import StatementCall, execute_and_commit
from overnight_server.store.db import Db
from overnight_server.store.statements import PREPARED, number_placeholders, statement
from tests.support.deployment import Deployment
from tests.support.graphs import assert_invariants, begin, dag_of, end, linked, states, status

ME = "human:me"
FATAL = Raised("auth_failure", "wrong key")
CHUNK = 5
# A root, a layer in the middle, and a last task that waits for the whole layer.
MIDDLE = 23
FAN = [edge for one in range(1, MIDDLE + 1) for edge in (Edge(0, one), Edge(one, MIDDLE + 1))]
WRITES = {"cancel", "request_cancel", "revive", "reopen_edges", "make_unblocked_ready"}


class Crash(BaseException):
    """The process dies here."""


@pytest.fixture
def user(deployment: Deployment) -> UserId:
    deployment.agent()
    return deployment.user()


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cancel_module, retry_module):
        monkeypatch.setattr(module, "CHUNK", CHUNK)


def test_no_statement_that_writes_names_more_tasks_than_its_chunk(
    deployment: Deployment, user: UserId
) -> None:
    root, *_ = linked(deployment, user, MIDDLE + 2, *FAN)
    dag = dag_of(deployment, root)

    with _arrays_sent(deployment.app) as cancelling:
        cancel_dag(deployment.app, user, dag, actor=ME)
    with _arrays_sent(deployment.app) as retrying:
        retry_dag(deployment.app, user, dag, actor=ME)

    # The root alone has more children than a chunk has tasks.
    cancelled = [size for name, size in cancelling if name in WRITES]
    revived = sorted(size for name, size in retrying if name in WRITES)
    assert max(cancelled) <= CHUNK
    assert revived[-1] == MIDDLE + 1
    assert revived[-2] <= CHUNK
    assert len([name for name, _ in retrying if name == "revive"]) == MIDDLE // CHUNK + 1
    assert_invariants(deployment)


def test_a_retry_reads_each_edge_a_few_times_and_not_once_per_task(
    deployment: Deployment, user: UserId
) -> None:
    """Every child is below a task that is retried and below one that was closed."""
    children = 400
    edges = [Edge(root, child) for child in range(2, children + 2) for root in (0, 1)]
    failed, closed, *below = linked(deployment, user, children + 2, *edges)
    end(deployment, failed, FATAL)
    end(deployment, closed, FATAL)
    discard(deployment.app, closed, actor="operator:ada")
    deployment.run("ANALYZE tasks, task_edges")

    rows = _rows_of_plan(deployment.app, "tasks_to_revive", tasks=[failed, *below])

    # It follows each edge down, up, and down again, and reads the task at its other end.
    assert rows < 20 * len(edges), rows
    assert retry_dag(deployment.app, user, dag_of(deployment, failed), actor=ME) == [failed]


def test_a_cancel_that_was_interrupted_is_finished_by_another(
    deployment: Deployment, user: UserId, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, *others = linked(deployment, user, MIDDLE + 2, *FAN)
    _crash_after(2, "cancel.after_commit", cancel_module, monkeypatch)

    with pytest.raises(Crash):
        cancel_dag(deployment.app, user, dag_of(deployment, root), actor=ME)
    cancelled = states(deployment, *others).count("cancelled")
    assert (cancelled, deployment.state(root)) == (2 * CHUNK, "ready"), "children come first"
    assert_invariants(deployment)

    rest = cancel_dag(deployment.app, user, dag_of(deployment, root), actor=ME)

    assert rest.count == MIDDLE + 2 - 2 * CHUNK
    assert set(states(deployment, root, *others)) == {"cancelled"}
    assert status(deployment, root) == "cancelled"
    reasons = deployment.rows("SELECT DISTINCT failure_reason FROM tasks")
    assert [row["failure_reason"] for row in reasons] == ["cancelled"]
    assert_invariants(deployment)


def test_a_retry_that_was_interrupted_is_finished_by_another(
    deployment: Deployment, user: UserId, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, *others = linked(deployment, user, MIDDLE + 2, *FAN)
    cancel_dag(deployment.app, user, dag_of(deployment, root), actor=ME)
    with monkeypatch.context() as patches:
        _crash_after(2, "dead_letter.after_commit", retry_module, patches)
        with pytest.raises(Crash):
            retry_dag(deployment.app, user, dag_of(deployment, root), actor=ME)
    assert states(deployment, root, *others).count("cancelled") == MIDDLE + 2 - 2 * CHUNK
    assert_invariants(deployment)

    rest = retry_dag(deployment.app, user, dag_of(deployment, root), actor=ME)

    assert len(rest) == MIDDLE + 2 - 2 * CHUNK
    assert states(deployment, root, *others) == ["ready", *["pending"] * (MIDDLE + 1)]
    unmet = deployment.rows("SELECT unmet, count(*) AS n FROM tasks GROUP BY 1 ORDER BY 1")
    assert [tuple(row.values()) for row in unmet] == [(0, 1), (1, MIDDLE), (MIDDLE, 1)]
    assert_invariants(deployment)


def test_no_chunk_of_a_cancel_makes_a_clean_up_ready(
    deployment: Deployment, user: UserId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clean-up starts however its parent ends, so it must be cancelled before its parent."""
    edges = [Edge(task, task + 1, Condition.FINISHED) for task in range(3 * CHUNK)]
    tasks = linked(deployment, user, 3 * CHUNK + 1, *edges)

    cancel_dag(deployment.app, user, dag_of(deployment, tasks[0]), actor=ME)

    moved = deployment.rows("SELECT DISTINCT from_state FROM events WHERE to_state = 'cancelled'")
    assert sorted(row["from_state"] for row in moved) == ["pending", "ready"]
    made_ready = "SELECT count(*) AS n FROM events WHERE to_state = 'ready'"
    assert deployment.one(made_ready)["n"] == 1, "the first task alone, when it was submitted"
    assert_invariants(deployment)


def test_a_task_that_joins_between_two_chunks_is_cancelled_too(
    deployment: Deployment, user: UserId, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = linked(deployment, user, 2 * CHUNK + 1)
    joined: list[TaskId] = []

    def join_once(point: str) -> None:
        if point == "cancel.after_commit" and not joined:
            joined.append(deployment.task(user))
            deployment.run(
                "UPDATE tasks SET dag_id = :dag WHERE id = :id",
                dag=dag_of(deployment, first),
                id=joined[0],
            )
            deployment.run("UPDATE dags SET total = total + 1, open = open + 1")

    monkeypatch.setattr(cancel_module, "fault", join_once)
    cancel_dag(deployment.app, user, dag_of(deployment, first), actor=ME)

    assert set(states(deployment, first, *others, *joined)) == {"cancelled"}


def test_tasks_cancelled_in_several_chunks_were_cancelled_together(
    deployment: Deployment, user: UserId
) -> None:
    root, *others = linked(deployment, user, MIDDLE + 2, *FAN)
    cancel_dag(deployment.app, user, dag_of(deployment, root), actor=ME)

    assert set(retry(deployment.app, user, root, actor=ME)) == {root, *others}


def test_a_running_task_keeps_its_grace_when_its_chunk_comes_late(
    deployment: Deployment, user: UserId
) -> None:
    root, *_ = linked(deployment, user, MIDDLE + 2, *FAN)
    begin(deployment, root)

    done = cancel_dag(deployment.app, user, dag_of(deployment, root), actor=ME)

    assert list(done.requested) == [root]
    first = deployment.one("SELECT min(cancel_requested_at) AS at FROM tasks")["at"]
    assert deployment.row(root)["cancel_requested_at"] > first


def test_a_retry_beyond_the_caps_revives_nothing(deployment: Deployment, user: UserId) -> None:
    root, *others = linked(deployment, user, MIDDLE + 2, *FAN)
    cancel_dag(deployment.app, user, dag_of(deployment, root), actor=ME)

    with pytest.raises(TooManyPending):
        retry_dag(
            deployment.app,
            user,
            dag_of(deployment, root),
            actor=ME,
            caps=Caps(max_pending_per_user=MIDDLE),
        )

    assert set(states(deployment, root, *others)) == {"cancelled"}


def test_a_submit_inserts_a_bounded_number_of_rows_per_statement(
    deployment: Deployment, user: UserId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All in one transaction; the limit on the time of a statement applies to each of them."""
    monkeypatch.setattr(submit_module, "INSERT_ROWS", CHUNK)
    sent: list[StatementCall] = []

    def record(tx: Connection, *calls: StatementCall) -> None:
        sent.extend(calls)
        execute_and_commit(tx, *calls)

    monkeypatch.setattr(submit_module, "execute_and_commit", record)
    root, *others = linked(deployment, user, MIDDLE + 2, *FAN)

    rows = [json.loads(str(call.params.get("tasks") or call.params["edges"])) for call in sent]
    assert max(map(len, rows)) == CHUNK
    assert sum(map(len, rows)) == MIDDLE + 2 + len(FAN)
    assert deployment.state(root) == "ready"
    assert set(states(deployment, *others)) == {"pending"}
    assert_invariants(deployment)


def _crash_after(chunks: int, point: str, module: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise Crash when a command passes this fault point the n-th time."""
    passed: list[str] = []

    def crash(name: str) -> None:
        passed.append(name)
        if name == point and passed.count(point) == chunks:
            raise Crash

    monkeypatch.setattr(module, "fault", crash)


@contextmanager
def _arrays_sent(db: Db) -> Iterator[list[tuple[str, int]]]:
    """Collect each named statement with the size of the longest array that it was given."""
    sent: list[tuple[str, int]] = []

    def record(
        _connection: Connection, _cursor: object, _sql: str, values: Any, context: Any, *_: object
    ) -> None:
        name = context.execution_options.get(PREPARED)
        if name is not None:
            arrays: list[Sequence[Any]] = [one for one in values.values() if isinstance(one, list)]
            sent.append((name, max((len(array) for array in arrays), default=0)))

    event.listen(db.engine, "before_cursor_execute", record)
    try:
        yield sent
    finally:
        event.remove(db.engine, "before_cursor_execute", record)


def _rows_of_plan(db: Db, name: str, **values: object) -> float:
    """Execute a statement, and return how many rows all steps of its plan have handled."""
    with db.engine.connect() as connection, connection.begin():
        sql = str(statement(name).compile(dialect=connection.dialect))
        numbered = number_placeholders(sql, list(values)).replace("%", "%%")
        connection.exec_driver_sql(f"PREPARE measured AS {numbered}")
        given = ", ".join(f":{parameter}" for parameter in values)
        explain = text(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE measured ({given})")
        [answer] = connection.execute(explain, values).scalar_one()
    return _rows_of_node(answer["Plan"])


def _rows_of_node(node: dict[str, Any]) -> float:
    dropped = ("Rows Removed by Filter", "Rows Removed by Join Filter")
    rows = node["Actual Rows"] + sum(node.get(name, 0) for name in dropped)
    below = sum(_rows_of_node(child) for child in node.get("Plans", ()))
    return float(rows * node["Actual Loops"] + below)
