"""Reading a list page after page, as far as somebody reads it."""

from collections.abc import Callable
from typing import TypeVar

from overnight.client.scripts import Item, Series
from overnight.client.task_calls import Call, Page

T = TypeVar("T")
PAGE = 100


def paged(ask: Callable[[int, str | None], Call[Page[T]]], limit: int | None) -> Series[T]:
    """Give one thing after the other, up to a limit; `ask` is told how many, and from where on."""
    cursor: str | None = None
    left = limit
    while left is None or left > 0:
        page = yield from ask(PAGE if left is None else min(left, PAGE), cursor)
        for item in page.items:
            yield Item(item)
        if page.cursor is None:
            return
        cursor = page.cursor
        left = None if left is None else left - len(page.items)
