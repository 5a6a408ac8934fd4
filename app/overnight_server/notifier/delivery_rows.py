"""What the notifier claims and records: each step is one short transaction.

Two notifiers are harmless. A channel is locked while a notifier claims from it, a claim has a token
and an end, and a result counts only while its token is on the row. A message whose sender has ended
is sent again: a receiver may get it twice, but never not at all.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection, Row

from overnight_server.domain.delivery_groups import DueDelivery, group_deliveries
from overnight_server.domain.delivery_outcomes import (
    Delivered,
    DeliveryRetries,
    NotDelivered,
    Outcome,
    SendInterrupted,
)
from overnight_server.domain.notifications import NotificationKind
from overnight_server.mask import mask_value
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

# How many deliveries of a channel are looked at for one pass; those of a digest become one message.
WINDOW = 200
DIGEST_WINDOW = 5000
# How many events a digest shows; it says how many there are.
SHOWN = 100
# Deliveries behind others of their thread are due when these end; this is for a lost wake-up.
BLOCKED_SECONDS = 600.0
# A kind of a digest waits so long if no message of it has ended yet.
DIGEST_SECONDS = 5.0
GIVEN_UP_AT_ONCE = 1000
# After so many failures in a row the receiver itself is left alone.
TOLERATED_FAILURES = 3
FIRST_BLOCK_SECONDS = 5.0
LONGEST_BLOCK_SECONDS = 300.0


@dataclass(frozen=True)
class Receiver:
    """Where messages go, with the secrets that this needs."""

    id: UUID
    user_id: UUID
    name: str
    kind: str
    address: str
    secrets: tuple[str, ...] = ()
    private_allowed: bool = False


@dataclass(frozen=True)
class DueChannel:
    """A channel to which something may be sent; `is_failing`: its last message failed."""

    id: UUID
    kind: str
    is_failing: bool


@dataclass(frozen=True)
class NotifiedEvent:
    """What a message tells of."""

    id: int
    kind: str
    subject: str
    task_id: UUID | None
    dag_id: UUID | None
    detail: Mapping[str, Any]
    at: datetime

    @property
    def thread(self) -> UUID | None:
        """The task or else the graph that the event concerns."""
        return self.task_id or self.dag_id


@dataclass(frozen=True)
class Message:
    """Deliveries that this process has claimed as one message; a digest shows its first events."""

    id: str
    token: UUID
    channel: Receiver
    deliveries: Sequence[DueDelivery]
    events: Sequence[NotifiedEvent]

    @property
    def kind(self) -> str:
        """The kind of its events."""
        return self.deliveries[0].kind

    @property
    def is_digest(self) -> bool:
        """Whether it stands for several events."""
        return len(self.deliveries) > 1


@dataclass(frozen=True)
class Result:
    """What became of a message."""

    message: Message
    outcome: Outcome


@dataclass(frozen=True)
class Ended:
    """What a result has ended: messages that are given up, and a channel that was disabled."""

    dead: Sequence[int] = ()
    is_disabled: bool = False


def find_channels(
    db: Db,
    *,
    kinds: Sequence[str],
    failing_kinds: Sequence[str],
    per_channel: int,
    limit: int,
) -> list[DueChannel]:
    """Return channels to which something may be sent now, those that work first.

    They are of these kinds; those whose last message failed are of `failing_kinds`.
    """
    params = {
        "kinds": list(kinds),
        "failing_kinds": list(failing_kinds),
        "per_channel": per_channel,
        "limit": limit,
    }
    rows = db.atomically(
        lambda tx: tx.execute(statement("channels_with_due_deliveries"), params).all()
    )
    return [DueChannel(row.id, row.kind, row.is_failing) for row in rows]


def claim_messages(
    db: Db, channel_id: UUID, *, limit: int, per_channel: int, lease: float
) -> list[Message]:
    """Claim the next messages to a channel; none if another notifier is claiming from it."""

    def work(tx: Connection) -> list[Message]:
        row = tx.execute(statement("lock_channel_to_send"), {"channel": channel_id}).one_or_none()
        return [] if row is None else _claim(tx, row, limit, per_channel, lease)

    return db.atomically(work)


def _claim(
    tx: Connection, row: Row[Any], limit: int, per_channel: int, lease: float
) -> list[Message]:
    params = {"channel": row.id}
    sending = tx.execute(statement("sending_of_channel"), params).scalar_one()
    slots = min(limit, (1 if row.failures else per_channel) - sending)
    window = {
        "only_tests": not row.may_send,
        "limit": DIGEST_WINDOW if row.digest_after else WINDOW,
    }
    due = [
        DueDelivery(one.id, one.notification_id, one.kind, one.attempts, one.predecessor)
        for one in tx.execute(statement("due_deliveries_of_channel"), {**params, **window})
    ]
    if slots < 1 or not due:
        return []
    allowed, more_at = _allowed(tx, row, due)
    grouping = group_deliveries(due, slots=slots, allowed=allowed)
    _postpone(tx, grouping.blocked, None, BLOCKED_SECONDS)
    for kind, ids in grouping.postponed.items():
        _postpone(tx, ids, more_at.get(kind), DIGEST_SECONDS)
    messages = [(_message_id(members), uuid4(), members) for members in grouping.messages]
    claims = [(one.id, token, name) for name, token, members in messages for one in members]
    if not claims:
        return []
    ids, tokens, names = (list(column) for column in zip(*claims, strict=True))
    tx.execute(
        statement("claim_deliveries"),
        {"delivery_ids": ids, "tokens": tokens, "message_ids": names, "lease": lease},
    )
    events = _read_events(tx, [members for _, _, members in messages])
    channel = _channel(row)
    return [
        Message(
            name,
            token,
            channel,
            members,
            [events[one.notification_id] for one in members[:SHOWN]],
        )
        for name, token, members in messages
    ]


def _channel(row: Row[Any]) -> Receiver:
    secrets = tuple(secret for secret in (row.secret, row.old_secret) if secret)
    return Receiver(
        *(row.id, row.user_id, row.name, row.kind, row.full_address), secrets, row.private_allowed
    )


def _message_id(members: Sequence[DueDelivery]) -> str:
    """Return the id of a message; a single delivery has the same one each time it is tried."""
    first = f"msg_{members[0].id}"
    return first if len(members) == 1 else f"{first}_{members[-1].id}_{len(members)}"


def _allowed(
    tx: Connection, row: Row[Any], due: Sequence[DueDelivery]
) -> tuple[dict[str, int] | None, dict[str, datetime | None]]:
    """Return how many messages of each kind may be sent now, and when there may be one more."""
    if not row.digest_after:
        return None, {}
    kinds = sorted({one.kind for one in due})
    params = {"channel": row.id, "kinds": kinds, "minutes": row.digest_minutes}
    sent = {one.kind: one for one in tx.execute(statement("messages_of_channel"), params)}
    allowed = {
        kind: max(0, row.digest_after - (sent[kind].messages if kind in sent else 0))
        for kind in kinds
    }
    return allowed, {kind: one.more_at for kind, one in sent.items()}


def _postpone(tx: Connection, ids: Sequence[int], until: datetime | None, seconds: float) -> None:
    if ids:
        params = {"ids": list(ids), "due_again_at": until, "seconds": seconds}
        tx.execute(statement("postpone_deliveries"), params)


def _read_events(
    tx: Connection, messages: Sequence[Sequence[DueDelivery]]
) -> dict[int, NotifiedEvent]:
    """Return the events that messages show, masked as log lines are."""
    ids = [one.notification_id for members in messages for one in members[:SHOWN]]
    rows = tx.execute(statement("notifications_to_send"), {"ids": ids}).all()
    return {
        row.id: NotifiedEvent(
            *(row.id, row.kind, row.subject, row.task_id, row.dag_id),
            {name: mask_value(name, value) for name, value in row.detail.items()},
            row.at,
        )
        for row in rows
    }


def record_results(db: Db, results: Sequence[Result], policy: DeliveryRetries) -> list[Ended]:
    """Record what became of messages, for each in order; what another sender has taken stays."""
    rows = {
        id(result): [
            {"id": one.id, "token": str(result.message.token), **_row(one, result, policy)}
            for one in result.message.deliveries
        ]
        for result in results
    }

    def work(tx: Connection) -> list[Ended]:
        channels = sorted({result.message.channel.id for result in results})
        tx.execute(statement("lock_channels_in_order"), {"channels": channels})
        written = [row for result in results for row in rows[id(result)]]
        states = {
            row.id: row.state
            for row in tx.execute(
                statement("finish_deliveries"), {"results": json.dumps(written)}
            ).all()
        }
        over = [number for number, state in states.items() if state != "pending"]
        if over:
            tx.execute(statement("next_of_threads"), {"ids": over})
        return [_record_channel(tx, result, states) for result in results]

    return db.atomically(work) if results else []


def _row(delivery: DueDelivery, result: Result, policy: DeliveryRetries) -> dict[str, Any]:
    """Return the new values of a delivery."""
    row = {"attempts": 1, "seconds": 0.0, "status": None, "error": None}
    match result.outcome:
        case Delivered(status):
            return {**row, "state": "delivered", "status": status}
        case SendInterrupted():
            return {**row, "state": "pending", "attempts": 0}
        case NotDelivered() as failure:
            attempts = delivery.attempts + 1
            # Somebody is waiting for the result of a test.
            is_test = delivery.kind == NotificationKind.TEST
            wait = None if is_test else policy.next_try(attempts, failure, random.random())  # noqa: S311 - not a secret
            return {
                **row,
                "state": "dead" if wait is None else "pending",
                "seconds": wait or 0.0,
                "status": failure.status,
                "error": failure.error[:500],
            }


def _record_channel(tx: Connection, result: Result, states: Mapping[int, str]) -> Ended:
    """Record what a result says of the receiver; return what has ended with it."""
    channel = result.message.channel
    mine = [one.id for one in result.message.deliveries if one.id in states]
    match result.outcome:
        case Delivered():
            tx.execute(statement("channels_answered"), {"channels": [channel.id]})
        case NotDelivered(is_gone=True, error=error):
            disabled = disable(tx, channel.id, error)
            return Ended([number for number in mine if states[number] == "dead"], disabled)
        case NotDelivered(is_final=False) as failure:
            params = {
                "channel": channel.id,
                "retry_after": failure.retry_after,
                "tolerated": TOLERATED_FAILURES,
                "first_block": FIRST_BLOCK_SECONDS,
                "longest_block": LONGEST_BLOCK_SECONDS,
            }
            tx.execute(statement("channel_failed"), params)
        case _:
            pass
    return Ended([number for number in mine if states[number] == "dead"])


def disable(tx: Connection, channel_id: UUID, error: str) -> bool:
    """Tell a channel nothing more, and give up what it has not got; False if it was disabled."""
    row = tx.execute(statement("disable_channel"), {"channel": channel_id}).one_or_none()
    if row is not None:
        params = {"channel": channel_id, "error": error}
        tx.execute(statement("end_deliveries_of_channel"), params)
    return row is not None


def give_up_old(db: Db) -> int:
    """Give up deliveries that could not be sent for days; return how many."""

    def work(tx: Connection) -> int:
        rows = tx.execute(statement("give_up_deliveries"), {"limit": GIVEN_UP_AT_ONCE}).all()
        if rows:
            tx.execute(statement("next_of_threads"), {"ids": [row.id for row in rows]})
        return len(rows)

    return db.atomically(work)
