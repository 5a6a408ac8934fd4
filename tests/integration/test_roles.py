"""The rights of each database role; no role can change history."""

from collections.abc import Mapping
from contextlib import AbstractContextManager

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError, ProgrammingError

from overnight.models.enums import PlanTier
from overnight_server.control.users import create_user
from overnight_server.domain.results import Returned
from overnight_server.outcome.presence import WorkerCard, join
from overnight_server.store.db import ADMIN, APP, DISPATCHER, GATE, READER, Db
from tests.support.deployment import AGENT, Deployment

VERBS = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE")
ROLES = (APP, READER, ADMIN, DISPATCHER, GATE)
# Per table what the app, the reader, the admin, the dispatcher and the gate may do: R reads, I
# inserts, U updates. No role deletes. test_row_level_security.py tests which rows the app sees.
RIGHTS: Mapping[str, tuple[str | None, ...]] = {
    "agents": ("R", "R", "RU", "RIU", "RIU"),
    "api_keys": ("RIU", None, "RIU", "R", None),
    "artifacts": ("RIU", "R", "R", "RIU", "R"),
    "attempts": ("RU", "R", "RU", "RIU", "RI"),
    "audit_log": ("R", None, "R", "R", None),
    "bulk_operations": ("RIU", "R", "RIU", "RU", "R"),
    "dag_events": ("R", "R", "R", "R", "R"),
    "dags": ("RIU", "R", "RIU", "RIU", "RU"),
    "dag_triggers": ("RIU", "R", "RIU", "RU", "R"),
    # Only triggers and functions write and read it, with the rights of its owner.
    "depth_counters": (None, None, None, None, None),
    "dead_letters": ("RIU", "R", "RIU", "RIU", "R"),
    "events": ("R", "R", "R", "R", "R"),
    "handled_types": (None, None, None, "RIU", None),
    "held_locks": ("R", "R", "R", "R", "R"),
    "inbox": ("R", "R", "RU", "RU", "R"),
    "lanes": ("RU", "R", "RU", "RU", "RU"),
    "legal_moves": ("R", "R", "R", "R", "R"),
    "lock_waits": ("R", "R", "R", "R", "R"),
    "notices": ("RI", "R", "RI", "RI", "RI"),
    "type_durations": ("R", "R", "R", "RIU", "R"),
    "pauses": ("RIU", "R", "RIU", "RIU", "R"),
    "pools": ("R", "R", "RU", "RIU", "RIU"),
    "source_jobs": ("RIU", "R", "R", "R", "R"),
    "spending": ("RIU", "R", "RIU", "RIU", "R"),
    "stale_results": ("RI", "R", "R", "RI", "R"),
    "sweeps": ("R", "R", "R", "RIU", "R"),
    "task_edges": ("RIU", "R", "RIU", "RIU", "R"),
    "tasks": ("RIU", "R", "RIU", "RIU", "RU"),
    "usage_ledger": ("RI", "R", "RI", "RI", "R"),
    "users": ("R", "R", "RIU", "R", "R"),
    "alembic_version": ("R", "R", "R", "R", "R"),
    "audit_trail": ("R", None, "R", "R", None),
    "user_limits": ("R", "R", "R", "R", "R"),
    "graphs": ("R", "R", "R", "R", "R"),
}


@pytest.mark.parametrize("place", range(len(ROLES)), ids=ROLES)
def test_each_role_has_its_rights_and_no_more(deployment: Deployment, place: int) -> None:
    role = ROLES[place]
    sql = (
        "SELECT c.relname AS name, string_agg(left(replace(v, 'SELECT', 'R'), 1), ''"
        "         ORDER BY n) AS rights"
        "  FROM pg_class c"
        "  LEFT JOIN unnest(CAST(:verbs AS text[])) WITH ORDINALITY AS verb(v, n)"
        "         ON has_table_privilege(:role, c.oid, v)"
        " WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'v', 'p')"
        " GROUP BY c.relname"
    )

    granted = {
        row["name"]: row["rights"] for row in deployment.rows(sql, role=role, verbs=list(VERBS))
    }

    assert granted == {table: rights[place] for table, rights in RIGHTS.items()}


