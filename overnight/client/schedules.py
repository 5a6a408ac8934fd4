"""Operations on schedules; available as `client.schedules`."""

import builtins
import uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Unpack

from overnight.client.calls import (
    Call,
    Page,
    path,
    read,
    read_list,
    read_page,
    send,
    without_none,
)
from overnight.client.operations import D, Group, iteration, operation
from overnight.client.request_plan import ItemSteps, paginate
from overnight.models.field_errors import validate
from overnight.models.schedules import (
    Backfill,
    BackfillRequest,
    FireTime,
    Schedule,
    ScheduleChanges,
    ScheduleCreate,
    ScheduleDeleted,
    ScheduleEdit,
    ScheduleFields,
    ScheduleFire,
    SchedulePreview,
)


class Schedules(Group[D]):
    """Tasks and graphs that are submitted at fire times; available as `client.schedules`."""

    @operation
    def create(self, name: str, when: str, **fields: Unpack[ScheduleFields]) -> Call[Schedule]:
        """Create a schedule; `when` is a time in words or a cron expression.

        `task` has the fields of a new task; give `graph` instead for a whole graph. Their texts may
        hold `{{ fire_time }}` and other names.
        """
        return send(Schedule, "POST", path("schedules"), _body(name, when, fields))

    @operation
    def preview(
        self,
        name: str,
        when: str,
        *,
        count: int = 5,
        **fields: Unpack[ScheduleFields],
    ) -> Call[SchedulePreview]:
        """Return when a schedule would fire and what it would submit; nothing is created."""
        call = send(
            SchedulePreview, "POST", path("schedules", "preview"), _body(name, when, fields)
        )
        return replace(call, params={"count": count})

    @iteration
    def list(
        self, *, name: str | None = None, zone: str | None = None, limit: int | None = None
    ) -> ItemSteps[Schedule]:
        """Yield your schedules by name; with `zone`, their fire times in words are in that zone."""

        def get_page(size: int, cursor: str | None) -> Call[Page[Schedule]]:
            return read_page(
                Schedule, path("schedules"), name=name, zone=zone, limit=size, before=cursor
            )

        yield from paginate(get_page, limit)

    @operation
    def get(self, schedule_id: str, *, zone: str | None = None) -> Call[Schedule]:
        """Return one schedule, its next five fire times and its latest outcome."""
        return read(Schedule, path("schedules", schedule_id), zone=zone)

    @operation
    def edit(
        self, schedule_id: str, *, etag: str = "*", **changes: Unpack[ScheduleChanges]
    ) -> Call[Schedule]:
        """Change a schedule; with an ETag (its edition in quotes), only if it is still that one."""
        body = validate(ScheduleEdit, changes)
        return send(Schedule, "PATCH", path("schedules", schedule_id), body, {"If-Match": etag})

    @operation
    def delete(self, schedule_id: str) -> Call[ScheduleDeleted]:
        """Delete a schedule; what it has submitted goes on."""
        return send(ScheduleDeleted, "DELETE", path("schedules", schedule_id))

    @operation
    def pause(self, schedule_id: str) -> Call[Schedule]:
        """Let its fire times pass without a submit, until it is resumed."""
        return send(Schedule, "POST", path("schedules", schedule_id, "pause"))

    @operation
    def resume(self, schedule_id: str) -> Call[Schedule]:
        """Let a paused schedule fire again."""
        return send(Schedule, "POST", path("schedules", schedule_id, "resume"))

    @operation
    def run(self, schedule_id: str, *, idempotency_key: str | None = None) -> Call[ScheduleFire]:
        """Submit now what it submits; a key is generated, so that a repeated request runs once."""
        headers = {"Idempotency-Key": idempotency_key or f"auto-{uuid.uuid4()}"}
        return send(ScheduleFire, "POST", path("schedules", schedule_id, "run"), headers=headers)

    @operation
    def backfill(
        self, schedule_id: str, since: datetime, until: datetime, *, preview: bool = False
    ) -> Call[Backfill]:
        """Let the past fire times of a range run, one after the other, or preview that."""
        fields = {"since": since, "until": until, "preview": preview}
        body = validate(BackfillRequest, fields)
        return send(Backfill, "POST", path("schedules", schedule_id, "backfill"), body)

    @operation
    def next_times(
        self, schedule_id: str, *, count: int = 5, zone: str | None = None
    ) -> Call[builtins.list[FireTime]]:
        """Return the next fire times, as instants and in words."""
        return read_list(FireTime, path("schedules", schedule_id, "next"), count=count, zone=zone)

    @iteration
    def fires(
        self, schedule_id: str, *, status: str | None = None, limit: int | None = None
    ) -> ItemSteps[ScheduleFire]:
        """Yield its fire times and what became of them, the latest first."""

        def get_page(size: int, cursor: str | None) -> Call[Page[ScheduleFire]]:
            return read_page(
                ScheduleFire,
                path("schedules", schedule_id, "fires"),
                status=status,
                limit=size,
                before=cursor,
            )

        yield from paginate(get_page, limit)


def _body(name: str, when: str, fields: Mapping[str, Any]) -> ScheduleCreate:
    return validate(ScheduleCreate, without_none({"name": name, "when": when, **fields}))
