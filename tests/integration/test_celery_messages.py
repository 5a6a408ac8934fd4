"""Celery messages: neither Redis nor Celery keeps or repeats a message that was received."""

from collections.abc import Iterator
from contextlib import suppress
from uuid import uuid4

import pytest
from celery import Celery
from kombu import Message, Queue
from redis import Redis

from overnight_server.dispatch.celery_settings import agent_queue, celery_settings
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.settings import load
from overnight_worker import celery_app
from overnight_worker.message_filter import MESSAGE_FILTER

QUEUE = agent_queue("default")


@pytest.fixture
def prefix() -> str:
    return f"test-{uuid4().hex[:8]}:"


@pytest.fixture
def app(redis: EmbeddedRedis, prefix: str) -> Iterator[Celery]:
    settings = load({"OVERNIGHT_REDIS_URL": redis.url, "OVERNIGHT_REDIS_KEY_PREFIX": prefix})
    app = Celery(set_as_current=False)
    app.conf.update(celery_settings(settings))
    yield app
    app.close()


def _queue(app: Celery) -> Queue:
    return app.amqp.queues[QUEUE]


def test_a_message_of_a_process_that_ends_is_not_delivered_again(
    app: Celery, redis: EmbeddedRedis, prefix: str
) -> None:
    """The reaper releases its claim; a second delivery would come long after that."""
    assert celery_app.app
    app.send_task("overnight.execute", queue=QUEUE)

    with app.connection_for_read() as connection, connection.channel() as channel:
        received = _queue(app).bind(channel).get(no_ack=False)
        assert received is not None

    with Redis.from_url(redis.url) as client:
        assert client.keys(f"{prefix}*") == []


def test_a_pickled_message_is_dropped_unread(app: Celery) -> None:
    dropped = MESSAGE_FILTER.dropped
    with app.connection_for_write() as connection:
        connection.Producer(serializer="pickle").publish(
            {"any": "object"}, exchange="", routing_key=QUEUE
        )

    received: list[Message] = []
    with (
        app.connection_for_read() as connection,
        app.amqp.TaskConsumer(connection, queues=[_queue(app)], on_message=received.append),
    ):
        while MESSAGE_FILTER.dropped == dropped:
            with suppress(TimeoutError):
                connection.drain_events(timeout=0.1)

    assert received == []
