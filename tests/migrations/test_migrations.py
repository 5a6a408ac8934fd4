"""The schema: migrations forwards and backwards, twice at once, and beside the typed models."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from overnight.models.enums import AtClosing, PlanTier
from overnight_server.domain.bulk import Action, Progress
from overnight_server.domain.graphs import Condition, OnUnmet, TriggerCondition
from overnight_server.domain.pauses import PauseScope
from overnight_server.domain.plans import OnExhausted
from overnight_server.domain.results import Raised, Returned
from overnight_server.domain.schedules import CatchUp, FireKind, FireStatus, Overlap
from overnight_server.store import migrate
from overnight_server.store.db import APP, DISPATCHER, Db, driver_url
from overnight_server.store.models import Base
from tests.migrations.schema import COLUMN_TYPES, lines
from tests.support.deployment import Deployment
from tests.support.graphs import begin, graph
from tests.support.wait import wait_until

ROOT = Path(__file__).parents[2]
# The sets of values that a CHECK constraint and a Python enumeration both define.
CLOSED_SETS: Mapping[str, Iterable[str]] = {
    "users_plan_tier_known": PlanTier,
    "users_on_exhausted_known": OnExhausted,
    "users_window_at_closing_known": AtClosing,
    "task_edges_condition_known": Condition,
    "task_edges_on_unmet_known": OnUnmet,
    "dag_triggers_condition_known": TriggerCondition,
    "pauses_scope_known": PauseScope,
    "bulk_operations_action_known": Action,
    "bulk_operations_state_known": Progress,
    "schedules_overlap_known": Overlap,
    "schedules_catch_up_known": CatchUp,
    "schedule_fires_kind_known": FireKind,
    "schedule_fires_status_known": FireStatus,
}


def test_every_model_has_the_columns_of_its_table(database_url: str, empty_url: str) -> None:
    engine = create_engine(driver_url(empty_url), poolclass=NullPool)
    with engine.begin() as connection:
        Base.metadata.create_all(connection)

    in_models = lines(empty_url, (COLUMN_TYPES,))
    tables = tuple(f"{name}." for name in Base.metadata.tables)
    in_schema = {line for line in lines(database_url, (COLUMN_TYPES,)) if line.startswith(tables)}

    assert in_models == in_schema
    assert len(in_models) > len(tables)


@pytest.mark.parametrize("constraint", CLOSED_SETS)
def test_a_check_constraint_allows_the_values_of_its_enumeration(
    deployment: Deployment, constraint: str
) -> None:
    [definition] = deployment.rows(
        "SELECT pg_get_constraintdef(oid) AS text FROM pg_constraint WHERE conname = :name",
        name=constraint,
    )

    assert set(re.findall(r"'(\w+)'", definition["text"])) == set(CLOSED_SETS[constraint])


def test_a_database_can_be_taken_down_and_up_again(
    deployment: Deployment, database_url: str
) -> None:
    before = lines(database_url)
    _use_every_role(deployment)

    migrate.empty(database_url)
    empty = lines(database_url)
    migrate.upgrade(database_url)

    assert empty == set()
    assert lines(database_url) == before
    assert deployment.rows("SELECT * FROM tasks") == []
    _use_every_role(deployment)


def _use_every_role(deployment: Deployment) -> None:
    """Submit, claim, settle and dead-letter with the roles that do so in production."""
    user = deployment.user()
    deployment.agent()
    root, _ = graph(deployment, user, 2, [(0, 1)])
    [run] = begin(deployment, root)
    deployment.settle(run, Raised("auth_failure", "wrong key"))
    deployment.settle(deployment.running(user), Returned())
    assert deployment.one("SELECT count(*) AS n FROM dead_letters")["n"] == 1


def test_an_upgrade_is_harmless_when_repeated(deployment: Deployment, database_url: str) -> None:
    task_id = deployment.task(deployment.user())
    before = lines(database_url)

    migrate.upgrade(database_url)

    assert lines(database_url) == before
    assert deployment.state(task_id) == "ready"


def test_two_simultaneous_upgrades_run_one_after_the_other(
    empty_url: str, database_url: str
) -> None:
    order = "import sys; from overnight_server.store import migrate; migrate.upgrade(sys.argv[1])"
    watcher = create_engine(driver_url(empty_url), poolclass=NullPool, isolation_level="AUTOCOMMIT")
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )

    with watcher.connect() as holder, watcher.connect() as eye:
        holder.execute(text("SELECT pg_advisory_lock(:key)"), {"key": migrate.UPGRADE_LOCK})
        upgrades = [
            subprocess.Popen(
                [sys.executable, "-c", order, empty_url], cwd=ROOT, stderr=subprocess.PIPE
            )
            for _ in range(2)
        ]
        wait_until(lambda: eye.execute(waiting).scalar_one() == 2, what="both to wait their turn")
        holder.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": migrate.UPGRADE_LOCK})
        complaints = [upgrade.communicate(timeout=60)[1] for upgrade in upgrades]

    assert [upgrade.returncode for upgrade in upgrades] == [0, 0], complaints
    assert lines(empty_url) == lines(database_url)


def test_the_application_needs_no_superuser_to_migrate(empty_url: str) -> None:
    migrate.upgrade(empty_url)

    engine = create_engine(driver_url(empty_url), poolclass=NullPool)
    with engine.connect() as connection:
        who = connection.execute(
            text("SELECT rolsuper, rolbypassrls FROM pg_roles WHERE rolname = current_user")
        ).one()
        owners = connection.execute(
            text(
                "SELECT DISTINCT pg_get_userbyid(relowner) FROM pg_class"
                " WHERE relnamespace = 'public'::regnamespace AND relname NOT LIKE 'alembic%'"
            )
        ).scalars()
        assert tuple(who) == (False, False)
        assert list(owners) == ["overnight_owner"]


@pytest.mark.parametrize("role", [APP, DISPATCHER])
def test_each_role_can_read_the_schema_revision(connect: Callable[..., Db], role: str) -> None:
    with connect(role=role).engine.begin() as tx:
        revision = tx.execute(text("SELECT version_num FROM alembic_version")).scalar_one()

    assert revision == migrate.head()


def test_an_empty_database_has_no_revision_and_a_migrated_one_the_newest(empty_url: str) -> None:
    nowhere = migrate.current(empty_url)
    migrate.upgrade(empty_url)

    assert nowhere is None
    assert migrate.current(empty_url) == migrate.head()


def test_the_migrations_have_one_end() -> None:
    assert len(ScriptDirectory(str(migrate.SCRIPTS)).get_heads()) == 1
