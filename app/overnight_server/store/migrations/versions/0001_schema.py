"""Lay the spine: users and lanes, tasks and edges, attempts and ledger, events and dead letters."""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

SCHEMA = Path(__file__).parent / "schema"
ROLES = "overnight_app, overnight_reader, overnight_admin, overnight_dispatcher, overnight_gate"
LOGINS = "overnight_api, overnight_service"
AS_OWNER = (
    *("clock", "spans", "tables", "billing", "priority", "lanes", "locks", "money"),
    *(
        "rules",
        "triggers",
        "events",
        "inbox",
        "audit",
        "views",
        "moves",
        "grants",
        "row_level_security",
    ),
)


def upgrade() -> None:
    """Make the roles, then everything else as the owner."""
    _run("roles")
    op.execute("SET LOCAL ROLE overnight_owner")
    for name in AS_OWNER:
        _run(name)
    op.execute("RESET ROLE")
    # The doctor looks before it chooses a role.
    op.execute(f"GRANT SELECT ON alembic_version TO {ROLES}, {LOGINS}")


def downgrade() -> None:
    """Drop every object the owner has; the roles stay, for other databases may use them."""
    op.execute("DROP OWNED BY overnight_owner")
    op.execute(f"DROP OWNED BY {ROLES}")
    op.execute(f"REVOKE ALL ON alembic_version FROM {LOGINS}")


def _run(name: str) -> None:
    """Run one file as it stands, without looking for parameters in it."""
    connection = op.get_bind().execution_options(no_parameters=True)
    connection.exec_driver_sql((SCHEMA / f"{name}.sql").read_text())
