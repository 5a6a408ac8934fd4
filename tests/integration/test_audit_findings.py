"""The audit refuses, repairs or reports every planted violation, once, and nothing else."""

import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import TypeVar
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from overnight_server.control.pauses import PauseSubject, pause, resume
from overnight_server.domain.audit_rules import AUDIT_RULES
from overnight_server.domain.ids import show_task
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.maintenance.audit import MAX_OPEN, PassBounds, audit, audit_all, audit_area
from overnight_server.maintenance.audit_checks import AREAS, CHECKS
from overnight_server.outcome.presence import WorkerDescription
from overnight_server.store.db import Db
from overnight_worker.presence import heartbeat_or_join
from tests.support.deployment import LIVENESS, Deployment
from tests.support.history import History, make_history, read_corruptions, without_constraints
from tests.support.rivals import Rival, wait_until_blocked
from tests.support.workers import working_deployment

T = TypeVar("T")
# The statements that the audit must notice, under the rule that must notice each.
PLANTS = {rule: sqls for rule, sqls in read_corruptions().items() if rule in AUDIT_RULES}
# The audit repairs violations of these rules, but not this one: nothing says when the night began.
NOT_REPAIRED = "UPDATE lanes SET night_started_at = NULL WHERE user_id = :user"


class OpenTransactionDb(Db):
    """A database whose transactions are parts of one that is rolled back in the end."""

    def __init__(self, tx: Connection) -> None:
        super().__init__(tx.engine)
        self.tx = tx

    def atomically(self, work: Callable[[Connection], T], **_options: bool) -> T:
        with self.tx.begin_nested():
            return work(self.tx)


@pytest.fixture
def history(deployment: Deployment) -> History:
    return make_history(deployment)


def test_every_rule_has_a_check_and_a_plant() -> None:
    repaired = {name for name, check in CHECKS.items() if check.repair is not None}

    assert CHECKS.keys() | {"queue_depth"} == AUDIT_RULES.keys()
    assert CHECKS.keys() == PLANTS.keys()
    assert repaired | {"queue_depth"} == {
        name for name, rule in AUDIT_RULES.items() if rule.is_repaired
    }
    assert sum(map(len, PLANTS.values())) > 20


def test_a_correct_history_yields_no_finding(history: History) -> None:
    dispatcher = history.deployment.dispatcher

    assert (audit_all(dispatcher), audit(dispatcher)) == (0, 0)
    assert history.deployment.rows("SELECT * FROM audit_findings") == []


@pytest.fixture(scope="module")
def unguarded(postgres: EmbeddedPostgres, template: str) -> Iterator[tuple[Db, History]]:
    """A database without constraints and its history; tests roll back what they change."""
    with working_deployment(postgres, template) as deployment:
        history = make_history(deployment)
        url = deployment.owner.engine.url.render_as_string(hide_password=False)
        with closing(without_constraints(postgres, url)) as db:
            yield db, history


@pytest.mark.parametrize("rule", sorted(PLANTS))
def test_every_planted_violation_is_repaired_or_reported_once(
    unguarded: tuple[Db, History], rule: str
) -> None:
    db, history = unguarded

    wrong = [
        f"{outcome} after {sql}"
        for sql in PLANTS[rule]
        if (outcome := _outcome(db, rule, sql, history)) != _expected(rule, sql)
    ]

    assert wrong == []


def _expected(rule: str, sql: str) -> str:
    return "repaired" if AUDIT_RULES[rule].is_repaired and sql != NOT_REPAIRED else "open"


def _outcome(db: Db, rule: str, sql: str, history: History) -> str:
    """Plant a violation, run the audit twice, and return what its finding says."""
    with _planted(db, sql, history) as tx:
        audited = OpenTransactionDb(tx)
        if audit_all(audited) == 0:
            return "not noticed"
        count = "SELECT count(*) FROM audit_findings"
        first = tx.execute(text(count)).scalar()
        # A repair may reveal another violation; what a person must do is not reported again.
        audit_all(audited)
        open_again = "SELECT check_name, subject FROM audit_findings WHERE ended_at IS NULL"
        rows = tx.execute(text(open_again)).all()
        if len(rows) != len(set(rows)) or tx.execute(text(count)).scalar() < first:
            return "reported twice"
        found = "SELECT status FROM audit_findings WHERE check_name = :rule ORDER BY id"
        statuses = tx.execute(text(found), {"rule": rule}).scalars().all()
        return statuses[0] if statuses else "noticed by other rules"


@contextmanager
def _planted(db: Db, sql: str, history: History) -> Iterator[Connection]:
    """Plant a violation past every trigger and constraint, and roll everything back afterwards."""
    with db.engine.connect() as tx, tx.begin() as transaction:
        tx.execute(text("SET LOCAL session_replication_role = replica"))
        assert tx.execute(text(sql), history.names).rowcount > 0, f"changes nothing: {sql}"
        tx.execute(text("SET LOCAL session_replication_role = origin"))
        tx.execute(text("SET LOCAL ROLE overnight_dispatcher"))
        yield tx
        transaction.rollback()


