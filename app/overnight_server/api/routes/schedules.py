"""Routes of schedules: create, list, change, pause, run, backfill, and what they have done."""

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from overnight.errors import InvalidRequest
from overnight.models.field_types import Instant
from overnight.models.schedules import (
    MOST_TIMES,
    Backfill,
    BackfillRequest,
    FireTime,
    Schedule,
    ScheduleCreate,
    ScheduleDeleted,
    ScheduleEdit,
    ScheduleFire,
    SchedulePreview,
)
from overnight_server.api.http.authentication import Reader, Writer
from overnight_server.api.http.dependencies import Injected
from overnight_server.api.http.etags import IF_MATCH, parse_if_match
from overnight_server.api.http.openapi import repeated_response
from overnight_server.api.http.pagination import (
    PAGE,
    BeforeName,
    Limit,
    encode_name_cursor,
    name_cursor,
    paginate,
)
from overnight_server.api.http.params import IdempotencyKey, parse_schedule_param
from overnight_server.api.http.thread_route import ThreadRoute
from overnight_server.control import schedules as acts
from overnight_server.domain.fire_times import Cron
from overnight_server.domain.ids import show_schedule
from overnight_server.domain.schedule_words import describe
from overnight_server.domain.schedules import FireStatus
from overnight_server.domain.windows import is_zone
from overnight_server.insight.schedules import (
    NEXT_TIMES,
    get_fire,
    get_schedule,
    in_words,
    list_fires,
    list_schedules,
    next_fire_times,
)
from overnight_server.intake.translate_request import idempotency_key

router = APIRouter(route_class=ThreadRoute, prefix="/api/v1/schedules", tags=["schedules"])
REPEATED = repeated_response(ScheduleFire, "The first run; the idempotency key was used before.")
Zone = Annotated[
    str | None,
    Query(max_length=100, description="The time zone of the words; default: that of the schedule."),
]
StatusFilter = Annotated[
    str | None,
    Query(
        max_length=200,
        description="Only fire times with this status.",
        json_schema_extra={"enum": list(FireStatus)},
    ),
]


@router.post("", status_code=201)
def create_schedule(
    body: ScheduleCreate, response: Response, deps: Injected, caller: Writer
) -> Schedule:
    """Create a schedule: a task or a graph that is submitted at its fire times."""
    schedule_id = acts.add_schedule(
        deps.db, caller.user_id, body, deps.settings, actor=f"user:{caller.user_id}"
    )
    response.headers["Location"] = f"{router.prefix}/{show_schedule(schedule_id)}"
    return _with_etag(response, get_schedule(deps.db, caller.user_id, schedule_id))


# Declared before /{schedule_id}, which would take `preview` for an id.
@router.post("/preview")
def preview_schedule(
    body: ScheduleCreate,
    deps: Injected,
    caller: Reader,
    count: Annotated[
        int, Query(ge=1, le=MOST_TIMES, description="How many fire times to show.")
    ] = NEXT_TIMES,
    zone: Zone = None,
) -> SchedulePreview:
    """Show when a schedule would fire and what it would submit; nothing is created."""
    definition = acts.preview_schedule(deps.db, caller.user_id, body, deps.settings)
    timing = definition.times.timing
    return SchedulePreview(
        description=describe(timing),
        cron=timing.expression if isinstance(timing, Cron) else None,
        zone=body.zone,
        next=in_words(definition.next_times(count), _zone(zone) or body.zone),
        submits=dict(definition.first_request),
    )


@router.get("")
def list_own_schedules(
    *,
    request: Request,
    response: Response,
    deps: Injected,
    caller: Reader,
    name: Annotated[
        str | None, Query(max_length=100, description="Only the schedule of this name.")
    ] = None,
    zone: Zone = None,
    limit: Limit = PAGE,
    before: BeforeName = None,
) -> list[Schedule]:
    """List the caller's schedules by name, with their next fire times; Link has the next page."""
    schedules = list_schedules(
        deps.db,
        caller.user_id,
        name=_storable("name", name),
        after=name_cursor(before),
        limit=limit + 1,
        zone=_zone(zone),
    )
    return paginate(
        request, response, schedules, limit, lambda schedule: encode_name_cursor(schedule.name)
    )


@router.get("/{schedule_id}")
def read_schedule(
    schedule_id: str, response: Response, deps: Injected, caller: Reader, zone: Zone = None
) -> Schedule:
    """Return one schedule, its next five fire times and its latest outcome."""
    parsed_id = parse_schedule_param(schedule_id)
    schedule = get_schedule(deps.db, caller.user_id, parsed_id, zone=_zone(zone))
    return _with_etag(response, schedule)


@router.patch("/{schedule_id}", openapi_extra=IF_MATCH)
def edit_schedule(
    *,
    schedule_id: str,
    body: ScheduleEdit,
    response: Response,
    deps: Injected,
    caller: Writer,
    # OpenAPI lists it as required; a request without it gets 428 from `parse_if_match`.
    if_match: Annotated[str | None, Header(max_length=1_000, include_in_schema=False)] = None,
) -> Schedule:
    """Change a schedule, if its ETag is still that of If-Match; later fire times follow it."""
    parsed_id = parse_schedule_param(schedule_id)
    get_schedule(deps.db, caller.user_id, parsed_id)  # raises ScheduleNotFound for another user's
    acts.edit_schedule(
        deps.db,
        caller.user_id,
        parsed_id,
        body,
        deps.settings,
        editions=parse_if_match(if_match),
        actor=f"user:{caller.user_id}",
    )
    return _with_etag(response, get_schedule(deps.db, caller.user_id, parsed_id))


