"""Row-level security keeps users apart even where a query has no condition on the user."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg2
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, ProgrammingError

from overnight_server.control.agents import PullAgentDescription, register
from overnight_server.control.keys import Caller, issue
from overnight_server.domain.ids import UserId
from overnight_server.domain.results import Raised, Returned
from overnight_server.explain.explain import explain
from overnight_server.forecast.forecast import forecast_task
from overnight_server.insight.tasks import get_task
from overnight_server.local.postgres import API_LOGIN, SERVICE_LOGIN, EmbeddedPostgres
from overnight_server.store.db import ADMIN, APP, DISPATCHER, GATE, READER, ActingUser, Db
from tests.support import logins
from tests.support.deployment import CLAIM_SETTINGS, Deployment

# Tables without rows of users; every other table must have row-level security.
OPEN_TO_ALL = {
    "agent_profiles",
    "alembic_version",
    "audit_positions",
    "depth_counters",
    "handled_types",
    "expected_rights",
    "legal_moves",
    "metric_totals",
    "priority_changes",
    "retention_rules",
    "sweeps",
    "task_queue_metrics",
    "type_durations",
    "worker_sessions",
}

# Rows that belong to no user: the deployment's workers and their pool. Users do not see them.
ROWS_OF_NOBODY = {"agents": "owner_id IS NULL", "pools": "serves IS NULL"}

UNPROTECTED = """
    SELECT c.relname AS name
      FROM pg_class c
     WHERE c.relnamespace = 'public'::regnamespace
       AND c.relkind IN ('r', 'p') AND NOT c.relispartition
       AND c.relname <> ALL (CAST(:open AS text[]))
       AND NOT (c.relrowsecurity AND c.relforcerowsecurity
                AND EXISTS (SELECT 1 FROM pg_policy p
                             WHERE p.polrelid = c.oid
                               AND p.polroles = ARRAY['overnight_app'::regrole::oid]
                               AND pg_get_expr(p.polqual, p.polrelid) ~ 'current_user_id|tasks'
                               AND p.polwithcheck IS NOT NULL))
     ORDER BY 1
"""


def unprotected(deployment: Deployment) -> list[str]:
    """Return the tables in which a user could read rows of another."""
    return [row["name"] for row in deployment.rows(UNPROTECTED, open=sorted(OPEN_TO_ALL))]


def protected(deployment: Deployment) -> list[str]:
    """Return the tables that have row-level security and that the API reads for users."""
    sql = (
        "SELECT relname AS name FROM pg_class WHERE relforcerowsecurity"
        " AND has_table_privilege('overnight_app', oid, 'SELECT') ORDER BY 1"
    )
    return [row["name"] for row in deployment.rows(sql)]


@pytest.fixture
def front(postgres: EmbeddedPostgres, database_url: str) -> Iterator[Db]:
    """The API's own way in: its login, its role, and two connections."""
    db = Db.connect(logins.for_api(database_url), role=APP, application_name="api", pool_size=1)
    yield db
    db.close()


def test_every_table_with_user_rows_has_row_level_security(deployment: Deployment) -> None:
    assert unprotected(deployment) == [], (
        "add a policy in 16_row_level_security.sql, or OPEN_TO_ALL"
    )


def test_a_new_table_without_row_level_security_is_reported(deployment: Deployment) -> None:
    deployment.run("CREATE TABLE diaries (user_id uuid, secret text)")
    assert unprotected(deployment) == ["diaries"]

    # Row-level security protects only if it is forced and has a policy for the API role.
    deployment.run("ALTER TABLE diaries ENABLE ROW LEVEL SECURITY")
    assert unprotected(deployment) == ["diaries"]
    deployment.run("ALTER TABLE diaries FORCE ROW LEVEL SECURITY")
    assert unprotected(deployment) == ["diaries"]


