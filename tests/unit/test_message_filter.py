"""Which messages a worker passes on to Celery."""

import json
from typing import Any

import pytest

from overnight_server.dispatch import celery_message
from overnight_server.dispatch.celery_settings import EXECUTE, MAINTENANCE_QUEUE, agent_queue
from overnight_worker.message_filter import MessageFilter, refusal

QUEUE = agent_queue("default")


def message(task: str = EXECUTE, **headers: object) -> dict[str, Any]:
    sent = celery_message.message(task, [], message_id="id", queue=QUEUE, display="", origin="here")
    read: dict[str, Any] = json.loads(sent)
    read["headers"] |= headers
    return read


@pytest.mark.parametrize("task", [EXECUTE, "sweep.reap"])
def test_a_message_of_the_service_passes(task: str) -> None:
    assert refusal(message(task)) is None


@pytest.mark.parametrize(
    ("forged", "reason"),
    [
        (message(eta="2999-01-01T00:00:00+00:00"), "eta"),
        (message(eta="not an instant"), "eta"),
        (message(timelimit=[1, None]), "time limit"),
        (message("celery.chord_unlock"), "unknown task"),
        (message("os.system"), "unknown task"),
        (message(id=None), "malformed"),
        (message() | {"headers": None}, "malformed"),
        (message() | {"body": None}, "malformed"),
        (message() | {"properties": {}}, "malformed"),
        # Protocol version 1 has no headers.
        ({"task": EXECUTE, "id": "x", "args": [], "eta": "2999-01-01"}, "malformed"),
        (None, "malformed"),
        ([], "malformed"),
    ],
)
def test_a_forged_message_is_refused(forged: object, reason: str) -> None:
    assert refusal(forged) == reason


def test_messages_are_counted_and_other_queues_are_not_filtered() -> None:
    seen: list[str] = []
    messages = MessageFilter()
    messages.read_queue("canary.x", lambda: seen.append("canary"))

    assert messages.passes(message(), QUEUE)
    assert messages.passes("anything", "celery@host.celery.pidbox")
    assert not messages.passes("forged", QUEUE)
    assert not messages.passes("forged", MAINTENANCE_QUEUE)
    assert not messages.passes(0, "canary.x")

    assert (messages.dropped, seen) == (2, ["canary"])
