"""Operations on channels of notifications and on their deliveries: `client.notifications`."""

from collections.abc import Mapping, Sequence
from typing import TypedDict, Unpack

from overnight.client.calls import Call, Page, path, read, read_list, read_page, send, without_none
from overnight.client.operations import D, Group, iteration, operation
from overnight.client.request_plan import ItemSteps, paginate
from overnight.models.field_errors import validate
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


class ChannelOptions(TypedDict, total=False):
    """Options of a channel; `quiet` has zone, begins and ends, or is None: at any time."""

    quiet: Mapping[str, str] | None
    digest_after: int
    digest_minutes: int


class ChannelEdits(ChannelOptions, total=False):
    """What can be changed of a channel."""

    address: str
    kinds: Sequence[str]
    enabled: bool


class Notifications(Group[D]):
    """Channels that tell you what happened, and the log of what they were sent."""

    @operation
    def channels(self) -> Call[list[Channel]]:
        """Return your channels by name."""
        return read_list(Channel, path("notifications", "channels"))

    @operation
    def channel(self, name: str) -> Call[Channel]:
        """Return one channel."""
        return read(Channel, path("notifications", "channels", name))

    @operation
    def add(
        self,
        name: str,
        kind: str,
        address: str,
        *,
        kinds: Sequence[str] | None = None,
        **options: Unpack[ChannelOptions],
    ) -> Call[AddedChannel]:
        """Add a channel: `webhook`, `slack`, `email` or `service`, with its address.

        Options are `quiet` (zone, begins, ends), `digest_after` and `digest_minutes`. The answer
        has the secret of a webhook, which cannot be read again.
        """
        fields = {"name": name, "kind": kind, "address": address, "kinds": kinds, **options}
        body = validate(ChannelCreate, without_none(fields))
        return send(AddedChannel, "POST", path("notifications", "channels"), body)

    @operation
    def edit(self, name: str, **changes: Unpack[ChannelEdits]) -> Call[Channel]:
        """Change a channel: `address`, `kinds`, `quiet`, `digest_after`, …, `enabled`."""
        body = validate(ChannelChange, changes)
        return send(Channel, "PATCH", path("notifications", "channels", name), body)

    @operation
    def remove(self, name: str) -> Call[ChannelRemoved]:
        """Remove a channel; what it has not got is given up."""
        return send(ChannelRemoved, "DELETE", path("notifications", "channels", name))

    @operation
    def test(self, name: str) -> Call[Delivery]:
        """Send a test message to a channel at once, also in quiet hours; it is tried once."""
        return send(Delivery, "POST", path("notifications", "channels", name, "test"))

    @operation
    def rotate(self, name: str, *, grace_seconds: int = 86_400) -> Call[NewSecret]:
        """Replace the secret of a webhook; the old one signs too for a while."""
        body = validate(SecretRotation, {"grace_seconds": grace_seconds})
        return send(NewSecret, "POST", path("notifications", "channels", name, "rotate"), body)

    @iteration
    def deliveries(
        self, *, channel: str | None = None, state: str | None = None, limit: int | None = None
    ) -> ItemSteps[Delivery]:
        """Yield your deliveries, the latest first; only those of a channel, or in a state."""

        def get_page(size: int, cursor: str | None) -> Call[Page[Delivery]]:
            return read_page(
                Delivery,
                path("notifications", "deliveries"),
                channel=channel,
                state=state,
                limit=size,
                before=cursor,
            )

        yield from paginate(get_page, limit)

    @operation
    def delivery(self, number: int) -> Call[Delivery]:
        """Return one delivery."""
        return read(Delivery, path("notifications", "deliveries", str(number)))

    @operation
    def report_time(self) -> Call[ReportTime]:
        """Return when your morning report is sent."""
        return read(ReportTime, path("notifications", "report-time"))

    @operation
    def set_report_time(self, at: str, zone: str) -> Call[ReportTime]:
        """Set when your morning report is sent, as HH:MM in a time zone."""
        body = validate(ReportTimeSet, {"at": at, "zone": zone})
        return send(ReportTime, "PUT", path("notifications", "report-time"), body)

    @operation
    def replay(self, number: int) -> Call[Delivery]:
        """Send a delivery again that is delivered or dead."""
        return send(Delivery, "POST", path("notifications", "deliveries", str(number), "replay"))

    @operation
    def replay_dead(self, name: str) -> Call[DeliveriesReplayed]:
        """Send every dead delivery of a channel again."""
        return send(DeliveriesReplayed, "POST", path("notifications", "channels", name, "replay"))