def _live(deployment: Deployment) -> UserId:
    """Let a user leave traces in every table that holds a user's rows."""
    user = deployment.user(monthly_agent_hours_limit=10, night_budget_usd=100)
    issue(deployment.app, user, name="laptop")
    register(deployment.dispatcher, Caller(user, "", ()), PullAgentDescription("laptop"))
    deployment.run("UPDATE users SET max_pending = 77 WHERE id = :id", id=user)
    first = deployment.running(user, locks=("repo:site",))
    deployment.task(user, locks=("repo:site",))
    deployment.settle(first, Returned("done"))
    deployment.settle(first, Returned("late"))
    deployment.settle(deployment.running(user, max_attempts=1), Raised("error", "no"))
    held = deployment.running(user, locks=("repo:held",))
    other = deployment.task(user)
    deployment.run(
        "INSERT INTO pauses (scope, target, paused_by)"
        " VALUES ('user', CAST(:u AS uuid)::text, 'human:x');"
        "INSERT INTO sessions (user_id, hash, secret, token_subject, scopes, expires_at)"
        " VALUES (:u, gen_random_uuid()::text, 's', 'x', '{}', clock() + interval '1 day');"
        "INSERT INTO spending (task_id, epoch, night_started_at, user_id, dag_id, usd)"
        " VALUES (:a, 1, clock(), :u, :a, 1);"
        "INSERT INTO dags (id, user_id, title, created_by)"
        " VALUES (gen_random_uuid(), :u, 'd', 'x');"
        "INSERT INTO dag_events (id, dag_id, user_id, kind, status, at)"
        " SELECT nextval('events_id_seq'), id, :u, 'dag.completed', 'completed', clock() FROM dags"
        " WHERE user_id = :u;"
        "INSERT INTO task_edges (parent_id, child_id, dag_id, user_id)"
        " SELECT :a, :b, id, :u FROM dags WHERE user_id = :u;"
        "INSERT INTO artifacts (id, task_id, user_id, epoch, name, kind, size, content)"
        " VALUES (gen_random_uuid(), :a, :u, 1, 'a', 'text', 1, 'a');"
        "INSERT INTO staged_artifacts"
        " (task_id, epoch, name, artifact_id, user_id, kind, size, content)"
        " VALUES (:a, 1, 'a', gen_random_uuid(), :u, 'text', 1, 'a');"
        "INSERT INTO log_chunks (task_id, epoch, seq, user_id, stream, lines, bytes, text)"
        " VALUES (:a, 1, 1, :u, 'stdout', 1, 2, 'a');"
        "INSERT INTO dag_triggers (id, user_id, dag_id, is_lone, condition, graph, created_by)"
        " SELECT gen_random_uuid(), :u, id, false, 'finished', '{}', 'x' FROM dags"
        " WHERE user_id = :u;"
        "INSERT INTO inbox (user_id, key_id, task) VALUES (:u, 'k', '{}');"
        "INSERT INTO bulk_operations"
        " (id, user_id, action, filter, created_by, key_id, total, last_event)"
        " VALUES (gen_random_uuid(), :u, 'cancel', '{}', 'x', 'k', 0, 0);"
        "INSERT INTO source_jobs (user_id, name, last_status, last_run_at)"
        " VALUES (:u, 'nightly', 'skipped_queue_full', clock());"
        "INSERT INTO schedules (id, user_id, name, said, once_at, zone, overlap, catch_up,"
        " catch_up_limit, task, created_by) VALUES (gen_random_uuid(), :u, 'nightly', 'x', clock(),"
        " 'UTC', 'skip', 'last', 1, '{}', 'x');"
        "INSERT INTO schedule_fires (schedule_id, fire_at, user_id, kind)"
        " SELECT id, clock(), :u, 'scheduled' FROM schedules WHERE user_id = :u;"
        "INSERT INTO notices (user_id, kind, subject) VALUES (:u, 'usage.50', 'month');"
        "INSERT INTO improvement_rules (id, user_id, name, figure, grouped_by, threshold,"
        " window_seconds, min_tasks, template, created_by)"
        " VALUES (gen_random_uuid(), :u, 'r', 'retries', 'type', 1, 1, 1, '{}', 'x');"
        "INSERT INTO improvement_tasks (rule_id, user_id, subject, task_id, evidence)"
        " SELECT id, :u, 's', :a, '{}' FROM improvement_rules WHERE user_id = :u;"
        "INSERT INTO webhook_sources"
        " (id, user_id, name, scheme, secret, template, is_graph, per_minute, created_by)"
        " VALUES (gen_random_uuid(), :u, 'h', 'github', 's', '{}', false, 1, 'x');"
        "INSERT INTO received_hooks (source_id, user_id, headers, body, outcome)"
        " SELECT id, :u, '{}', '', 'ignored' FROM webhook_sources WHERE user_id = :u;"
        "INSERT INTO notification_channels (user_id, name, kind, address, full_address)"
        " VALUES (:u, 'mail', 'email', 'a@example.com', 'a@example.com');"
        "INSERT INTO report_times VALUES (:u, 'UTC', '07:00', clock());"
        "INSERT INTO notifications (user_id, kind, subject) VALUES (:u, 'test', 'x');"
        "INSERT INTO notification_deliveries (notification_id, channel_id, user_id, kind)"
        " SELECT n.id, c.id, :u, 'test' FROM notifications n JOIN notification_channels c"
        " USING (user_id) WHERE user_id = :u;"
        "INSERT INTO lock_waits (user_id, key, holder_id, waiter_id, waiting, since)"
        " VALUES (:u, 'k', :a, :b, 1, clock())",
        u=user,
        a=held.claim.task_id,
        b=other,
    )
    return user


