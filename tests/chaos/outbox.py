"""Notifications in a chaos run: webhooks of users, a receiver that fails, and what it must get."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final
from uuid import UUID

from overnight_server.domain.webhook_signatures import SignatureRefused, verify
from tests.chaos.checks import Findings, as_findings
from tests.chaos.load import Producer
from tests.chaos.stack import ChaosStack
from tests.support.notifications import add_channel
from tests.support.receivers import HttpReceiver, Received

SECRET: Final = "whsec_Y2hhb3MgY2hhb3MgY2hhb3MgY2hhb3MgY2hhb3M="
DELIVERED: Final = "messages delivered"
REFUSED: Final = "messages that the receiver did not accept"
ACCEPTED: Final = "204"
# What the receiver does instead of accepting a message; it never does so more often than this with
# one message, so that no message has a reason to be given up.
MOODS: Final = ("500", "close", "hang", "429", "302")
MOST_FAILURES: Final = 2
FAILING_SHARE: Final = 0.15
# Longer than the senders wait for an answer.
HANG_SECONDS: Final = 3.0
TOLERANCE_SECONDS: Final = 3600


@dataclass
class FailingReceiver(HttpReceiver):
    """A server that accepts most messages, and fails some of them once or twice."""

    random: Random = field(default_factory=Random)
    # The accepted requests, in order.
    accepted: list[Received] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    is_healed: bool = False

    def answer(self, request: Received) -> str:
        """Accept a message, or fail to."""
        message = request.headers.get("webhook-id", "")
        may_fail = not self.is_healed and self.failures[message] < MOST_FAILURES
        if may_fail and self.random.random() < FAILING_SHARE:
            self.failures[message] += 1
            return self._mood()
        self.accepted.append(request)
        return ACCEPTED

    def _mood(self) -> str:
        mood = self.random.choice(MOODS)
        if mood != "hang":
            return mood
        # A sender that waited longer would see the connection close.
        self.released.wait(HANG_SECONDS)
        return "close"


def subscribe(stack: ChaosStack, producers: Sequence[Producer], receiver: HttpReceiver) -> None:
    """Tell each producer's own address of everything that concerns the producer."""
    receiver.headers["Retry-After"] = "1"
    for producer in producers:
        url = receiver.url(_path(producer.user_id))
        add_channel(stack.deployment, producer.user_id, url=url, secret=SECRET)


def deliveries(stack: ChaosStack) -> list[Mapping[str, Any]]:
    """Return the messages of the outbox, in order."""
    return stack.deployment.rows(
        "SELECT id, channel_id, user_id, kind, thread, state, message, error"
        " FROM notification_deliveries ORDER BY id"
    )


def check_deliveries(rows: Sequence[Mapping[str, Any]], accepted: Sequence[Received]) -> Findings:
    """Compare the outbox of a drained stack with what its receiver has accepted."""
    first = _first_accepted(accepted)
    delivered = [row for row in rows if row["state"] == "delivered"]
    return as_findings(
        {
            "messages that were not delivered": [
                f"{row['id']} {row['kind']}: {row['state']} {row['error']}"
                for row in rows
                if row["state"] != "delivered"
            ],
            "delivered messages that the receiver never got": [
                f"{row['id']} {row['kind']}" for row in delivered if _address(row) not in first
            ],
            "messages at the address of another user": _misdirected(rows, accepted),
            "messages about one task or graph in the wrong order": _disordered(delivered, first),
            "messages without a valid signature": _unsigned(accepted),
        }
    )


def _path(user_id: UUID) -> str:
    return f"/204/{user_id}"


def _address(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return where a delivery must have arrived: the path and the id of the message."""
    return _path(row["user_id"]), row["message"]


def _first_accepted(accepted: Iterable[Received]) -> dict[tuple[str, str], int]:
    """Return the place in their order at which each message was accepted first."""
    places: dict[tuple[str, str], int] = {}
    for place, request in enumerate(accepted):
        places.setdefault((request.path, request.headers["webhook-id"]), place)
    return places


def _misdirected(rows: Iterable[Mapping[str, Any]], accepted: Iterable[Received]) -> list[str]:
    known = {_address(row) for row in rows}
    addresses = {(request.path, request.headers["webhook-id"]) for request in accepted}
    return [f"{message} at {path}" for path, message in sorted(addresses - known)]


def _disordered(
    delivered: Iterable[Mapping[str, Any]], first: Mapping[tuple[str, str], int]
) -> list[str]:
    threads: dict[tuple[UUID, UUID], list[Mapping[str, Any]]] = defaultdict(list)
    for row in delivered:
        if row["thread"] is not None and _address(row) in first:
            threads[row["channel_id"], row["thread"]].append(row)
    return [
        f"{thread}: {[row['id'] for row in rows]}"
        for (_, thread), rows in threads.items()
        if sorted(rows, key=lambda row: first[_address(row)]) != rows
    ]


def _unsigned(accepted: Iterable[Received]) -> list[str]:
    refused = []
    for request in accepted:
        try:
            verify(
                [SECRET],
                request.headers,
                request.body,
                now=time.time(),
                tolerance=TOLERANCE_SECONDS,
            )
        except SignatureRefused as error:
            refused.append(f"{request.headers.get('webhook-id')}: {error}")
    return refused
