"""Celery tasks that are kept in Postgres: `durable(app)` moves a Celery program to Overnight.

app = Celery("shop")
durable(app)

@app.task
def charge(order): ...

charge.delay(7)          # now a task of Overnight, with the type `shop.charge`

Needs the extra `celery`. Nothing else of `overnight` imports this package.
"""

from overnight.celery.durable_app import DurableApp, durable, durable_task
from overnight.celery.results import DurableGroupResult, DurableResult
from overnight.celery.transaction import in_transaction
from overnight.celery.user_choice import Submission
from overnight.errors import NotFromCelery

__all__ = [
    "DurableApp",
    "DurableGroupResult",
    "DurableResult",
    "NotFromCelery",
    "Submission",
    "durable",
    "durable_task",
    "in_transaction",
]
