"""A shop whose orders are worked off by Celery, with Redis as broker and result backend."""

import os

from celery import Celery, Task, chord
from celery.result import AsyncResult

REDIS = os.environ.get("REDIS_URL", "redis://localhost:6379/0")

app = Celery("shop", broker=REDIS, backend=REDIS)

PRICES = {"pillow": 20, "blanket": 45, "lamp": 30}


class OutOfStock(Exception):
    """An item of an order is not on sale."""


@app.task
def reserve(item: str) -> int:
    """Take one item from the shelf, and return its price."""
    if item not in PRICES:
        raise OutOfStock(item)
    return PRICES[item]


@app.task(bind=True, max_retries=5, default_retry_delay=0)
def charge(self: Task, prices: list[int], customer: str) -> dict[str, object]:
    """Charge a customer; the bank refuses the first attempt."""
    if self.request.retries == 0:
        raise self.retry(exc=ConnectionError("the bank is busy"))
    return {"customer": customer, "paid": sum(prices)}


@app.task
def receipt(payment: dict[str, object]) -> str:
    """Write the text of a receipt."""
    return f"{payment['customer']} paid {payment['paid']}"


@app.task
def remind(customer: str) -> str:
    """Write to a customer, some time after an order."""
    return f"{customer}: are you content?"


def order(customer: str, items: list[str]) -> AsyncResult:
    """Work off an order: reserve all items, then charge them, then write the receipt."""
    header = [reserve.s(item) for item in items]
    return (chord(header, charge.s(customer)) | receipt.s()).delay()


def remind_later(customer: str) -> AsyncResult:
    """Send the reminder in two hours."""
    return remind.apply_async((customer,), countdown=2 * 3600)
