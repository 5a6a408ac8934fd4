"""One action on many tasks; available as `client.bulk`."""

import uuid
from collections.abc import Callable, Mapping
from typing import Any, Unpack

from overnight.client.calls import Call, Page, path, read, read_page, send, without_none
from overnight.client.operations import D, Group, iteration, operation
from overnight.client.request_plan import ItemSteps, PlanSteps, paginate
from overnight.client.wait import wait_until_final
from overnight.errors import BulkWaitTimedOut
from overnight.models.bulk import BulkOperation, BulkPreview, BulkRequest, FilterFields
from overnight.models.field_errors import validate


class Bulk(Group[D]):
    """One action on many tasks; available as `client.bulk`.

    The criteria are those of `client.tasks.list`; to select all tasks, pass `everything=True`.
    """

    @operation
    def preview(
        self,
        action: str,
        *,
        priority: int | None = None,
        priority_score: int | None = None,
        everything: bool = False,
        **criteria: Unpack[FilterFields],
    ) -> Call[BulkPreview]:
        """Return how many tasks match, and to how many the action applies; change nothing."""
        body = _request(action, criteria, priority, priority_score, everything, preview=True)
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
        **criteria: Unpack[FilterFields],
    ) -> Call[BulkOperation]:
        """Start to retry, cancel or reprioritise all matching tasks; the service continues."""
        key = idempotency_key or f"auto-{uuid.uuid4()}"
        body = _request(action, criteria, priority, priority_score, everything, idempotency_key=key)
        return send(BulkOperation, "POST", path("tasks", "bulk"), body)

    @operation
    def get(self, bulk_id: str) -> Call[BulkOperation]:
        """Return an operation with its progress."""
        return _get(bulk_id)

    @iteration
    def list(self, *, limit: int | None = None) -> ItemSteps[BulkOperation]:
        """Yield your bulk operations, newest first; pages are requested as they are needed."""

        def get_page(size: int, cursor: str | None) -> Call[Page[BulkOperation]]:
            return read_page(BulkOperation, path("bulk"), limit=size, before=cursor)

        yield from paginate(get_page, limit)

    @operation
    def cancel(self, bulk_id: str) -> Call[BulkOperation]:
        """Stop an operation; the tasks it has changed stay changed."""
        return send(BulkOperation, "POST", path("bulk", bulk_id, "cancel"))

    @operation
    def wait(
        self,
        bulk_id: str,
        *,
        timeout: float | None = None,
        poll: float = 1.0,
        on_progress: Callable[[BulkOperation], object] | None = None,
    ) -> PlanSteps[BulkOperation]:
        """Return the operation once it has ended; it is read every `poll` seconds.

        `on_progress` is called with each state that is read. Raises BulkWaitTimedOut, which has
        the attribute `bulk`, if it has not ended after `timeout` seconds.
        """
        bulk = yield from wait_until_final(
            lambda: _get(bulk_id),
            timeout=timeout,
            poll=poll,
            timed_out=BulkWaitTimedOut,
            on_progress=on_progress,
        )
        return bulk


def _get(bulk_id: str) -> Call[BulkOperation]:
    return read(BulkOperation, path("bulk", bulk_id))


def _request(
    action: str,
    criteria: Mapping[str, Any],
    priority: int | None,
    priority_score: int | None,
    everything: bool,  # noqa: FBT001 - passed on under its name
    **options: object,
) -> BulkRequest:
    """Return the body of a bulk request; values that are None are left out."""
    fields = without_none(
        {
            "priority": priority,
            "priority_score": priority_score,
            "everything": everything or None,
            **options,
        }
    )
    return validate(BulkRequest, {"action": action, "filter": without_none(criteria), **fields})
