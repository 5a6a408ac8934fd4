"""The rights of each database role; no role can change history or use the owner's rights."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError, ProgrammingError

from overnight.models.enums import PlanTier
from overnight_server.control.users import create_user
from overnight_server.domain.results import Returned
from overnight_server.local.postgres import API_LOGIN, SERVICE_LOGIN
from overnight_server.outcome.presence import WorkerDescription, join
from overnight_server.store import migrate
from overnight_server.store.db import ADMIN, APP, DISPATCHER, GATE, READER, Db
from tests.support import logins
from tests.support.deployment import AGENT, Deployment

VERBS = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER")
ROLES = (APP, READER, ADMIN, DISPATCHER, GATE)
# Everybody: the logins of the processes before they choose a role, and any other login.
OUTSIDERS = (API_LOGIN, SERVICE_LOGIN, "public")
PAGE = (Path(__file__).parents[2] / "docs/security.md").read_text()
DOCUMENTED_RIGHTS = PAGE.partition("### Rights in the database")[2].partition("\n## ")[0]


def _documented_tables() -> dict[str, list[str]]:
    """Return for each table the rights of each role as the page lists them."""
    rows = re.findall(r"^\| `(\w+)`((?: \| [RIU-]+){5}) \|$", DOCUMENTED_RIGHTS, re.MULTILINE)
    return {name: [cell.strip(" -") for cell in cells.split("|")[1:]] for name, cells in rows}


def _documented_functions() -> dict[str, set[str]]:
    """Return for each kind or name of function the roles that the page lists."""
    rows = re.findall(
        r"^\| `?([\w\' ]+?)`? \| ([a-z, ]+)(?:;[^|]*)? \|$", DOCUMENTED_RIGHTS, re.MULTILINE
    )
    everybody = {*ROLES, *OUTSIDERS}
    return {
        name: everybody
        if roles == "everybody"
        else {API_LOGIN, SERVICE_LOGIN}
        if roles == "logins of processes"
        else {role for role in ROLES if role.removeprefix("overnight_") in roles.split(", ")}
        for name, roles in rows
    }


@pytest.mark.parametrize("role", [*ROLES, *OUTSIDERS])
def test_each_role_has_the_documented_rights_on_tables(deployment: Deployment, role: str) -> None:
    sql = (
        "SELECT c.relname AS name, coalesce(string_agg(left(replace(v, 'SELECT', 'R'), 1), ''"
        "         ORDER BY n), '') AS rights"
        "  FROM pg_class c"
        "  LEFT JOIN unnest(CAST(:verbs AS text[])) WITH ORDINALITY AS verb(v, n)"
        "         ON has_table_privilege(:role, c.oid, v)"
        " WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'v', 'm', 'f', 'p')"
        "   AND NOT c.relispartition"
        " GROUP BY c.relname"
    )

    granted = {
        row["name"]: row["rights"] for row in deployment.rows(sql, role=role, verbs=list(VERBS))
    }

    documented = _documented_tables()
    if role in ROLES:
        assert granted == {name: cells[ROLES.index(role)] for name, cells in documented.items()}
    else:
        is_process = role in {API_LOGIN, SERVICE_LOGIN}
        readable = {"alembic_version", "expected_rights"} if is_process else set()
        assert {name for name, rights in granted.items() if rights} == readable


# The constructors of a range type belong to the server's superuser; they only make values.
FUNCTIONS = """
    SELECT p.oid::regprocedure::text AS signature, p.proname AS name, p.prosecdef AS is_definer,
           p.prorettype = 'trigger'::regtype AS is_trigger,
           ARRAY(SELECT role FROM unnest(CAST(:roles AS text[])) role
                  WHERE has_function_privilege(role, p.oid, 'EXECUTE')) AS executable_by
      FROM pg_proc p
     WHERE p.pronamespace = 'public'::regnamespace
       AND p.proowner <> 'postgres'::regrole