def test_no_role_can_gain_more_rights(deployment: Deployment) -> None:
    sql = "SELECT * FROM pg_roles WHERE rolname = ANY (CAST(:roles AS text[]))"

    roles = deployment.rows(sql, roles=list(ROLES))

    assert len(roles) == len(ROLES)
    for role in roles:
        for right in ("super", "createrole", "createdb", "canlogin", "replication", "bypassrls"):
            assert role[f"rol{right}"] is False, right
        assert deployment.one(
            "SELECT pg_has_role(:role, 'overnight_owner', 'MEMBER') AS is_member",
            role=role["rolname"],
        ) == {"is_member": False}


REWRITES = (
    "DELETE FROM tasks",
    "TRUNCATE tasks CASCADE",
    "UPDATE usage_ledger SET seconds = 0",
    "DELETE FROM usage_ledger",
    "UPDATE events SET actor = 'nobody'",
    "DELETE FROM events",
    "INSERT INTO events (task_id) SELECT id FROM tasks",
    "INSERT INTO attempts (task_id) SELECT id FROM tasks",
    "DELETE FROM lanes",
    "DELETE FROM audit_log",
    "UPDATE audit_log SET actor = 'nobody'",
    "INSERT INTO audit_log (actor, act, target) VALUES ('nobody', 'nothing', 'nowhere')",
    "INSERT INTO legal_moves VALUES ('completed', 'ready')",
    "ALTER TABLE tasks DISABLE TRIGGER ALL",
    "DROP TABLE tasks CASCADE",
    "CREATE TABLE mine (id int)",
    "CREATE OR REPLACE FUNCTION clock() RETURNS timestamptz LANGUAGE sql AS 'SELECT now()'",
    "SET session_replication_role = replica",
)


def test_the_api_role_cannot_change_history(deployment: Deployment, app_db: Db) -> None:
    deployment.agent()
    deployment.settle(deployment.running(deployment.user()), Returned())
    before = _history(deployment)

    for rewrite in REWRITES:
        with _refused(), app_db.engine.begin() as tx:
            tx.execute(text(rewrite))

    assert _history(deployment) == before


def _refused() -> AbstractContextManager[object]:
    return pytest.raises(ProgrammingError, match=r"permission denied|must be owner")


def _history(deployment: Deployment) -> list[object]:
    tables = ("tasks", "attempts", "events", "usage_ledger", "lanes", "legal_moves", "audit_log")
    return [deployment.rows(f"SELECT * FROM {table} ORDER BY 1, 2") for table in tables]


def test_the_dispatcher_role_cannot_create_users(db: Db) -> None:
    with _refused():
        create_user(db, name="eve", plan=PlanTier.ENTERPRISE)


def test_the_api_role_cannot_register_workers(app_db: Db) -> None:
    with _refused():
        join(app_db, WorkerCard(AGENT, "default", (), 100))


def test_triggers_write_tables_that_the_caller_may_not_write(
    deployment: Deployment, app_db: Db
) -> None:
    user = create_user(app_db, name="ada", plan=PlanTier.FREE)

    task_id = deployment.task(user)

    lane = deployment.lane(user)
    assert (lane["ready"], lane["max_active"]) == (1, 1)
    assert (
        deployment.one("SELECT actor FROM events WHERE task_id = :id", id=task_id)["actor"]
        == "test"
    )


def test_a_session_works_with_its_roles_rights_only(app_db: Db) -> None:
    with app_db.engine.begin() as tx:
        who = tx.execute(text("SELECT current_user, session_user")).one()

    assert tuple(who) == (ADMIN, "overnight")


def test_a_finished_row_cannot_be_reopened_by_a_bare_update(deployment: Deployment) -> None:
    deployment.agent()
    run = deployment.running(deployment.user())
    deployment.settle(run, Returned("done"))

    with (
        pytest.raises(IntegrityError, match="may not move from completed to ready"),
        deployment.dispatcher.engine.begin() as tx,
    ):
        tx.execute(text("UPDATE tasks SET state = 'ready', finished_at = NULL"))

    assert deployment.row(run.claim.task_id)["output"] == "done"
