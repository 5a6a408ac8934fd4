"""Run the migrations over the connection that `overnight_server.store.migrate` opened."""

from collections.abc import Collection, Mapping
from typing import Any

from alembic import context
from alembic.runtime.migration import MigrationContext, MigrationInfo

from overnight_server.store.migration_steps import record_schema

connection = context.config.attributes["connection"]


def _record(
    ctx: MigrationContext,  # noqa: ARG001 - Alembic's arguments
    step: MigrationInfo,  # noqa: ARG001
    heads: Collection[Any],
    run_args: Mapping[str, Any],  # noqa: ARG001
) -> None:
    """Store the schema in the transaction that stores the revision."""
    for revision in heads:
        record_schema(connection, context.script, revision)


context.configure(
    connection=connection,
    transaction_per_migration=True,
    on_version_apply=_record,
)
with context.begin_transaction():
    context.run_migrations()