"""


def test_each_function_is_executable_by_the_documented_roles_only(deployment: Deployment) -> None:
    documented = _documented_functions()
    functions = deployment.rows(FUNCTIONS, roles=[*ROLES, *OUTSIDERS])

    wrong = {
        function["signature"]: sorted(function["executable_by"])
        for function in functions
        if set(function["executable_by"])
        != documented.get(
            "functions of database triggers"
            if function["is_trigger"]
            else function["name"]
            if function["is_definer"] or function["name"] in documented
            else "functions with the caller's rights",
            set(),
        )
    }

    assert wrong == {}
    named = {function["name"] for function in functions}
    assert {name for name in documented if " " not in name} <= named


def test_a_function_that_is_added_later_is_executable_by_nobody(deployment: Deployment) -> None:
    deployment.run("CREATE FUNCTION added_later() RETURNS int LANGUAGE sql RETURN 1")

    (added,) = [
        row
        for row in deployment.rows(FUNCTIONS, roles=[*ROLES, *OUTSIDERS])
        if row["name"] == "added_later"
    ]

    assert added["executable_by"] == []


TRIGGERS = """
    SELECT c.relname AS table_name, p.proname AS function, t.tgtype & 4 > 0 AS fires_on_insert,
           t.tgtype & 8 > 0 AS fires_on_delete, pg_get_triggerdef(t.oid) AS definition
      FROM pg_trigger t
      JOIN pg_class c ON c.oid = t.tgrelid
      JOIN pg_proc p ON p.oid = t.tgfoid
     WHERE NOT t.tgisinternal AND p.prosecdef AND c.relnamespace = 'public'::regnamespace
"""


@pytest.fixture
def own_schema(connect: Callable[..., Db]) -> str:
    """A schema in which the roles of the API and of the owner may create tables."""
    with connect(role=None).engine.begin() as tx:
        tx.execute(text(f"CREATE SCHEMA own; GRANT ALL ON SCHEMA own TO {APP}, overnight_owner"))
    return "own"


def test_no_login_may_create_a_temporary_table(database_url: str) -> None:
    # The test's database is a copy, and a copy does not have the rights on the database.
    migrate.upgrade(database_url)

    for url, role in (
        (logins.for_api(database_url), APP),
        (logins.for_service(database_url), None),
    ):
        db = Db.connect(url, role=role)
        with pytest.raises(ProgrammingError, match="permission denied to create temporary tables"):
            db.atomically(lambda tx: tx.execute(text("CREATE TEMP TABLE mine (id int)")))
        db.close()


def test_no_role_can_use_a_trigger_function_on_a_table_of_its_own(
    deployment: Deployment, connect: Callable[..., Db], own_schema: str
) -> None:
    db = connect(role=APP)
    db.atomically(lambda tx: tx.execute(text(f"CREATE TABLE {own_schema}.users (id uuid)")))
    functions = {row["function"] for row in deployment.rows(TRIGGERS)}

    assert "update_lane_limits" in functions
    for function in functions:
        with _refused(), db.engine.begin() as tx:
            tx.execute(
                text(
                    f"CREATE TRIGGER mine AFTER INSERT ON {own_schema}.users"
                    f" FOR EACH ROW EXECUTE FUNCTION {function}()"
                )
            )


def test_a_trigger_function_refuses_to_fire_on_another_table(
    deployment: Deployment, own_schema: str
) -> None:
    """The owner itself creates each trigger here, on a table with the columns of the real one."""
    for trigger in deployment.rows(TRIGGERS):
        table = f"{own_schema}.{trigger['table_name']}"
        definition = re.sub(r" WHEN \(.*\) EXECUTE", " EXECUTE", trigger["definition"])
        definition = re.sub(r"UPDATE OF [\w, ]+ ON", "UPDATE ON", definition)
        definition = definition.replace(f" ON public.{trigger['table_name']} ", f" ON {table} ")
        definition = definition.replace("DEFERRABLE INITIALLY DEFERRED ", "")
        assert f" ON {table} " in definition
        steps = [f"INSERT INTO {table} DEFAULT VALUES", definition]
        if trigger["fires_on_insert"]:
            steps.reverse()
        elif trigger["fires_on_delete"]:
            steps.append(f"DELETE FROM {table}")
        else:
            steps.append(
                f"UPDATE {table} SET {_first_column(deployment, trigger['table_name'])} = NULL"
            )
        with deployment.owner.engine.connect() as connection:
            copy = f"CREATE TABLE {table} AS SELECT * FROM public.{trigger['table_name']}"
            connection.execute(text(f"{copy} WITH NO DATA"))
            for step in steps[:-1]:
                connection.execute(text(step))
            with pytest.raises(ProgrammingError, match="may not execute this function"):
                connection.execute(text(steps[-1]))


def _first_column(deployment: Deployment, table: str) -> str:
    sql = "SELECT attname FROM pg_attribute WHERE attrelid = CAST(:t AS regclass) AND attnum = 1"
    return str(deployment.one(sql, t=table)["attname"])


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
        join(app_db, WorkerDescription(AGENT, "default", (), 100))


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