@router.delete("/{schedule_id}")
def delete_schedule(schedule_id: str, deps: Injected, caller: Writer) -> ScheduleDeleted:
    """Delete a schedule: it does not fire again; what it has submitted goes on."""
    parsed_id = parse_schedule_param(schedule_id)
    acts.delete_schedule(deps.db, caller.user_id, parsed_id, actor=f"user:{caller.user_id}")
    return ScheduleDeleted(id=show_schedule(parsed_id))


@router.post("/{schedule_id}/pause")
def pause_schedule(
    schedule_id: str, response: Response, deps: Injected, caller: Writer
) -> Schedule:
    """Let the fire times of a schedule pass without a submit, until it is resumed."""
    parsed_id = parse_schedule_param(schedule_id)
    acts.pause_schedule(
        deps.db, caller.user_id, parsed_id, deps.settings, actor=f"user:{caller.user_id}"
    )
    return _with_etag(response, get_schedule(deps.db, caller.user_id, parsed_id))


@router.post("/{schedule_id}/resume")
def resume_schedule(
    schedule_id: str, response: Response, deps: Injected, caller: Writer
) -> Schedule:
    """Let a schedule fire again, from its next fire time on."""
    parsed_id = parse_schedule_param(schedule_id)
    acts.resume_schedule(
        deps.db, caller.user_id, parsed_id, deps.settings, actor=f"user:{caller.user_id}"
    )
    return _with_etag(response, get_schedule(deps.db, caller.user_id, parsed_id))


@router.post("/{schedule_id}/run", status_code=201, responses=REPEATED)
def run_schedule(
    schedule_id: str,
    response: Response,
    deps: Injected,
    caller: Writer,
    idempotency: IdempotencyKey = None,
) -> ScheduleFire:
    """Submit now what a schedule submits, also if it is paused; a repeated key responds 200."""
    parsed_id = parse_schedule_param(schedule_id)
    fire_at, is_new = acts.run_now(
        deps.db,
        caller.user_id,
        parsed_id,
        deps.settings,
        actor=f"user:{caller.user_id}",
        key=idempotency_key(None, idempotency),
    )
    if not is_new:
        response.status_code = 200
    return get_fire(deps.db, caller.user_id, parsed_id, fire_at)


@router.post("/{schedule_id}/backfill")
def backfill_schedule(
    schedule_id: str, body: BackfillRequest, deps: Injected, caller: Writer
) -> Backfill:
    """Let the past fire times of a range run, one after the other, or preview that."""
    parsed_id = parse_schedule_param(schedule_id)
    return acts.backfill(deps.db, caller.user_id, parsed_id, body, actor=f"user:{caller.user_id}")


@router.get("/{schedule_id}/next")
def read_next_fire_times(
    schedule_id: str,
    deps: Injected,
    caller: Reader,
    count: Annotated[
        int, Query(ge=1, le=MOST_TIMES, description="How many fire times to show.")
    ] = NEXT_TIMES,
    zone: Zone = None,
) -> list[FireTime]:
    """Return the next fire times of a schedule, as instants and in words."""
    parsed_id = parse_schedule_param(schedule_id)
    return next_fire_times(deps.db, caller.user_id, parsed_id, count=count, zone=_zone(zone))


@router.get("/{schedule_id}/fires")
def list_schedule_fires(
    *,
    request: Request,
    response: Response,
    schedule_id: str,
    deps: Injected,
    caller: Reader,
    status: StatusFilter = None,
    limit: Limit = PAGE,
    before: Annotated[
        Instant | None, Query(description="The X-Next-Cursor of the previous page.")
    ] = None,
) -> list[ScheduleFire]:
    """List the fire times of a schedule and what became of them, latest first."""
    if status is not None and status not in set(FireStatus):
        legal = ", ".join(FireStatus)
        raise InvalidRequest("status", "is not a status of a fire time", legal=legal)
    fires = list_fires(
        deps.db,
        caller.user_id,
        parse_schedule_param(schedule_id),
        status=status,
        before=before,
        limit=limit + 1,
    )
    return paginate(
        request, response, fires, limit, lambda fire: f"{fire.fire_time:%Y-%m-%dT%H:%M:%S.%fZ}"
    )


def _with_etag(response: Response, schedule: Schedule) -> Schedule:
    response.headers["ETag"] = f'"{schedule.edition}"'
    return schedule


def _zone(zone: str | None) -> str | None:
    if zone is None or is_zone(zone):
        return zone
    legal = "an IANA name such as Europe/Berlin"
    raise InvalidRequest("zone", "is not a time zone", legal=legal)


def _storable(field: str, text: str | None) -> str | None:
    if text is not None and "\0" in text:
        raise InvalidRequest(field, "holds a NUL character", legal="the name of a schedule")
    return text
