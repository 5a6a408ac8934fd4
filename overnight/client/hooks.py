"""Operations on webhooks that come in: `client.hooks`."""

import builtins
from typing import Unpack

from overnight.client.calls import Call, Page, path, read, read_list, read_page, send, without_none
from overnight.client.operations import D, Group, iteration, operation
from overnight.client.request_plan import ItemSteps, paginate
from overnight.models.field_errors import validate
from overnight.models.hooks import (
    Hook,
    HookChangeFields,
    HookChanges,
    HookCreate,
    HookCreated,
    HookDelivery,
    HookFields,
    HookReceived,
    HookRemoved,
    HookRotate,
)


class Hooks(Group[D]):
    """Sources of webhooks, whose events become tasks, and their deliveries."""

    @operation
    def list(self) -> Call[builtins.list[Hook]]:
        """Return your sources of webhooks by name."""
        return read_list(Hook, path("hooks"))

    @operation
    def create(self, name: str, **fields: Unpack[HookFields]) -> Call[HookCreated]:
        """Add a source of webhooks; the result has its path and its secret."""
        body = validate(HookCreate, {**fields, "name": name})
        return send(HookCreated, "POST", path("hooks"), body)

    @operation
    def get(self, hook_id: str) -> Call[Hook]:
        """Return one source of webhooks."""
        return read(Hook, path("hooks", hook_id))

    @operation
    def edit(self, hook_id: str, **changes: Unpack[HookChangeFields]) -> Call[Hook]:
        """Change a source of webhooks; what is not given stays."""
        return send(Hook, "PATCH", path("hooks", hook_id), validate(HookChanges, changes))

    @operation
    def pause(self, hook_id: str) -> Call[Hook]:
        """Let a source answer as if it did not exist."""
        return send(Hook, "PATCH", path("hooks", hook_id), {"paused": True})

    @operation
    def resume(self, hook_id: str) -> Call[Hook]:
        """End the pause of a source."""
        return send(Hook, "PATCH", path("hooks", hook_id), {"paused": False})

    @operation
    def rotate(
        self, hook_id: str, *, secret: str | None = None, overlap_seconds: int | None = None
    ) -> Call[HookCreated]:
        """Give a source a new secret; the old one is accepted for a day, or for the overlap."""
        fields = without_none({"secret": secret, "overlap_seconds": overlap_seconds})
        body = validate(HookRotate, fields)
        return send(HookCreated, "POST", path("hooks", hook_id, "rotate"), body)

    @operation
    def remove(self, hook_id: str) -> Call[HookRemoved]:
        """Remove a source of webhooks."""
        return send(HookRemoved, "DELETE", path("hooks", hook_id))

    @iteration
    def deliveries(
        self, hook_id: str, *, outcome: str | None = None, limit: int | None = None
    ) -> ItemSteps[HookDelivery]:
        """Yield the deliveries of a source, latest first, without their bodies."""

        def get_page(size: int, cursor: str | None) -> Call[Page[HookDelivery]]:
            url = path("hooks", hook_id, "deliveries")
            return read_page(HookDelivery, url, outcome=outcome, limit=size, before=cursor)

        yield from paginate(get_page, limit)

    @operation
    def delivery(self, delivery_id: int) -> Call[HookDelivery]:
        """Return one delivery with its body."""
        return read(HookDelivery, path("hooks", "deliveries", str(delivery_id)))

    @operation
    def replay(self, delivery_id: int) -> Call[HookReceived]:
        """Make tasks of a delivery again, with the filter and the template of today."""
        url = path("hooks", "deliveries", str(delivery_id), "replay")
        return send(HookReceived, "POST", url)
