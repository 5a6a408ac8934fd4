"""Hot statements on a full database: each finds its rows through an index, none scans all rows."""

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg2
import pytest
from sqlalchemy import Connection, TextClause, text
from sqlalchemy.exc import ProgrammingError

from overnight.models.enums import PlanTier
from overnight_server.domain.lifecycle import ACTIVE, ALIASES, FINAL, WAITING, State, legal_moves
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.store import statements
from overnight_server.store.db import Db
from overnight_server.store.statements import PREPARED, number_placeholders, sources, statement
from tests.rules.sources import modules, read

# A value for each parameter that `_values` does not name.
VALUES_BY_TYPE = {
    "bigint": 10,
    "bigint[]": [10],
    "boolean": False,
    "boolean[]": [False],
    "bytea": b"x",
    "date": date(2026, 11, 16),
    "double precision": 1.0,
    "integer": 10,
    "integer[]": [10],
    "interval": timedelta(days=1),
    "json": "{}",
    "jsonb": "{}",
    "numeric": 1,
    "smallint": 10,
    "text": "a word",
    "text[]": ["a word"],
    "time without time zone": time(22),
    "timestamp with time zone": datetime(2026, 11, 16, tzinfo=UTC),
    "timestamp with time zone[]": [datetime(2026, 11, 16, tzinfo=UTC)],
    "uuid": uuid4(),
    "uuid[]": [uuid4()],
}
USERS = 100
TASKS = 6_000
FILLED = "filled_for_plans"
# A deployment after some months: mostly done, a long queue, a few running and waiting for a retry.
FILL = f"""
    SELECT add_partition(name, day, day + interval '5 days')
      FROM unnest(ARRAY['events', 'log_chunks']) name
     CROSS JOIN generate_series(date_trunc('day', clock()), clock() + interval '80 days',
                                interval '5 days') day;

    INSERT INTO users (id, name, plan_tier, max_concurrent_agents)
    SELECT gen_random_uuid(), 'user ' || n, 'team', 10 FROM generate_series(1, {USERS}) n;

    INSERT INTO dags (id, user_id, title, created_by)
    SELECT gen_random_uuid(), u.id, 'd', 'test'
      FROM users u CROSS JOIN generate_series(1, {TASKS // USERS});

    INSERT INTO tasks (id, user_id, dag_id, type, title, created_by, state, sort_key,
                       idempotency_key, token, claimed_by, pool, claimed_at, expires_at,
                       reserved_seconds, started_at, retry_at, finished_at, unmet, epoch,
                       deadline_at)
    SELECT gen_random_uuid(), user_id, id, 'echo', 't', 'test', state, n, 'key ' || n,
           CASE WHEN is_active(state) THEN gen_random_uuid() END,
           CASE WHEN is_active(state) THEN 'worker' END,
           CASE WHEN is_active(state) THEN 'default' END,
           CASE WHEN is_active(state) THEN clock() END,
           CASE WHEN is_active(state) THEN clock() END,
           CASE WHEN is_active(state) THEN 60 END,
           CASE WHEN state = 'running' THEN clock() END,
           CASE WHEN state = 'retrying' THEN clock() + n * interval '1 second' END,
           CASE WHEN state IN ('completed', 'dead_lettered') THEN clock() END,
           (state = 'pending')::int, 1,
           CASE WHEN n % 7 = 0 THEN clock() + n * interval '1 minute' END
      FROM (SELECT *, row_number() OVER () AS n,
                   CASE WHEN row_number() OVER () % 100 < 1 THEN 'running'
                        WHEN row_number() OVER () % 100 < 2 THEN 'claimed'
                        WHEN row_number() OVER () % 100 < 4 THEN 'retrying'
                        WHEN row_number() OVER () % 100 < 5 THEN 'dead_lettered'
                        WHEN row_number() OVER () % 100 < 15 THEN 'pending'
                        WHEN row_number() OVER () % 100 < 55 THEN 'ready'
                        ELSE 'completed' END AS state
              FROM dags) g;

    INSERT INTO attempts (task_id, epoch, user_id, token, pool, agent, granted_seconds)
    SELECT id, epoch, user_id, gen_random_uuid(), 'default', 'worker', 60 FROM tasks;

    INSERT INTO task_edges (parent_id, child_id, dag_id, user_id)
    SELECT id, next_id, dag_id, user_id
      FROM (SELECT *, lead(id) OVER (ORDER BY id) AS next_id FROM tasks) t
     WHERE next_id IS NOT NULL;

    INSERT INTO usage_ledger (user_id, task_id, epoch, period_started_at, kind, seconds)
    SELECT t.user_id, t.id, 1, l.cycle_started_at, 'usage', 1
      FROM tasks t JOIN lanes l USING (user_id) WHERE t.state = 'completed';

    INSERT INTO dead_letters
           (task_id, dag_id, user_id, fingerprint, failure_history, total_cost_usd)
    SELECT id, dag_id, user_id, 'f', '[]', 0 FROM tasks WHERE state = 'dead_lettered';

    INSERT INTO pools (name) VALUES ('default');
    INSERT INTO agents (id, pool, slots) VALUES ('worker', 'default', 100);
    INSERT INTO agents (id, pool, slots, status, last_heartbeat_at)
    SELECT 'gone ' || n, 'default', 1, 'offline', clock() - interval '2 days'
      FROM generate_series(1, 1000) n;
"""

