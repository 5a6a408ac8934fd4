"""A chaos run compares its outbox with what the receiver of its messages has accepted."""

import time
from random import Random
from typing import Any
from uuid import UUID

import pytest

from overnight_server.domain.webhook_signatures import signed_headers
from tests.chaos.outbox import MOST_FAILURES, SECRET, FailingReceiver, check_deliveries
from tests.support.receivers import Received

USER, OTHER, CHANNEL, TASK = (UUID(int=number) for number in range(4))


def row(number: int, **columns: Any) -> dict[str, Any]:
    """Return a delivery of the outbox."""
    return {
        "id": number,
        "channel_id": CHANNEL,
        "user_id": USER,
        "kind": "dag.finished",
        "thread": TASK,
        "state": "delivered",
        "message": f"msg_{number}",
        "error": None,
        **columns,
    }


def request(number: int, user: UUID = USER, secret: str = SECRET) -> Received:
    """Return a request with the message of a delivery."""
    headers = signed_headers([secret], f"msg_{number}", int(time.time()), b"{}")
    return Received(f"/204/{user}", headers, b"{}")


def test_messages_that_arrived_in_order_are_no_finding() -> None:
    accepted = [request(1), request(1), request(2)]

    assert check_deliveries([row(1), row(2)], accepted) == {}


@pytest.mark.parametrize(
    ("rows", "accepted", "finding"),
    [
        ([row(1), row(2)], [request(1)], "delivered messages that the receiver never got"),
        ([row(1)], [request(1, OTHER)], "delivered messages that the receiver never got"),
        (
            [row(1, state="dead", error="500")],
            [],
            "messages that were not delivered",
        ),
        ([row(1)], [request(1), request(1, OTHER)], "messages at the address of another user"),
        (
            [row(1), row(2)],
            [request(2), request(1)],
            "messages about one task or graph in the wrong order",
        ),
        (
            [row(1)],
            [request(1, secret=f"whsec_{'A' * 32}")],
            "messages without a valid signature",
        ),
    ],
)
def test_each_broken_promise_is_a_finding(
    rows: list[dict[str, Any]], accepted: list[Received], finding: str
) -> None:
    assert finding in check_deliveries(rows, accepted)


def test_messages_of_different_tasks_have_no_order() -> None:
    rows = [row(1), row(2, thread=None), row(3, thread=OTHER)]

    assert check_deliveries(rows, [request(3), request(2), request(1)]) == {}


def test_the_receiver_fails_no_message_for_ever() -> None:
    receiver = FailingReceiver(random=Random(7))
    receiver.released.set()
    tries = [receiver.answer(request(number)) for number in range(50) for _ in range(20)]

    assert max(receiver.failures.values()) == MOST_FAILURES
    assert len(receiver.accepted) == tries.count("204") == 1000 - receiver.failures.total()