@pytest.fixture
def neighbours(deployment: Deployment) -> tuple[UserId, UserId]:
    deployment.agent()
    return _live(deployment), _live(deployment)


def _rows(db: Db, table: str) -> list[str]:
    return db.atomically(
        lambda tx: [row[0] for row in tx.execute(text(f"SELECT t::text FROM {table} t"))]
    )


def test_a_user_can_neither_read_nor_change_rows_of_another(
    deployment: Deployment, front: Db, neighbours: tuple[UserId, UserId]
) -> None:
    mine, theirs = neighbours
    for table in protected(deployment):
        of_users = f"{ROWS_OF_NOBODY.get(table, 'false')} IS NOT TRUE"
        before = deployment.rows(
            f"SELECT t::text AS row FROM {table} t WHERE {of_users} ORDER BY 1"
        )
        everything = [row["row"] for row in before]
        of_each = [_rows(front.acting_for(ActingUser(user)), table) for user in (mine, theirs)]
        shared = set(of_each[0]) & set(of_each[1])

        assert _rows(front, table) == [], table
        assert of_each[0], f"{table}: nothing was seen, so nothing was proven"
        assert not shared, table
        assert sorted(of_each[0] + of_each[1]) == everything, table
        assert _touched(front.acting_for(ActingUser(mine)), table, deployment) <= len(of_each[0]), (
            table
        )
        after = deployment.rows(f"SELECT t::text AS row FROM {table} t ORDER BY 1")
        assert set(of_each[1]) <= {row["row"] for row in after}, table


def _touched(db: Db, table: str, deployment: Deployment) -> int:
    """Try to change every row; return how many could be, 0 where the role may change none."""
    column = deployment.one(
        "SELECT attname AS name FROM pg_attribute WHERE attrelid = CAST(:t AS regclass)"
        " AND attnum > 0 AND NOT attisdropped AND attgenerated = '' AND attidentity = ''"
        " AND attname NOT IN ('id', 'task_id') LIMIT 1",
        t=table,
    )["name"]
    try:
        return db.atomically(
            lambda tx: tx.execute(text(f"UPDATE {table} SET {column} = {column}")).rowcount
        )
    except ProgrammingError as refusal:
        if "permission denied" not in str(refusal):
            raise
        return 0


def test_a_user_cannot_insert_rows_for_another(
    front: Db, deployment: Deployment, neighbours: tuple[UserId, UserId]
) -> None:
    mine, theirs = neighbours
    db = front.acting_for(ActingUser(mine))
    forged = (
        "INSERT INTO api_keys (id, user_id, name, hash, last4) VALUES ('x', :u, 'x', 'x', 'x')",
        "INSERT INTO dags (id, user_id, title, created_by) SELECT gen_random_uuid(), :u, 't', 'x'",
        "INSERT INTO pauses (scope, target, paused_by) SELECT 'user', CAST(:u AS uuid)::text, 'x'",
        "INSERT INTO pauses (scope, paused_by) SELECT 'all', 'x' WHERE :u IS NOT NULL",
        "INSERT INTO usage_ledger (user_id, period_started_at, kind, seconds)"  # noqa: ISC004
        " VALUES (:u, clock(), 'adjustment', -9)",
        "UPDATE tasks SET user_id = :u",
        "UPDATE api_keys SET user_id = :u",
    )
    for statement in forged:
        with pytest.raises(DBAPIError, match="row-level security"):
            db.atomically(lambda tx, sql=statement: tx.execute(text(sql), {"u": theirs}))


def test_a_connection_loses_its_user_at_the_end_of_the_transaction(
    front: Db, neighbours: tuple[UserId, UserId]
) -> None:
    assert _rows(front.acting_for(ActingUser(neighbours[0])), "tasks")

    assert _rows(front, "tasks") == []