# A new deployment: a single user, one large graph, no run yet.
YOUNG = f"""
    INSERT INTO users (id, name, plan_tier, max_concurrent_agents)
    VALUES (gen_random_uuid(), 'the first', 'team', 10);

    INSERT INTO dags (id, user_id, title, created_by)
    SELECT gen_random_uuid(), id, 'd', 'test' FROM users;

    INSERT INTO tasks (id, user_id, dag_id, type, title, created_by, state, sort_key, unmet, epoch)
    SELECT gen_random_uuid(), user_id, id, 'echo', 't', 'test', 'ready', n, 0, 0
      FROM dags CROSS JOIN generate_series(1, {TASKS}) n;
"""
# Every queue starts with many tasks that wait for one lock.
BLOCKED = 2_000
BLOCKED_QUEUE = f"""
    WITH blocked AS (
        INSERT INTO tasks (id, user_id, dag_id, type, title, created_by, state, sort_key, locks)
        SELECT id, user_id, id, 'echo', 't', 'test', 'ready', -n, '{{k}}'
          FROM (SELECT gen_random_uuid() AS id, user_id, n
                  FROM (SELECT user_id FROM lanes LIMIT 5) l
                 CROSS JOIN generate_series(1, {BLOCKED // 5}) n) new
    )
    INSERT INTO held_locks (user_id, key, task_id)
    SELECT user_id, 'k', gen_random_uuid() FROM (SELECT user_id FROM lanes LIMIT 5) l
"""
# The tables that only grow.
HISTORY = {"tasks", "attempts", "task_edges", "events", "usage_ledger"}

# Tables and indexes of partitions, with those of the whole table.
PARTITIONS = """
    SELECT part.relname AS part, whole.relname AS whole
      FROM pg_inherits i
      JOIN pg_class part ON part.oid = i.inhrelid
      JOIN pg_class whole ON whole.oid = i.inhparent
"""

# Statements of the audit about few rows.
NO_SLICE = {"audit_position", "audit_pool_pauses"}


@pytest.fixture(scope="module")
def filled(postgres: EmbeddedPostgres, template: str) -> Iterator[Db]:
    """A database with thousands of rows, made once for all plans."""
    yield from _made(postgres, template, FILLED, FILL)


@pytest.fixture(scope="module")
def young(postgres: EmbeddedPostgres, template: str) -> Iterator[Db]:
    """A database with statistics from its first evening, before the tables have grown."""
    yield from _made(postgres, template, "young_for_plans", YOUNG)


def _made(postgres: EmbeddedPostgres, template: str, name: str, rows: str) -> Iterator[Db]:
    _as_superuser(postgres, f"CREATE DATABASE {name} TEMPLATE {template} OWNER overnight")
    db = Db.connect(postgres.url(name), role="overnight_owner")
    with db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for step in rows.strip().removesuffix(";").split(";\n"):
            connection.execute(text(step))
            # foreign keys are checked by plans that must know how large the tables have grown
            connection.execute(text("ANALYZE"))
        connection.execute(text("VACUUM"))
    yield db
    db.close()
    _as_superuser(postgres, f"DROP DATABASE {name} WITH (FORCE)")


def _as_superuser(postgres: EmbeddedPostgres, command: str) -> None:
    connection = psycopg2.connect(postgres.superuser_url)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(command)
    connection.close()


