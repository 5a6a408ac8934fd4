"""${message}."""

from overnight_server.store.migration_steps import run_sql

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None
#: Whether processes of the version before can go on with the changed schema.
serves_older = True


def upgrade() -> None:
    """Run the SQL file of this migration."""
    run_sql(revision)


def downgrade() -> None:
    """Do nothing: a database goes back to empty only, and 0001 drops every object."""
