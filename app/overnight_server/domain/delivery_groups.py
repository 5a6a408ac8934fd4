"""Which deliveries to a channel are sent now, which of them as one message, and which wait."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from overnight_server.domain.notifications import NotificationKind


@dataclass(frozen=True)
class DueDelivery:
    """A delivery that is due; `predecessor` is the nearest earlier one of its thread, if open."""

    id: int
    notification_id: int
    kind: str
    attempts: int = 0
    predecessor: int | None = None


@dataclass(frozen=True)
class Grouping:
    """The messages to send; the deliveries that wait for others, and kinds that wait for time."""

    messages: list[Sequence[DueDelivery]] = field(default_factory=list)
    blocked: list[int] = field(default_factory=list)
    postponed: dict[str, list[int]] = field(default_factory=dict)


def group_deliveries(
    due: Sequence[DueDelivery], *, slots: int, allowed: Mapping[str, int] | None = None
) -> Grouping:
    """Choose what is sent in `slots` messages, in the order of `due`.

    Nothing overtakes an earlier delivery of its thread. `allowed` says how many messages of a kind
    may be sent before they become a flood; if more deliveries of that kind are due, all of them are
    one message. Without `allowed` each delivery is a message.

    >>> flood = [DueDelivery(number, number, "usage.80") for number in range(4)]
    >>> [len(message) for message in group_deliveries(flood, slots=9, allowed={}).messages]
    []
    >>> found = group_deliveries(flood, slots=9, allowed={"usage.80": 3})
    >>> [len(message) for message in found.messages]
    [4]
    """
    result = Grouping()
    by_kind: dict[str, list[DueDelivery]] = {}
    for delivery in due:
        by_kind.setdefault(delivery.kind, []).append(delivery)
    digests: dict[str, list[DueDelivery]] = {}
    if allowed is not None:
        for kind, deliveries in by_kind.items():
            if kind == NotificationKind.TEST:
                continue
            members = _without_gaps(deliveries)
            count = allowed.get(kind, 0)
            if members and not count:
                result.postponed[kind] = [member.id for member in members]
            elif len(members) > count:
                digests[kind] = members
    taken = {member.id for members in digests.values() for member in members}
    taken.update(*result.postponed.values())
    begun: set[str] = set()
    for delivery in due:
        message: Sequence[DueDelivery] = (delivery,)
        if delivery.id in taken:
            if delivery.kind not in digests or delivery.kind in begun:
                continue
            begun.add(delivery.kind)
            message = digests[delivery.kind]
        elif delivery.predecessor is not None:
            result.blocked.append(delivery.id)
            continue
        if len(result.messages) < slots:
            result.messages.append(message)
    return result


def _without_gaps(deliveries: Sequence[DueDelivery]) -> list[DueDelivery]:
    """Return those before which nothing is open but others of the same list, by id."""
    members: dict[int, DueDelivery] = {}
    for delivery in sorted(deliveries, key=lambda one: one.id):
        if delivery.predecessor is None or delivery.predecessor in members:
            members[delivery.id] = delivery
    return list(members.values())