@pytest.mark.parametrize(
    ("name", "indexes"),
    [
        ("lock_lanes", {"lanes_pkey"}),
        ("lock_lanes_in_fair_order", {"lanes_pick"}),
        ("has_more_lanes", {"lanes_pick"}),
        ("audit_lane_counters", {"lanes_pkey", "tasks_open", "usage_ledger_user_period"}),
        ("audit_lane_limits", {"lanes_pkey", "users_pkey"}),
        ("audit_leaked_locks", {"held_locks_pkey", "tasks_user_recent"}),
        ("audit_graph_counters", {"dags_pkey", "tasks_dag"}),
        ("audit_edges_of_graphs", {"dags_pkey", "tasks_dag", "task_edges_child"}),
        ("audit_claims", {"tasks_pkey", "attempts_pkey"}),
        ("audit_edges", {"task_edges_child", "tasks_pkey", "events_pkey"}),
        ("audit_events", {"events_pkey", "tasks_pkey"}),
        ("audit_dead_letters", {"tasks_pkey", "dead_letters_task", "events_pkey"}),
        ("audit_charges", {"attempts_pkey", "usage_ledger_once"}),
        ("lock_due_lanes", {"lanes_due"}),
        ("start_billing_cycles", {"usage_ledger_user_period"}),
        (
            "pool_capacity",
            {"tasks_active", "lanes_due", "pauses_in_force", "agents_online"},
        ),
        (
            "read_pool_and_lock_lanes",
            {"tasks_active", "lanes_due", "pauses_in_force", "lanes_pick"},
        ),
        ("prepare_idle_claim", {"tasks_active", "pauses_in_force", "lanes_pick", "agents_pkey"}),
        ("claim", {"tasks_ready", "tasks_pkey", "lanes_pkey", "held_locks_pkey"}),
        ("claim_single", {"tasks_ready", "tasks_pkey", "lanes_pkey", "held_locks_pkey"}),
        ("claims_by_token", {"tasks_active"}),
        ("start", {"tasks_pkey", "attempts_pkey"}),
        ("heartbeat", {"tasks_pkey"}),
        ("settle", {"tasks_pkey", "attempts_pkey", "users_pkey"}),
        ("resolve_dependents", {"task_edges_pkey", "tasks_pkey"}),
        ("cancel_spawned", {"tasks_spawned", "tasks_pkey", "attempts_pkey"}),
        ("referred_tasks", {"tasks_user_recent", "tasks_dag"}),
        ("lock_claimed_task", {"tasks_pkey"}),
        ("find_spawned", {"tasks_spawned"}),
        ("spawn_counts", {"tasks_pkey", "tasks_spawned", "dags_pkey"}),
        ("add_edges", {"tasks_pkey"}),
        ("dependency_boosts_of_graph", {"tasks_dag"}),
        ("update_dependency_boosts", {"tasks_pkey"}),
        ("tasks_reached_from", {"task_edges_pkey"}),
        ("children_of", {"tasks_spawned"}),
        ("write_log_chunks", {"tasks_pkey"}),
        ("read_log", {"log_chunks_pkey"}),
        ("artifact_limits", {"tasks_pkey"}),
        ("referred_by_open_tasks", {"tasks_open"}),
        ("inputs_of", {"task_edges_child", "tasks_pkey"}),
        ("expired_claims", {"tasks_active"}),
        ("overdue_runs", {"tasks_active"}),
        ("runs_of_dead_workers", {"tasks_active"}),
        ("due_tasks", {"tasks_retry", "tasks_start"}),
        ("passed_deadlines", {"tasks_deadline"}),
        ("near_deadlines", {"tasks_deadline"}),
        ("ready_page", {"tasks_ready"}),
        ("dead_letter_passed", {"tasks_pkey"}),
        ("raise_deadline_priority", {"tasks_pkey"}),
        ("view_agents", {"tasks_active"}),
        ("promote", {"tasks_pkey"}),
        ("find_by_idempotency_keys", {"tasks_idempotency"}),
        ("cancel", {"tasks_pkey", "attempts_pkey"}),
        ("request_cancel", {"tasks_pkey"}),
        ("tasks_to_revive", {"tasks_pkey", "task_edges_pkey", "task_edges_child"}),
        ("reopen_edges", {"tasks_pkey", "task_edges_child"}),
        ("view_task", {"tasks_user_recent", "tasks_ready"}),
        ("view_entries", {"tasks_ready", "tasks_user_recent", "tasks_pkey"}),
        ("oldest_entry", {"tasks_ready"}),
        ("view_attempts", {"attempts_pkey"}),
        ("lock_task", {"tasks_user_recent"}),
        ("edit_task", {"tasks_user_recent"}),
        ("view_tasks", {"tasks_user_recent", "tasks_ready"}),
        ("find_dag_by_idempotency_key", {"dags_idempotency"}),
        ("view_dag", {"dags_user", "tasks_user_recent"}),
        ("view_dags", {"dags_user"}),
        ("view_dag_tasks", {"tasks_dag"}),
        ("view_dag_edges", {"tasks_dag", "task_edges_child"}),
        (
            "due_deliveries_of_channel",
            {"notification_deliveries_due", "notification_deliveries_thread"},
        ),
        ("sending_of_channel", {"notification_deliveries_sending"}),
        ("next_of_threads", {"notification_deliveries_thread"}),
        ("finish_deliveries", {"notification_deliveries_pkey"}),
        ("give_up_deliveries", {"notification_deliveries_given_up"}),
        ("due_reports", {"report_times_due"}),
        ("view_limits", {"users_pkey", "lanes_pkey"}),
        ("view_locks", {"tasks_ready", "tasks_pkey"}),
        ("view_active", {"tasks_active"}),
        ("view_urgent", {"tasks_urgent"}),
        ("stale_locks", {"tasks_active"}),
        ("lock_holder", {"tasks_user_recent"}),
        ("forecast_active", {"tasks_active"}),
        ("forecast_ready", {"tasks_ready", "lanes_pkey"}),
        ("forecast_later", {"tasks_retry", "tasks_start"}),
        ("forecast_pending", {"tasks_dag"}),
        ("forecast_edges", {"task_edges_child"}),
        ("forecast_task", {"tasks_user_recent"}),
        ("explain_tasks", {"tasks_user_recent", "tasks_ready", "lanes_pkey", "users_pkey"}),
        ("explain_next_task", {"tasks_ready", "lanes_pkey", "users_pkey"}),
        ("explain_parents", {"task_edges_child", "tasks_pkey"}),
        ("explain_locks", {"held_locks_pkey", "tasks_pkey"}),
        ("explain_pools", {"pools_pkey", "agents_online", "agents_pull_pool"}),
        ("forecast_pools", {"agents_online"}),
        ("silent_agents", {"agents_online"}),
        ("lanes_in_fair_order", {"lanes_pick"}),
        ("next_pass", {"tasks_ready", "tasks_pkey", "lanes_pkey", "held_locks_pkey"}),
        ("waiting_now", {"tasks_ready"}),
        ("starving_lanes", {"tasks_ready", "lanes_pick", "tasks_active"}),
        ("inbox_heads", {"inbox_waiting"}),
        ("read_inbox", {"inbox_waiting"}),
        ("bulk_chunk_newest_first", {"tasks_user_recent", "events_pkey"}),
        ("bulk_chunk_oldest_first", {"tasks_user_recent", "events_pkey"}),
        ("running_bulks", {"bulk_operations_running"}),
        ("due_schedules", {"schedules_due"}),
        ("schedules_with_turn", {"schedule_fires_waiting", "schedules_pkey", "tasks_dag"}),
        ("close_ended_fires", {"schedule_fires_open", "tasks_dag"}),
        ("open_runs", {"schedule_fires_open", "tasks_dag"}),
        ("view_jobs", {"schedules_name", "schedule_fires_pkey"}),
        ("events_of_user", {"events_user"}),
        ("events_of_task", {"tasks_user_recent", "events_pkey"}),
        ("events_of_dag", {"tasks_dag", "events_pkey"}),
        ("last_event_of_task", {"tasks_user_recent", "events_pkey"}),
        ("last_event_of_dag", {"tasks_dag", "events_pkey"}),
    ],
)
def test_a_hot_statement_uses_its_index(filled: Db, name: str, indexes: set[str]) -> None:
    nodes = _plan(filled, name)

    used = {node["Index Name"] for node in nodes if "Index Name" in node}
    scanned = {node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan"}
    assert used >= indexes, used
    assert not scanned & HISTORY


@pytest.mark.parametrize(
    ("name", "indexes"),
    [
        ("claim", {"tasks_ready", "tasks_ready_by_locks", "tasks_pkey"}),
        ("claim_single", {"tasks_ready", "tasks_ready_by_locks", "tasks_pkey"}),
        ("start", {"tasks_pkey", "attempts_pkey"}),
        ("heartbeat", {"tasks_active"}),
        ("settle", {"tasks_pkey", "attempts_pkey", "task_edges_pkey"}),
        ("resolve_dependents", {"tasks_pkey", "task_edges_pkey"}),
        ("cancel", {"tasks_pkey", "tasks_user_recent", "attempts_pkey"}),
        ("tasks_to_revive", {"tasks_pkey", "task_edges_pkey", "task_edges_child"}),
    ],
)
def test_an_empty_deployment_already_uses_indexes_for_large_tables(
    young: Db, name: str, indexes: set[str]
) -> None:
    """A plan stays until the next statistics, so it must suit the rows added meanwhile."""
    nodes = [node for node in _plan(young, name) if node.get("Relation Name") in HISTORY]

    used = {node["Index Name"] for node in nodes if "Index Name" in node}
    scanned = {node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan"}
    assert used <= indexes, used
    assert not scanned


def test_the_gate_reads_a_handful_of_rows_of_a_long_queue(filled: Db) -> None:
    with filled.engine.connect() as connection, connection.begin() as transaction:
        nodes = _explain(connection, "claim", "ANALYZE, ")
        transaction.rollback()

    assert 0 < _rows_read(nodes, "tasks_ready") < TASKS * 0.4 / 20


def test_the_gate_passes_over_tasks_that_wait_for_a_held_lock(filled: Db) -> None:
    with filled.engine.connect() as connection, connection.begin() as transaction:
        connection.execute(text(BLOCKED_QUEUE))
        nodes = _explain(connection, "claim", "ANALYZE, ")
        transaction.rollback()

    # It looks at the first tasks to see that they wait, and then at the other groups.
    assert 0 < _rows_read(nodes, "tasks_ready") < BLOCKED / 2
    assert 0 < _rows_read(nodes, "tasks_ready_by_locks") < BLOCKED / 10


def test_the_gate_passes_over_lanes_that_the_pool_skips(filled: Db) -> None:
    with filled.engine.connect() as connection, connection.begin() as transaction:
        skip = "UPDATE lanes SET skipped_by_pools = '{a word}' WHERE user_id > :user"
        [user, *_] = sorted(connection.execute(text("SELECT user_id FROM lanes")).scalars())
        connection.execute(text(skip), {"user": user})
        nodes = _explain(connection, "lock_lanes_in_fair_order", "ANALYZE, ")
        transaction.rollback()

    # The lane that is left, and one lane of each set of skipping pools.
    assert 0 < _rows_read(nodes, "lanes_pick") <= 5


@pytest.mark.parametrize(
    ("name", "limits"), [("has_more_lanes", {}), ("lock_lanes_in_fair_order", {"min_lanes": "1"})]
)
def test_the_fair_order_is_read_from_its_index_without_a_sort(
    filled: Db, name: str, limits: dict[str, str]
) -> None:
    with filled.engine.connect() as connection, connection.begin() as transaction:
        nodes = _explain(connection, name, "ANALYZE, ", **limits)
        transaction.rollback()

    # Row-level security, which applies to the dispatcher too, must not hide the order of the index.
    assert 0 < _rows_read(nodes, "lanes_pick") < USERS / 4


def test_reading_the_next_pass_touches_a_handful_of_rows(filled: Db) -> None:
    with filled.engine.connect() as connection, connection.begin():
        nodes = _explain(connection, "next_pass", "ANALYZE, ")

    assert 0 < _rows_read(nodes, "tasks_ready") < TASKS * 0.4 / 20
    assert not [node for node in nodes if node["Node Type"] in {"ModifyTable", "LockRows"}]


@pytest.mark.parametrize("name", ["count_starts", "starts_since"])
def test_a_report_on_a_period_reads_no_more_than_the_period(filled: Db, name: str) -> None:
    with filled.engine.connect() as connection, connection.begin():
        connection.execute(text("SET LOCAL enable_bitmapscan = on"))
        used = {node.get("Index Name") for node in _explain(connection, name)}

    # Among few users, Postgres 18 may skip from user to user in the other index.
    assert used & {"attempts_claimed", "attempts_user"}


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("life_user_runs", "attempts_user"),
        ("life_locks", "attempts_user"),
        ("life_lane", "lane_history_user"),
        ("life_graph_holds", "holds_subject"),
        ("life_ledger", "usage_ledger_user_period"),
        ("night_ends", "tasks_ended"),
        ("night_left", "tasks_ended"),
        ("night_money", "spending_night"),
        ("night_tasks", "tasks_ended"),
    ],
)
def test_the_history_and_the_night_read_the_rows_of_one_user(
    filled: Db, name: str, index: str
) -> None:
    with filled.engine.connect() as connection, connection.begin():
        connection.execute(text("SET LOCAL enable_bitmapscan = on"))
        nodes = _explain(connection, name)

    assert index in {node.get("Index Name") for node in nodes}
    assert not {node.get("Relation Name") for node in nodes if node["Node Type"] == "Seq Scan"} & {
        "tasks",
        "attempts",
        "events",
    }