REFUSED = (
    "UPDATE tasks SET state = 'completed' WHERE id = :waiting",
    "UPDATE tasks SET token = NULL WHERE id = :running",
    "UPDATE tasks SET unmet = 1 WHERE id = :waiting",
    "UPDATE tasks SET unmet = -1 WHERE id = :blocked",
    "UPDATE tasks SET attempts = 99 WHERE id = :done",
    "UPDATE tasks SET state = 'ready' WHERE id = :done",
    "UPDATE tasks SET idempotency_key = 'twice' WHERE id IN (:done, :dead)",
    "UPDATE tasks SET reserved_usd = 1 WHERE id = :waiting",
    "UPDATE tasks SET awaits_budget = 'task' WHERE id = :waiting",
    "UPDATE lanes SET active = -1 WHERE user_id = :user",
    "UPDATE dags SET open = open + 1 WHERE user_id = :user",
    "UPDATE attempts SET ended_at = NULL WHERE task_id = :done",
    (
        "INSERT INTO usage_ledger (user_id, task_id, epoch, period_started_at, kind, seconds)"
        " SELECT user_id, task_id, epoch, period_started_at, kind, seconds FROM usage_ledger"
        " WHERE task_id = :done"
    ),
    (
        "INSERT INTO events (task_id, seq, user_id, dag_id, kind, to_state, epoch, actor)"
        " SELECT task_id, seq, user_id, dag_id, kind, to_state, epoch, actor FROM events"
        " WHERE task_id = :done"
    ),
    (
        "INSERT INTO attempts (task_id, epoch, user_id, token, pool, agent, granted_seconds)"
        " SELECT task_id, epoch, user_id, token, pool, agent, granted_seconds FROM attempts"
        " WHERE task_id = :done"
    ),
    (
        "INSERT INTO held_locks (user_id, key, task_id)"
        " VALUES (:user, 'k', :done), (:user, 'k', :dead)"
    ),
    (
        "INSERT INTO held_locks (user_id, key, task_id)"
        " VALUES (:user, 'path:src', :done), (:user, 'path:src/a', :dead)"
    ),
    (
        "INSERT INTO dead_letters"
        " (task_id, dag_id, user_id, fingerprint, failure_history, total_cost_usd)"
        " SELECT task_id, dag_id, user_id, fingerprint, '[]', 0 FROM dead_letters"
        " WHERE task_id = :dead"
    ),
    (
        "INSERT INTO task_edges (parent_id, child_id, dag_id, user_id)"
        " SELECT child_id, child_id, dag_id, user_id FROM task_edges WHERE child_id = :child"
    ),
    "DELETE FROM tasks WHERE id = :child",
)


def test_the_schema_itself_refuses_what_it_can(history: History) -> None:
    for sql in REFUSED:
        with pytest.raises(DBAPIError) as refused:
            history.deployment.run(sql, **history.names)

        # 23: the violation of a constraint.
        assert str(getattr(refused.value.orig, "pgcode", ""))[:2] == "23", sql


