"""Alembic's way in: run the migrations over the connection that `app.store.migrate` opened."""

from alembic import context

from app.store.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