@pytest.mark.parametrize(
    ("criteria", "index"),
    [
        ({"of_dag": "(SELECT dag_id FROM tasks WHERE dag_id <> id LIMIT 1)"}, "tasks_dag"),
        ({"ended_from": "clock() + interval '1 day'"}, "tasks_ended"),
    ],
)
def test_a_list_by_graph_or_by_end_reads_an_index_of_its_own(
    filled: Db, criteria: dict[str, str], index: str
) -> None:
    with filled.engine.connect() as connection, connection.begin():
        values = {
            name: connection.execute(text(f"SELECT {sql}")).scalar_one()
            for name, sql in criteria.items()
        }
        nodes = _explain(connection, "view_tasks", **values)

    assert index in {node.get("Index Name") for node in nodes}


@pytest.mark.parametrize(
    "name", sorted(name for name in sources() if name.startswith("audit_") and name not in NO_SLICE)
)
def test_a_check_of_the_audit_reads_no_more_than_its_slice(filled: Db, name: str) -> None:
    scanned = {
        node["Relation Name"] for node in _plan(filled, name) if node["Node Type"] == "Seq Scan"
    }

    assert not scanned & (HISTORY | {"lanes", "users", "dags", "spending", "dead_letters"})


@pytest.mark.parametrize("name", sorted(sources()))
def test_every_statement_is_valid_sql(filled: Db, name: str) -> None:
    """Postgres accepts every statement, and this test has a value for each parameter."""
    assert _plan(filled, name)