def test_many_requests_on_few_connections_never_mix(
    front: Db, neighbours: tuple[UserId, UserId]
) -> None:
    sql = text("SELECT DISTINCT user_id FROM tasks")

    def seen(place: int) -> bool:
        user = neighbours[place % 2]
        db = front.acting_for(ActingUser(user))
        return db.atomically(lambda tx: tx.execute(sql).scalars().all()) == [user]

    with ThreadPoolExecutor(4) as crowd:
        assert all(crowd.map(seen, range(200)))


def test_the_reader_role_reads_all_rows_and_changes_none(
    deployment: Deployment, front: Db, neighbours: tuple[UserId, UserId]
) -> None:
    mine, _ = neighbours
    task = deployment.task(mine)
    db = front.acting_for(ActingUser(mine))

    assert forecast_task(db, mine, task, CLAIM_SETTINGS).id == get_task(db, mine, task).id
    assert explain(db, mine, task, CLAIM_SETTINGS).id == get_task(db, mine, task).id
    with pytest.raises(ProgrammingError, match="permission denied"):
        db.atomically(lambda tx: tx.execute(text("UPDATE tasks SET title = ''")), all_users=True)
    with pytest.raises(ProgrammingError, match="permission denied"):
        db.atomically(lambda tx: tx.execute(text("SELECT hash FROM api_keys")), all_users=True)


@pytest.mark.parametrize(
    ("login", "may"),
    [(API_LOGIN, {APP, READER, ADMIN, GATE}), (SERVICE_LOGIN, {DISPATCHER})],
)
def test_each_login_takes_its_own_roles_only(
    postgres: EmbeddedPostgres, database_url: str, login: str, may: set[str]
) -> None:
    url = {API_LOGIN: logins.for_api, SERVICE_LOGIN: logins.for_service}[login](database_url)
    taken = set()
    for role in (APP, READER, ADMIN, DISPATCHER, GATE, "overnight_owner", "overnight", "postgres"):
        connection = psycopg2.connect(url)
        try:
            with connection.cursor() as cursor:
                cursor.execute(f"SET ROLE {role}")
                taken.add(role)
        except psycopg2.errors.InsufficientPrivilege:
            pass
        finally:
            connection.close()

    assert taken == may


def test_a_login_that_takes_no_role_can_do_nothing(database_url: str, template: str) -> None:
    for url in (logins.for_api(database_url), logins.for_service(database_url)):
        connection = psycopg2.connect(url)
        try:
            with connection.cursor() as cursor, pytest.raises(psycopg2.Error, match="denied"):
                cursor.execute("SELECT count(*) FROM tasks")
        finally:
            connection.close()


def test_views_show_no_more_than_their_reader_may_see(
    deployment: Deployment, front: Db, neighbours: tuple[UserId, UserId]
) -> None:
    views = [
        row["name"]
        for row in deployment.rows(
            "SELECT viewname AS name FROM pg_views WHERE schemaname = 'public'"
        )
    ]
    for view in views:
        assert _rows(front, view) == [], view
        for user in neighbours:
            sql = text(f"SELECT DISTINCT user_id FROM {view}")
            seen = front.acting_for(ActingUser(user)).atomically(
                lambda tx, sql=sql: tx.execute(sql).scalars().all()
            )
            assert seen == [user], view


def test_security_definer_functions_have_a_fixed_search_path(deployment: Deployment) -> None:
    """A function that ran with its caller's search path could be lent the owner's rights."""
    sql = (
        "SELECT proname AS name FROM pg_proc"
        " WHERE pronamespace = 'public'::regnamespace AND prosecdef"
        " AND NOT coalesce('search_path=public, pg_temp' = ANY (proconfig), false)"
    )

    assert deployment.rows(sql) == []


def test_row_level_security_does_not_change_plans_of_other_roles(
    connect: Callable[..., Db],
) -> None:
    """A policy that is always true does not appear in the plan of a claim."""
    sql = text("EXPLAIN (VERBOSE) SELECT * FROM tasks WHERE user_id = gen_random_uuid()")
    dispatcher, front = connect(role=DISPATCHER), connect(role=APP)

    plans = [
        "\n".join(db.atomically(lambda tx: tx.execute(sql).scalars().all()))
        for db in (dispatcher, front)
    ]

    assert "overnight.user_id" not in plans[0]
    assert "overnight.user_id" in plans[1]