def test_a_finding_is_stored_and_logged_once(
    history: History, caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher = history.deployment.dispatcher
    orphan = _charge_for_no_task(history)

    with caplog.at_level(logging.ERROR):
        counts = [audit_all(dispatcher), audit_all(dispatcher), audit(dispatcher)]

    assert counts == [2, 0, 0]
    assert _statuses(history) == {("charges", "open"), ("owners", "open")}
    assert caplog.text.count(f"audit_finding rule=charges subject={show_task(orphan)}") == 1


def test_a_finding_ends_when_the_rows_agree_again(
    history: History, caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher = history.deployment.dispatcher
    orphan = _charge_for_no_task(history)
    audit_all(dispatcher)
    history.deployment.run("DELETE FROM usage_ledger WHERE task_id = :id", id=orphan)

    with caplog.at_level(logging.INFO):
        audit(dispatcher)

    # The lane still counted the seconds of the charge.
    assert _statuses(history) == {
        ("charges", "gone"),
        ("owners", "gone"),
        ("lane_counters", "repaired"),
    }
    assert f"audit_finding_gone rule=charges subject={show_task(orphan)}" in caplog.text


def test_ended_findings_are_deleted_after_their_time_and_open_ones_are_kept(
    history: History,
) -> None:
    deployment = history.deployment
    deployment.run("UPDATE lanes SET max_active = 999")
    _charge_for_no_task(history)
    audit_all(deployment.dispatcher)
    assert ("lane_limits", "repaired") in _statuses(history)
    deployment.move_clock(timedelta(days=31))

    audit(deployment.dispatcher, PassBounds(0), retention=timedelta(days=30))

    assert _statuses(history) == {("charges", "open"), ("owners", "open")}


def test_a_change_in_progress_is_confirmed_before_it_is_reported(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    """The row that the first look saw is right again once the lane's lock is free."""
    user = deployment.user()
    deployment.run("UPDATE lanes SET paused = true WHERE user_id = :id", id=user)
    auditor = Rival(connect, "auditor", audit_all)
    with deployment.owner.engine.begin() as tx:
        tx.execute(text("SELECT 1 FROM lanes WHERE user_id = :id FOR UPDATE"), {"id": user})
        auditor.start()
        wait_until_blocked(connect(role=None), "auditor")
        tx.execute(text("UPDATE lanes SET paused = false WHERE user_id = :id"), {"id": user})

    assert auditor.answer() == 0
    assert deployment.rows("SELECT * FROM audit_findings") == []


def test_two_audits_at_once_report_a_finding_once(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    user = deployment.user()
    deployment.run("UPDATE lanes SET paused = true WHERE user_id = :id", id=user)
    auditors = [Rival(connect, f"auditor-{number}", audit_all) for number in range(2)]
    with deployment.owner.engine.begin() as tx:
        tx.execute(text("SELECT 1 FROM lanes WHERE user_id = :id FOR UPDATE"), {"id": user})
        for number, auditor in enumerate(auditors):
            auditor.start()
            wait_until_blocked(connect(role=None), f"auditor-{number}")

    assert sorted(auditor.answer() for auditor in auditors) == [0, 1]
    assert len(deployment.rows("SELECT * FROM audit_findings")) == 1


def test_a_paused_pool_and_user_are_no_finding(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    for subject in (PauseSubject(user_id=user), PauseSubject(pool="default"), PauseSubject()):
        pause(deployment.app, subject, actor="human:test")
        assert audit_all(deployment.dispatcher) == 0
        resume(deployment.app, subject, actor="human:test")
        assert audit_all(deployment.dispatcher) == 0


def test_each_area_is_checked_in_slices_and_continues_where_it_stopped(history: History) -> None:
    [tasks] = [area for area in AREAS if area.name == "tasks"]
    history.deployment.run("UPDATE tasks SET run_cost_usd = 1 WHERE token IS NULL")
    broken = history.deployment.one("SELECT count(*) AS n FROM tasks WHERE run_cost_usd = 1")["n"]

    # The last slice is empty: it has what is about tasks after the last one.
    found = [
        audit_area(history.deployment.dispatcher, tasks, PassBounds(0, rows=1))
        for _ in range(len(history.tasks) + 1)
    ]

    assert (max(found), sum(found)) == (1, broken)
    [position] = history.deployment.rows("SELECT * FROM audit_positions WHERE area = 'tasks'")
    assert position["next_id"] is None
    assert position["round_ended_at"] is not None


def test_a_check_with_many_findings_adds_no_more(deployment: Deployment) -> None:
    deployment.run(
        "INSERT INTO stale_results (task_id, epoch, agent, outcome, result)"
        " SELECT gen_random_uuid(), 1, 'a', 'completed', '{}' FROM generate_series(1, :count)",
        count=MAX_OPEN + 5,
    )

    assert audit_all(deployment.dispatcher) == MAX_OPEN
    assert audit_all(deployment.dispatcher) == 0


def test_a_worker_whose_slots_were_changed_joins_again(deployment: Deployment) -> None:
    """Only the worker knows how many slots it has, so its heartbeat is the check."""
    description = WorkerDescription("w", "default", (), 3)
    heartbeat_or_join(deployment.dispatcher, description, liveness=LIVENESS)
    deployment.run("UPDATE agents SET slots = 999")

    heartbeat_or_join(deployment.dispatcher, description, liveness=LIVENESS)

    assert deployment.one("SELECT slots FROM agents")["slots"] == description.slots


def _charge_for_no_task(history: History) -> UUID:
    """Insert a charge for a task that does not exist, and return its id.

    The id is of a time to come: of an earlier one, retention may have deleted the task.
    """
    task_id = UUID(int=uuid4().int | 1 << 127)
    history.deployment.run(
        "INSERT INTO usage_ledger (user_id, task_id, epoch, period_started_at, kind, seconds)"
        " SELECT user_id, :task, 1, cycle_started_at, 'usage', 5 FROM lanes WHERE user_id = :user",
        task=task_id,
        user=history.names["user"],
    )
    return task_id


def _statuses(history: History) -> set[tuple[str, str]]:
    rows = history.deployment.rows("SELECT check_name, status FROM audit_findings")
    return {(row["check_name"], row["status"]) for row in rows}