def _rows_read(nodes: list[dict[str, Any]], index: str) -> float:
    """Return how many rows an analyzed plan read through an index, those it dropped included."""
    return sum(
        (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        for node in nodes
        if node.get("Index Name") == index
    )


def _plan(db: Db, name: str) -> list[dict[str, Any]]:
    with db.engine.connect() as connection, connection.begin():
        return _explain(connection, name)


def _explain(
    connection: Connection, name: str, options: str = "", **other_values: object
) -> list[dict[str, Any]]:
    values = _values(connection) | other_values
    if name in {"insert_tasks", "insert_tasks_if_within_limits"}:
        values["tasks"] = values["policies"] = "[]"  # rows here, ids everywhere else
    clause = statement(name)
    by_type = _values_by_type(connection, clause)
    arguments = {
        name: values[name]
        if name in other_values
        or (name in values and (name not in by_type or _fits(values[name], by_type[name])))
        else by_type[name]
        for name in clause._bindparams
    }
    what = clause.text
    if PREPARED in clause.get_execution_options():
        # Its plan is made once, without looking at the values.
        sql = str(clause.compile(dialect=connection.dialect))
        connection.exec_driver_sql("DEALLOCATE ALL")
        prepared = number_placeholders(sql, list(arguments)).replace("%", "%%")
        connection.exec_driver_sql(f"PREPARE seen AS {prepared}")
        given = ", ".join(f":{parameter}" for parameter in arguments)
        what = f"EXECUTE seen ({given})" if given else "EXECUTE seen"
    explain = text(f"EXPLAIN ({options}FORMAT JSON) {what}")
    [answer] = connection.execute(explain, arguments).scalar_one()
    tables = {row.part: row.whole for row in connection.execute(text(PARTITIONS))}
    nodes = list(_nodes(answer["Plan"]))
    for node in nodes:
        for key in node.keys() & {"Index Name", "Relation Name"}:
            node[key] = tables.get(node[key], node[key])
    return nodes


def _values_by_type(connection: Connection, clause: TextClause) -> dict[str, Any]:
    """Return a value for every parameter of a statement, by the type that Postgres expects.

    It is empty if Postgres cannot tell the types; such a statement is never prepared.
    """
    sql = str(clause.compile(dialect=connection.dialect))
    names = list(clause._bindparams)
    connection.exec_driver_sql("DEALLOCATE ALL")
    prepared = number_placeholders(sql, names).replace("%", "%%")
    try:
        with connection.begin_nested():
            connection.exec_driver_sql(f"PREPARE typed AS {prepared}")
    except ProgrammingError:
        return {}
    types = connection.exec_driver_sql(
        "SELECT parameter_types::text[] FROM pg_prepared_statements WHERE name = 'typed'"
    ).scalar_one()
    return {name: VALUES_BY_TYPE[type_] for name, type_ in zip(names, types, strict=True)}


def _fits(value: object, example: object) -> bool:
    """Whether a value is of the type of an example; two statements may share a parameter's name."""
    if value is None or isinstance(value, str):
        return not isinstance(value, str) or isinstance(example, str | UUID | datetime)
    if isinstance(example, int | float):
        return isinstance(value, int | float)
    return isinstance(value, type(example)) or isinstance(example, str | timedelta)


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


def _values(connection: Connection) -> dict[str, Any]:
    """Values of parameters as the deployment would pass them; other parameters get any value."""
    one = connection.execute(text("SELECT * FROM tasks ORDER BY state <> 'running' LIMIT 1")).one()
    users = connection.execute(text("SELECT user_id FROM lanes LIMIT 5")).scalars().all()
    empty = "[]"
    held = f'[{{"task_id": "{one.id}", "epoch": {one.epoch}, "token": "{one.token}"}}]'
    return {
        **dict.fromkeys(("task_id", "before"), one.id),
        **{name: [one.id, uuid4()] for name in ("tasks", "ended", "parents", "poisoned", "graphs")},
        **dict.fromkeys(
            ("actor", "agent", "skip_as", "holder", "name", "note", "outcome"), "a word"
        ),
        **dict.fromkeys(("reason", "resolution"), "retry"),
        **dict.fromkeys(("lease", "liveness", "claim_ttl", "ttl", "grace", "gap", "silence"), 30),
        **dict.fromkeys(("limit", "min_lanes", "slots", "per_lane", "budget", "max_position"), 10),
        **dict.fromkeys(("max_age", "look", "slots_max", "max_waiting"), 10),
        **dict.fromkeys(("starving_after", "seconds", "worker_seconds", "pull_agent_seconds"), 900),
        "lanes": 10,
        **dict.fromkeys(("first", "last", "next_id"), one.user_id),
        **dict.fromkeys(("max_rows", "max_weight", "max_open", "areas", "finding_id"), 10),
        **dict.fromkeys(("area", "check_name"), "tasks"),
        **dict.fromkeys(("repaired", "gone", "round_ended"), False),
        "subjects": ["a word"],
        "detail": "{}",
        "older_than": timedelta(days=1),
        "every_type": "*",
        "dropped_messages": 0,
        "out_of_memory": False,
        "sweep": "unhandled",
        "sort_key": 0.0,
        "position": str(one.user_id),
        "passed_over": list(users),
        **dict.fromkeys(("bundle_seconds", "bundle_max", "messages", "free"), 10),
        "user_id": one.user_id,
        "now": one.claimed_at,
        **dict.fromkeys(("count", "max_pending", "queue_max_size", "near_full"), 10),
        "project": "site",
        **dict.fromkeys(("usd", "usd_left", "budget_usd"), 1),
        "agent_id": "worker",
        **dict.fromkeys(("key_id", "key_hash", "subject", "digest"), "someone"),
        **dict.fromkeys(("old_key", "new_key"), "someone"),
        **dict.fromkeys(("since", "within")),
        "escalated_priority": 20,
        "only": None,
        "skips_lanes": True,
        "users": list(users),
        "epoch": one.epoch,
        "token": one.token,
        "pool": "default",
        "kind": "celery",
        "types": None,
        "type": "echo",
        "id": "worker",
        "capabilities": [],
        "start_sources": ["pending"],
        "sources": ["ready"],
        "states": None,
        "status": None,
        **dict.fromkeys(("target", "cancelled"), "claimed"),
        "keys": ["key 1", "key 2"],
        **dict.fromkeys(("resolved", "handling", "ended_by_worker"), False),
        "dead_seconds": 0.0,
        "progress": None,
        "result": "{}",
        "touched": 0,
        **dict.fromkeys(("lane_states", "costs", "escalations", "rejections"), empty),
        "error_class": "invalid_output",
        "characters": 100,
        "scope": "user",
        "key": "someone",
        "paused": True,
        "starts": True,
        "own": True,
        "offline": False,
        # A list of all tasks, as far back as there are any.
        **dict.fromkeys(("only_open", "only_dead"), False),
        "reach": None,
        "horizon": 3600,
        "step": 0.1,
        **dict.fromkeys(("after", "until", "row_id"), 100),
        "rows": [100],
        "error": None,
        **dict.fromkeys(("after_at", "asked_at")),
        "after_id": None,
        **{name: [uuid4() for _ in range(10)] for name in ("bundles", "tokens")},
        "durations": empty,
        "dag_id": uuid4(),
        **dict.fromkeys(("title", "created_by"), "a word"),
        **dict.fromkeys(("edges", "copies", "weights"), empty),
        "forked_from": None,
        "trigger_id": uuid4(),
        "condition": "completed",
        "graph": "{}",
        **{name: [uuid4()] for name in ("artifacts",)},
        "names": ["a word"],
        "models": [],
        "authorized_by": "key:someone",
        "authorized_until": None,
        "serves": None,
        "artifact_id": uuid4(),
        "chunks": "[]",
        "parts": "[]",
        "stream": "log",
        "partition": "log_chunks_default",
        "table_name": "events",
        **dict.fromkeys(("first_at", "end_at"), one.created_at),
        "max_kept_bytes": 1,
        "max_kept": 10,
        "session_id": uuid4(),
        **dict.fromkeys(("hash", "cookie_hash", "new_hash", "link_hash", "browser"), "a word"),
        **dict.fromkeys(("lifetime", "most"), 10),
        "ends_by": one.created_at,
        "token_subject": None,
        "scopes": ["tasks:read"],
        **dict.fromkeys(("is_open", "is_new"), True),
        "rule": "inbox",
        "shortest": timedelta(days=1),
        "days": '{"tasks": 90}',
        "dags": [one.dag_id],
        "shown": ["task_00000000000000000000000000"],
        "cut_text": "",
        **dict.fromkeys(("head_bytes", "tail_bytes"), 1),
        "failures_older_than": timedelta(days=1),
        "needed": [uuid4()],
        "seen": [uuid4()],
        "digest": "0" * 64,
        "digests": ["0" * 64],
        **dict.fromkeys(("after_seq", "before_seq", "after_epoch", "last_epoch"), 1),
        "size": 1,
        "content": b"x",
        **dict.fromkeys(("claims", "verdicts"), held),
        **dict.fromkeys(("fingerprint", "description", "tags", "payload", "spec", "priority")),
        **dict.fromkeys(("before_id", "before_epoch", "timeout_seconds", "deadline_at")),
        **dict.fromkeys(("of_type", "of_tag", "of_project", "of_source", "titled")),
        **dict.fromkeys(("made_from", "made_until", "of_dag", "ended_from", "ended_until")),
        **dict.fromkeys(("of_creator", "of_error", "of_lock", "of_wait", "of_fingerprint")),
        **dict.fromkeys(("cost_from", "cost_until", "attempts_from")),
        "start_at": None,
        **dict.fromkeys(("from_at", "to_at", "cycle"), one.created_at),
        **dict.fromkeys(("longest",), 3600),
        **dict.fromkeys(("execution", "sandbox")),
        "external_id": "worker/task",
        "profile": "{}",
        "ready": "ready",
        **dict.fromkeys(("bulk_id", "ceiling"), one.id),
        **dict.fromkeys(("last_event", "total", "done", "changed", "skipped"), 0),
        "action": "cancel",
        **dict.fromkeys(("filter", "refused"), "{}"),
        "applies_to": ["ready"],
        "cursor": None,
        "began_at": one.updated_at,
        **dict.fromkeys(("driver", "url", "secret"), "a word"),
        "private_allowed": False,
        "checks": empty,
        "agents": ["worker"],
        "epochs": [one.epoch, 1],
        **dict.fromkeys(("with_timeout", "with_deadline", "with_start", "with_depth"), False),
    }


def test_two_statements_may_not_share_a_name(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.sql").write_text("-- name: twice\nSELECT 1;\n")
    (tmp_path / "b.sql").write_text("-- name: twice\nSELECT 2;\n")
    monkeypatch.setattr(statements, "FOLDER", tmp_path)

    with pytest.raises(ValueError, match="two statements are called twice"):
        statements.sources.__wrapped__()


@pytest.mark.parametrize(
    ("one", "other", "parts"),
    [
        ("lock_lanes_in_fair_order", "read_pool_and_lock_lanes", ("next", "locked")),
        ("lock_lanes_in_fair_order", "prepare_idle_claim", ("next", "locked")),
        ("claim", "claim_single", ("candidate", "taken", "inserted", "skipped")),
        ("claim", "next_pass", ("candidate", "unlocked", "affordable", "queued", "chosen")),
    ],
)
def test_parts_that_two_statements_repeat_are_equal(
    one: str, other: str, parts: tuple[str, ...]
) -> None:
    for part in parts:
        assert _cte(one, part) == _cte(other, part)


def test_both_inserts_of_tasks_are_equal() -> None:
    plain = " ".join(sources()["insert_tasks"].partition("INSERT INTO")[2].split()).rstrip(";")
    conditional = " ".join(_cte("insert_tasks_if_within_limits", "inserted").split())

    assert f"INSERT INTO {plain} WHERE EXISTS (SELECT 1 FROM within_limits)" == conditional


def _cte(statement: str, name: str) -> str:
    """Return the text of a CTE, which ends with a bracket at the start of a line."""
    match = re.search(
        rf"^(?:WITH |\), ){name} AS (?:MATERIALIZED )?\(\n(.*?)^\)",
        sources()[statement],
        re.MULTILINE | re.DOTALL,
    )
    assert match is not None, f"{statement} has no CTE called {name}"
    return match[1]


def test_every_statement_is_used_and_every_used_one_exists() -> None:
    direct = re.compile(r'(?:statement|Call|rows_of)\(\s*"(\w+)"')
    # Some functions get the name of a statement as an argument.
    literal = re.compile(r'"(\w+)"')
    texts = [read(path) for path, _ in modules("app", "workers")]

    assert {name for text_ in texts for name in direct.findall(text_)} <= set(sources())
    assert set(sources()) <= {name for text_ in texts for name in literal.findall(text_)}


def test_no_statement_names_an_unknown_state() -> None:
    literal = re.compile(r"\b(?:state|goal)\s*(?:=|<>|IN|NOT IN)\s*\(?((?:'\w+'(?:,\s*)?)+)")
    words = {
        word
        for body in sources().values()
        # Deliveries have states of their own.
        if "notification_deliveries" not in body
        for group in literal.findall(body)
        for word in re.findall(r"'(\w+)'", group)
    }

    assert words
    assert words <= {state.value for state in State}
    assert not words & set(ALIASES)


def test_the_database_allows_exactly_the_moves_of_the_lifecycle(filled: Db) -> None:
    with filled.engine.begin() as tx:
        rows = tx.execute(text("SELECT from_state, to_state FROM legal_moves")).all()

    assert sorted(tuple(row) for row in rows) == legal_moves()


def test_the_triggers_count_exactly_the_states_of_the_lifecycle(filled: Db) -> None:
    sql = text(
        "SELECT s, is_active(s), is_waiting(s), is_final(s)  FROM unnest(CAST(:states AS text[])) s"
    )
    with filled.engine.begin() as tx:
        rows = tx.execute(sql, {"states": [state.value for state in State]}).all()

    assert {s for s, active, _, _ in rows if active} == ACTIVE
    assert {s for s, _, waiting, _ in rows if waiting} == WAITING
    assert {s for s, _, _, final in rows if final} == FINAL


def test_the_database_ranks_a_larger_plan_higher(filled: Db) -> None:
    sql = text("SELECT tier, plan_weight(tier) FROM unnest(CAST(:tiers AS text[])) tier")
    with filled.engine.begin() as tx:
        rows = tx.execute(sql, {"tiers": [tier.value for tier in PlanTier]}).all()

    ranked = [tier for tier, _ in sorted(rows, key=lambda row: row[1])]
    assert ranked == ["free", "pro", "team", "enterprise"]
