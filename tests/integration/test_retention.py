"""Rows that are older than they are kept are deleted, and what somebody still needs stays."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from overnight.errors import DagNotFound, InvalidRequest, TaskNotFound
from overnight.models.enums import PlanTier
from overnight_server.control.cancel import cancel
from overnight_server.control.fork import fork
from overnight_server.control.retry import retry
from overnight_server.domain.ids import DagId, TaskId, UserId, show_artifact, show_task
from overnight_server.domain.results import Raised, Returned
from overnight_server.domain.retention import (
    NOT_BY_AGE,
    RULES,
    TABLES_OF_TASKS,
    Rule,
    days_of_rules,
    parse_days,
)
from overnight_server.intake.join_graph import join_graph
from overnight_server.intake.new_graph import Edge, NewGraph, NewTask
from overnight_server.intake.submit import submit
from overnight_server.intake.triggers import add_trigger
from overnight_server.maintenance import task_retention
from overnight_server.maintenance.audit import audit_all
from overnight_server.maintenance.retention import delete_old_rows, prune
from overnight_server.outcome.artifacts import ArtifactCaps, NewArtifact, store_artifact
from overnight_server.store.db import Db
from overnight_server.store.statements import statement
from tests.support.deployment import LOOSE, Deployment
from tests.support.graphs import end, linked
from tests.support.rivals import Rival, queue_up

FATAL = Raised("auth_failure", "wrong key")
MONTHS = timedelta(days=91)
ME = "human:me"
DAYS = days_of_rules({})
BY_AGE = [rule for rule in RULES if rule.setting is None and rule.name != "tasks"]
Connect = Callable[..., Db]


@pytest.fixture
def user(deployment: Deployment) -> UserId:
    deployment.agent()
    return deployment.user()


def done(deployment: Deployment, user: UserId, **fields: object) -> TaskId:
    """Run one task to its end."""
    run = deployment.running(user, **fields)
    deployment.settle(run, Returned("result"))
    return run.claim.task_id


def prune_all(deployment: Deployment, days: Mapping[str, int | None] = DAYS) -> int:
    """Run one pass of the sweep; it must not leave rows that contradict each other."""
    deleted = delete_old_rows(deployment.dispatcher, days)
    assert audit_all(deployment.dispatcher) == 0
    return deleted


def tasks(deployment: Deployment) -> set[UUID]:
    return {row["id"] for row in deployment.rows("SELECT id FROM tasks")}


def count(deployment: Deployment, *tables: str) -> dict[str, int]:
    """Return the number of rows of tables."""
    return {table: deployment.one(f"SELECT count(*) AS n FROM {table}")["n"] for table in tables}


def test_every_table_has_a_rule_or_a_reason_why_it_does_not_grow(deployment: Deployment) -> None:
    rows = deployment.rows(
        "SELECT relname AS name FROM pg_class"
        " WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')"
        "   AND NOT relispartition"
    )
    by_rule = {rule.table for rule in RULES}

    assert {row["name"] for row in rows} == by_rule | TABLES_OF_TASKS | NOT_BY_AGE.keys()
    assert not by_rule & TABLES_OF_TASKS
    assert not (by_rule | TABLES_OF_TASKS) & NOT_BY_AGE.keys()


def test_the_rules_of_the_database_are_those_of_the_domain(deployment: Deployment) -> None:
    rows = deployment.rows("SELECT name, table_name FROM retention_rules")

    in_database = {(row["name"], row["table_name"]) for row in rows}
    assert in_database == {(rule.name, rule.table) for rule in BY_AGE}


@pytest.mark.parametrize(
    "rule", [rule for rule in RULES if rule.setting is None and rule.name != "tasks"]
)
def test_each_rule_finds_its_rows_by_an_index(deployment: Deployment, rule: Rule) -> None:
    sql = deployment.one("SELECT old_rows FROM retention_rules WHERE name = :n", n=rule.name)
    query = sql["old_rows"].replace("$1", "interval '90 days'").replace("$2", "500")
    with deployment.owner.engine.begin() as tx:
        tx.exec_driver_sql("SET LOCAL enable_seqscan = off")
        plan = "\n".join(row[0] for row in tx.exec_driver_sql(f"EXPLAIN {query}"))

    assert "Seq Scan" not in plan.replace("Seq Scan on lanes", "")


def test_an_ended_task_is_deleted_with_all_that_is_about_it(
    deployment: Deployment, user: UserId
) -> None:
    run = deployment.running(user)
    store_artifact(deployment.dispatcher, run.claim, NewArtifact("a", "text", b"x"), ArtifactCaps())
    deployment.settle(run, Returned("result", cost_usd=0.5))
    failed = deployment.running(user, max_attempts=1)
    deployment.settle(failed, Raised("error", "no"))
    open_task = deployment.task(user)
    deployment.move_clock(timedelta(days=89))
    assert prune_all(deployment) == 0
    deployment.move_clock(timedelta(days=2))

    assert prune_all(deployment) == 1
    assert prune_all(deployment) == 0

    # The dead letter is unresolved, and the ledger counts the hours of a month.
    assert tasks(deployment) == {failed.claim.task_id, open_task}
    assert count(deployment, "attempts", "artifacts", "spending", "dead_letters") == {
        "attempts": 1,
        "artifacts": 0,
        "spending": 0,
        "dead_letters": 1,
    }
    events = deployment.rows("SELECT DISTINCT task_id FROM events")
    assert {row["task_id"] for row in events} == {failed.claim.task_id, open_task}
    assert count(deployment, "usage_ledger") == {"usage_ledger": 2}


def test_a_graph_goes_as_a_whole_once_all_its_tasks_may_go(
    deployment: Deployment, user: UserId
) -> None:
    first, second = linked(deployment, user, 2, Edge(0, 1))
    end(deployment, first, Returned())
    end(deployment, second, FATAL)
    deployment.move_clock(MONTHS)

    assert prune_all(deployment) == 0
    deployment.agent()
    retry(deployment.app, user, second, actor=ME)
    end(deployment, second, Returned())
    deployment.move_clock(timedelta(days=89))
    assert prune_all(deployment) == 0
    deployment.move_clock(timedelta(days=2))

    prune_all(deployment)
    assert count(deployment, "tasks", "dags", "task_edges", "dag_events", "dead_letters") == {
        "tasks": 0,
        "dags": 0,
        "task_edges": 0,
        "dag_events": 0,
        "dead_letters": 0,
    }


def test_the_state_decides_before_the_plan_and_the_plan_before_the_rest(
    deployment: Deployment, user: UserId
) -> None:
    days = days_of_rules(parse_days(["tasks=60", "tasks.free=30", "tasks.cancelled=10"]))
    free = deployment.user(PlanTier.FREE)
    completed, of_free = done(deployment, user), done(deployment, free)
    cancelled = deployment.task(free)
    cancel(deployment.app, free, cancelled, actor=ME)

    left = []
    for at in (11, 20, 30):
        deployment.move_clock(timedelta(days=at))
        prune_all(deployment, days)
        left.append(tasks(deployment))

    assert left == [{completed, of_free}, {completed}, set()]


def test_what_an_open_task_reads_is_kept_until_it_has_completed(
    deployment: Deployment, user: UserId
) -> None:
    read = done(deployment, user)
    run = deployment.running(user)
    artifact = store_artifact(
        deployment.dispatcher, run.claim, NewArtifact("a", "text", b"x"), ArtifactCaps()
    )
    deployment.settle(run, Returned())
    reader = deployment.task(
        user, context_refs=[f"task:{show_task(read)}:output", f"artifact:{show_artifact(artifact)}"]
    )
    deployment.move_clock(MONTHS)
    assert prune_all(deployment) == 0

    deployment.agent()
    end(deployment, reader, Returned())

    assert prune_all(deployment) == 2
    assert tasks(deployment) == {reader}


def test_what_a_fork_has_copied_is_kept_as_long_as_the_fork(
    deployment: Deployment, user: UserId
) -> None:
    first, second = linked(deployment, user, 2, Edge(0, 1))
    end(deployment, first, Returned())
    end(deployment, second, Returned())
    forked = fork(deployment.app, user, second, LOOSE, actor=ME)
    deployment.move_clock(MONTHS)

    assert prune_all(deployment) == 0
    assert tasks(deployment) == {first, second, *forked.copies.values()}


def test_a_task_for_whose_end_a_graph_waits_is_kept(deployment: Deployment, user: UserId) -> None:
    task = done(deployment, user)
    add_trigger(
        deployment.app,
        user,
        DagId(task),
        NewGraph([NewTask("next", "echo")]),
        LOOSE,
        actor=ME,
    )
    deployment.move_clock(MONTHS)

    assert prune_all(deployment) == 0
    deployment.run("UPDATE dag_triggers SET dropped_at = clock()")
    assert prune_all(deployment) == 1
    assert count(deployment, "dag_triggers") == {"dag_triggers": 0}


def test_a_dry_run_counts_and_deletes_nothing(deployment: Deployment, user: UserId) -> None:
    done(deployment, user)
    first, second = linked(deployment, user, 2, Edge(0, 1))
    end(deployment, first, Returned())
    end(deployment, second, Returned())
    deployment.run(
        "INSERT INTO stale_results (task_id, epoch, agent, outcome, result)"
        " VALUES (gen_random_uuid(), 1, 'a', 'completed', '{}')"
    )
    deployment.move_clock(MONTHS)

    counted = prune(deployment.dispatcher, DAYS, is_dry_run=True)

    assert +counted.deleted == {"tasks": 3, "stale_results": 1}
    assert len(tasks(deployment)) == 3
    assert delete_old_rows(deployment.dispatcher, DAYS) == 4


def test_a_pass_ends_and_the_next_one_goes_on_where_it_stopped(
    deployment: Deployment, user: UserId, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        done(deployment, user)
    letters = [deployment.running(user, max_attempts=1) for _ in range(2)]
    for run in letters:
        deployment.settle(run, Raised("error", "no"))
    done(deployment, user)
    deployment.move_clock(MONTHS)
    monkeypatch.setattr("overnight_server.store.pass_limit.PASS_SECONDS", 0.0)
    monkeypatch.setattr(task_retention, "BATCH", 2)

    left = []
    for _ in range(60):
        delete_old_rows(deployment.dispatcher, DAYS)
        left.append(len(tasks(deployment)))

    # What is kept does not keep a pass from reaching what lies behind it.
    assert sorted(set(left), reverse=True) == [6, 4, 3, 2]


def test_what_others_have_locked_is_left_to_a_later_pass(
    deployment: Deployment, user: UserId, connect: Connect
) -> None:
    locked, free = done(deployment, user), done(deployment, user)
    deployment.move_clock(MONTHS)

    with connect("holder").engine.begin() as tx:
        tx.exec_driver_sql("SELECT FROM lanes FOR UPDATE")
        tx.exec_driver_sql(f"SELECT FROM tasks WHERE id = '{locked}' FOR KEY SHARE")
        assert delete_old_rows(deployment.dispatcher, DAYS) == 1

    assert tasks(deployment) == {locked}
    assert prune_all(deployment) == 1
    assert free not in tasks(deployment)


class Paused:
    """A transaction that deletes tasks and is not committed yet."""

    def __init__(self, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
        self.connect = connect
        self.rivals: list[Rival] = []
        self.monkeypatch = monkeypatch

    def meet(self, deployment: Deployment, *rivals: Rival) -> int:
        """Let the rivals wait for the transaction after it has locked and checked its tasks."""
        delete = task_retention._in_use

        def delete_and_wait(tx: Connection, locked: Any) -> Any:
            kept = delete(tx, locked)
            if locked and not self.rivals:
                self.rivals.extend(rivals)
                queue_up(self.connect, rivals)
            return kept

        self.monkeypatch.setattr(task_retention, "_in_use", delete_and_wait)
        return delete_old_rows(deployment.dispatcher, DAYS)


@pytest.fixture
def paused(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> Paused:
    return Paused(connect, monkeypatch)


def test_a_retry_that_waits_for_the_deletion_finds_no_task(
    deployment: Deployment, user: UserId, connect: Connect, paused: Paused
) -> None:
    task = deployment.task(user)
    cancel(deployment.app, user, task, actor=ME)
    deployment.move_clock(MONTHS)
    late = Rival(connect, "late", retry, user, task, actor=ME)

    assert paused.meet(deployment, late) == 1

    with pytest.raises(TaskNotFound):
        late.answer()
    assert tasks(deployment) == set()
    assert audit_all(deployment.dispatcher) == 0


def test_a_retry_that_comes_first_keeps_the_task(
    deployment: Deployment, user: UserId, connect: Connect
) -> None:
    task = deployment.task(user)
    cancel(deployment.app, user, task, actor=ME)
    deployment.move_clock(MONTHS)

    with connect("retry").engine.begin() as tx:
        tx.execute(statement("task_to_revive"), {"task_id": task})
        assert delete_old_rows(deployment.dispatcher, DAYS) == 0
    assert tasks(deployment) == {task}


def test_a_task_that_refers_to_one_which_is_being_deleted_is_refused(
    deployment: Deployment, user: UserId, connect: Connect, paused: Paused
) -> None:
    task = done(deployment, user)
    deployment.move_clock(MONTHS)
    reader = NewTask("reader", "echo", context_refs=[f"task:{show_task(task)}:output"])
    late = Rival(connect, "late", submit, user, reader, LOOSE)

    assert paused.meet(deployment, late) == 1

    with pytest.raises(InvalidRequest, match="there is no task"):
        late.answer()


@pytest.mark.parametrize("size", [1, 2])
def test_a_task_that_joins_a_graph_which_is_being_deleted_is_refused(
    deployment: Deployment, user: UserId, connect: Connect, paused: Paused, size: int
) -> None:
    members = linked(deployment, user, size)
    for member in members:
        end(deployment, member, Returned())
    dag_id = deployment.row(members[0])["dag_id"]
    deployment.move_clock(MONTHS)
    late = Rival(connect, "late", join_graph, user, dag_id, NewTask("more", "echo"), LOOSE)

    assert paused.meet(deployment, late) == size

    with pytest.raises(DagNotFound):
        late.answer()
    assert audit_all(deployment.dispatcher) == 0


def test_a_fork_of_a_graph_which_is_being_deleted_is_refused(
    deployment: Deployment, user: UserId, connect: Connect, paused: Paused
) -> None:
    first, second = linked(deployment, user, 2, Edge(0, 1))
    end(deployment, first, Returned())
    end(deployment, second, Returned())
    deployment.move_clock(MONTHS)
    late = Rival(connect, "late", fork, user, second, LOOSE, actor=ME)

    assert paused.meet(deployment, late) == 2

    with pytest.raises(TaskNotFound):
        late.answer()


def test_a_claim_waits_for_no_deletion(
    deployment: Deployment, user: UserId, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(deployment, user)
    waiting = deployment.task(user)
    deployment.move_clock(MONTHS)
    deployment.agent()
    claimed = []
    check = task_retention._in_use

    def check_and_claim(tx: Connection, locked: Any) -> Any:
        if locked:
            claimed.extend(deployment.claim().claims)
            run = deployment.start(claimed[0])
            assert run is not None
            assert deployment.settle(run, Returned())
        return check(tx, locked)

    monkeypatch.setattr(task_retention, "_in_use", check_and_claim)

    assert delete_old_rows(deployment.dispatcher, DAYS) == 1
    assert [one.claim.task_id for one in claimed] == [waiting]
    assert deployment.state(waiting) == "completed"


def test_no_process_may_delete_a_task_that_has_not_ended(
    deployment: Deployment, user: UserId
) -> None:
    task = deployment.task(user)

    with pytest.raises(IntegrityError, match="only ended tasks"):
        deployment.dispatcher.atomically(
            lambda tx: tx.execute(statement("delete_tasks"), {"tasks": [task]})
        )


def test_rows_of_an_open_billing_month_stay(deployment: Deployment, user: UserId) -> None:
    done(deployment, user)
    deployment.run(
        "INSERT INTO notices (user_id, kind, subject) VALUES (:u, 'usage.50', 'x')", u=user
    )
    days = {**DAYS, "ledger": 62, "notices": 1}
    deployment.move_clock(timedelta(days=100))
    delete_old_rows(deployment.dispatcher, days)
    assert count(deployment, "tasks", "usage_ledger", "notices") == {
        "tasks": 0,
        "usage_ledger": 1,
        "notices": 1,
    }

    deployment.run("UPDATE lanes SET cycle_started_at = clock() - interval '1 day'")

    assert delete_old_rows(deployment.dispatcher, days) == 2
    assert count(deployment, "usage_ledger", "notices") == {"usage_ledger": 0, "notices": 0}


def test_deliveries_go_before_their_notification_and_open_ones_stay(
    deployment: Deployment, user: UserId
) -> None:
    deployment.run(
        "INSERT INTO notification_channels (user_id, name, kind, address, full_address, subscribed)"
        " VALUES (:u, 'a', 'slack', 'x', 'x', '{task.dead_lettered}'),"
        "        (:u, 'b', 'slack', 'x', 'x', '{task.dead_lettered}')",
        u=user,
    )
    record = "SELECT record_notification(:u, 'task.dead_lettered', :s, NULL, NULL, '{}')"
    for subject in ("one", "two"):
        deployment.one(record, u=user, s=subject)
    deployment.run(
        "UPDATE notification_deliveries SET state = 'delivered', ended_at = clock()"
        " WHERE id <> (SELECT max(id) FROM notification_deliveries)"
    )
    deployment.move_clock(timedelta(days=31))

    assert delete_old_rows(deployment.dispatcher, DAYS) == 4

    assert count(deployment, "notifications", "notification_deliveries") == {
        "notifications": 1,
        "notification_deliveries": 1,
    }


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("tusks=3", "is no rule"),
        ("tasks", "needs 1 to"),
        ("tasks=0", "needs 1 to"),
        ("ledger=5", "needs 62 to"),
        ("logs=5", "is no rule"),
        ("tasks.gold=5", "is no rule"),
    ],
)
def test_an_entry_that_makes_no_sense_is_refused_by_name(entry: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_days([entry])
