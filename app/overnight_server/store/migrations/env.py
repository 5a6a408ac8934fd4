"""Run the migrations over the connection that `overnight_server.store.migrate` opened."""

from alembic import context

from overnight_server.store.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
