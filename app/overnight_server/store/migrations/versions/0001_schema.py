"""Create the whole schema from the SQL files in `schema/`, in the order of their numbers."""

from alembic import op

from overnight_server.store.schema_fingerprint import SCHEMA

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ROLES = "overnight_app, overnight_reader, overnight_admin, overnight_dispatcher, overnight_gate"
LOGINS = "overnight_api, overnight_service"


def upgrade() -> None:
    """Create the roles as the migrating login, and everything else as the owner."""
    roles, *files = sorted(SCHEMA.glob("*.sql"))
    # SQL files are executed without parameters, so that a % in them is a plain character.
    connection = op.get_bind().execution_options(no_parameters=True)
    connection.exec_driver_sql(roles.read_text())
    op.execute("SET LOCAL ROLE overnight_owner")
    for file in files:
        connection.exec_driver_sql(file.read_text())
    op.execute("RESET ROLE")
    # Processes read the revision before they choose a role.
    op.execute(f"GRANT SELECT ON alembic_version TO {ROLES}, {LOGINS}")


def downgrade() -> None:
    """Drop every object of the owner; the roles stay, because other databases may use them."""
    op.execute("DROP OWNED BY overnight_owner")
    op.execute(f"DROP OWNED BY {ROLES}")
    op.execute(f"REVOKE ALL ON alembic_version FROM {LOGINS}")
