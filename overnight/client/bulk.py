"""Doing something to many tasks at once; reached as `client.bulk`."""

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Unpack

from overnight.client.account_calls import asked, path, read, read_page, send
from overnight.client.operations import D, Group, operation, series
from overnight.client.pagination import paged
from overnight.client.retry import PATIENCE_SECONDS, is_passing
from overnight.client.scripts import Pause, Series, Steps
from overnight.client.task_calls import Call, Page
from overnight.errors import BulkWaitTimedOut, Refused, Unreachable
from overnight.models.bulk import BulkOperation, BulkPreview, BulkRequest, FilterFields


class Bulk(Group[D]):
    """What can be done to many tasks at once; reached as `client.bulk`.

    The filter takes the words of `client.tasks.list`; without any, `everything=True` must be said.
    """

    @operation
    def preview(
        self,
        action: str,
        *,
        priority: int | None = None,
        priority_score: int | None = None,
        everything: bool = False,
        **chosen: Unpack[FilterFields],
    ) -> Call[BulkPreview]:
        """Return how many tasks are chosen, and to how many the action applies; change nothing."""
        body = _request(action, chosen, priority, priority_score, everything, preview=True)
        return send(BulkPreview, "POST", path("tasks", "bulk"), body)

    @operation
    def start(
        self,
        action: str,
        *,
        priority: int | None = None,
        priority_score: int | None = None,
        everything: bool = False,
        idempotency_key: str | None = None,
        **chosen: Unpack[FilterFields],
    ) -> Call[BulkOperation]:
        """Retry, cancel or reprioritise all tasks that are chosen; it goes on by itself."""
        key = idempotency_key or f"auto-{uuid.uuid4()}"
        body = _request(action, chosen, priority, priority_score, everything, idempotency_key=key)
        return send(BulkOperation, "POST", path("tasks", "bulk"), body)

    @operation
    def get(self, bulk_id: str) -> Call[BulkOperation]:
        """Return how far an operation has got."""
        return _get(bulk_id)

    @series
    def list(self, *, limit: int | None = None) -> Series[BulkOperation]:
        """Yield your bulk operations, newest first, fetching pages as they are needed."""

        def ask(size: int, cursor: str | None) -> Call[Page[BulkOperation]]:
            return read_page(BulkOperation, path("bulk"), limit=size, before=cursor)

        yield from paged(ask, limit)

    @operation
    def cancel(self, bulk_id: str) -> Call[BulkOperation]:
        """Let an operation go no further; what it has done stays done."""
        return send(BulkOperation, "POST", path("bulk", bulk_id, "cancel"))

    @operation
    def wait(
        self,
        bulk_id: str,
        *,
        timeout: float | None = None,
        poll: float = 1.0,
        on_progress: Callable[[BulkOperation], object] | None = None,
    ) -> Steps[BulkOperation]:
        """Return the operation once it has ended, looking every `poll` seconds.

        `on_progress` is called with each look. Raises BulkWaitTimedOut, which carries the
        operation, if it had not ended after `timeout` seconds.
        """
        began = heard = time.monotonic()
        seen: BulkOperation | None = None
        while True:
            try:
                seen = yield from _get(bulk_id)
                heard = time.monotonic()
            except (Refused, Unreachable) as error:
                # A service that restarts must not end a long wait.
                away = time.monotonic() - heard
                if seen is None or not is_passing(error) or away > PATIENCE_SECONDS:
                    raise
            else:
                if on_progress is not None:
                    on_progress(seen)
                if seen.is_final:
                    return seen
            left = poll if timeout is None else timeout - (time.monotonic() - began)
            if left <= 0:
                raise BulkWaitTimedOut(seen, timeout or 0.0)
            yield Pause(min(poll, left))


def _get(bulk_id: str) -> Call[BulkOperation]:
    return read(BulkOperation, path("bulk", bulk_id))


def _request(
    action: str,
    chosen: Mapping[str, Any],
    priority: int | None,
    priority_score: int | None,
    everything: bool,  # noqa: FBT001 - passed on under its name
    **further: object,
) -> BulkRequest:
    """Judge an order before it travels; what was left out is not said."""
    named = {name: value for name, value in chosen.items() if value is not None}
    fields = {"priority": priority, "priority_score": priority_score, **further}
    given = {name: value for name, value in fields.items() if value is not None}
    if everything:
        given["everything"] = True
    return asked(BulkRequest, {"action": action, "filter": named, **given})
