"""Routes of notifications: the caller's channels, and the log of what they were sent."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from overnight.models.notifications import (
    AddedChannel,
    Channel,
    ChannelChange,
    ChannelCreate,
    ChannelRemoved,
    DeliveriesReplayed,
    Delivery,
    NewSecret,
    ReportTime,
    ReportTimeSet,
    SecretRotation,
)
from overnight_server.api.http.authentication import Reader, Writer
from overnight_server.api.http.dependencies import Injected
from overnight_server.api.http.pagination import (
    PAGE,
    BeforeNumber,
    Limit,
    number_cursor,
    paginate,
)
from overnight_server.api.http.params import parse_delivery_param
from overnight_server.api.http.thread_route import ThreadRoute
from overnight_server.control import notification_channels
from overnight_server.control.notification_channels import Ways
from overnight_server.insight.notifications import (
    get_channel,
    get_delivery,
    get_report_time,
    list_channels,
    list_deliveries,
)

router = APIRouter(route_class=ThreadRoute, prefix="/api/v1/notifications", tags=["notifications"])
DEFAULT_ROTATION = SecretRotation()
ChannelFilter = Annotated[
    str | None, Query(max_length=200, description="Only deliveries to the channel of this name.")
]
StateFilter = Annotated[
    Literal["pending", "sending", "delivered", "dead"] | None,
    Query(description="Only deliveries in this state."),
]


@router.get("/channels")
def list_own_channels(deps: Injected, caller: Reader) -> list[Channel]:
    """List the caller's channels by name, without their secrets."""
    return list_channels(deps.db, caller.user_id)


@router.post("/channels", status_code=201)
def add_channel(
    body: ChannelCreate, response: Response, deps: Injected, caller: Writer
) -> AddedChannel:
    """Add a channel. The answer has the secret of a webhook, this once."""
    secret = notification_channels.add(deps.db, caller, body, Ways.of(deps.settings))
    response.headers["Location"] = f"{router.prefix}/channels/{body.name}"
    channel = get_channel(deps.db, caller.user_id, body.name)
    return AddedChannel(**vars(channel), secret=secret)


@router.get("/channels/{channel}")
def read_channel(channel: str, deps: Injected, caller: Reader) -> Channel:
    """Return one channel, without its secrets."""
    return get_channel(deps.db, caller.user_id, channel)


@router.patch("/channels/{channel}")
def change_channel(channel: str, body: ChannelChange, deps: Injected, caller: Writer) -> Channel:
    """Change a channel; what the body leaves out stays."""
    notification_channels.change(deps.db, caller, channel, body, Ways.of(deps.settings))
    return get_channel(deps.db, caller.user_id, channel)


@router.delete("/channels/{channel}")
def remove_channel(channel: str, deps: Injected, caller: Writer) -> ChannelRemoved:
    """Remove a channel; what it has not got is given up."""
    notification_channels.remove(deps.db, caller, channel)
    return ChannelRemoved(name=channel, removed=True)


@router.post("/channels/{channel}/test", status_code=202)
def test_channel(channel: str, deps: Injected, caller: Writer) -> Delivery:
    """Send a test message at once, also in quiet hours; it is tried once.

    The delivery that is returned says later what became of it.
    """
    number = notification_channels.send_test(deps.db, caller, channel)
    return get_delivery(deps.db, caller.user_id, number)


@router.post("/channels/{channel}/rotate", status_code=201)
def rotate_channel_secret(
    channel: str, deps: Injected, caller: Writer, body: SecretRotation = DEFAULT_ROTATION
) -> NewSecret:
    """Replace the secret of a webhook and return the new one, this once.

    Until the grace is over, messages are signed with both.
    """
    return notification_channels.rotate(deps.db, caller, channel, body)


@router.post("/channels/{channel}/replay", status_code=202)
def replay_dead_deliveries(channel: str, deps: Injected, caller: Writer) -> DeliveriesReplayed:
    """Send the dead deliveries of a channel again."""
    count = notification_channels.replay_dead(deps.db, caller, channel)
    return DeliveriesReplayed(replayed=count)


@router.get("/report-time")
def read_report_time(deps: Injected, caller: Reader) -> ReportTime:
    """Return when the caller's morning report is sent."""
    return get_report_time(deps.db, caller.user_id)


@router.put("/report-time")
def set_report_time(body: ReportTimeSet, deps: Injected, caller: Writer) -> ReportTime:
    """Set when the caller's morning report is sent, in a time zone."""
    notification_channels.set_report_time(deps.db, caller, body)
    return get_report_time(deps.db, caller.user_id)


@router.get("/deliveries")
def list_own_deliveries(
    *,
    request: Request,
    response: Response,
    deps: Injected,
    caller: Reader,
    channel: ChannelFilter = None,
    state: StateFilter = None,
    limit: Limit = PAGE,
    before: BeforeNumber = None,
) -> list[Delivery]:
    """List the caller's deliveries, the latest first."""
    deliveries = list_deliveries(
        deps.db,
        caller.user_id,
        channel=channel,
        state=state,
        before=number_cursor(before),
        limit=limit + 1,
    )
    return paginate(request, response, deliveries, limit, lambda delivery: delivery.id)


@router.get("/deliveries/{notification_id}")
def read_delivery(notification_id: str, deps: Injected, caller: Reader) -> Delivery:
    """Return one delivery: whether it arrived, and why not."""
    return get_delivery(deps.db, caller.user_id, parse_delivery_param(notification_id))


@router.post("/deliveries/{notification_id}/replay", status_code=202)
def replay_delivery(notification_id: str, deps: Injected, caller: Writer) -> Delivery:
    """Send a delivery again that is delivered or dead; its message has the same id."""
    number = parse_delivery_param(notification_id)
    notification_channels.replay(deps.db, caller, number)
    return get_delivery(deps.db, caller.user_id, number)
