"""Filling free slots: one message per claim, after the commit, and nothing burnt if Redis fails."""

import base64
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from celery import Celery
from redis import Redis
from sqlalchemy import text

from overnight_server.control.users import change_plan
from overnight_server.dispatch import celery_message
from overnight_server.dispatch.celery_settings import EXECUTE, celery_settings
from overnight_server.dispatch.fill import fill, fill_pool
from overnight_server.dispatch.publish import BrokerUnreachable, Publisher
from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import UserId, parse_task, show_task
from overnight_server.domain.plans import PlanLimits, PlanTier
from overnight_server.domain.results import Returned
from overnight_server.gate.claim import Taken, claim
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.outcome.presence import AgentCard, join
from overnight_server.settings import Settings, load
from overnight_server.store.db import Db
from tests.support.house import POOL, TERMS, House
from tests.support.rivals import Rival, held_lane, held_pool, held_task, queue_up

SECRET = "rosebud"
# Longer than a client's own timeouts, far shorter than a claim lives.
BOUND_SECONDS = 5.0
NOBODY_LISTENS = "redis://127.0.0.1:1/0"


@pytest.fixture
def settings(redis: EmbeddedRedis) -> Settings:
    """Settings with keys of their own in Redis; test agents beat only once."""
    return _settings(redis.url)


@pytest.fixture
def publisher(settings: Settings) -> Iterator[Publisher]:
    publisher = Publisher(settings)
    yield publisher
    publisher.close()


def test_each_claim_becomes_one_message_in_its_pools_queue(
    house: House, redis: EmbeddedRedis, settings: Settings, publisher: Publisher
) -> None:
    user = house.user()
    house.agent(slots=2)
    made = [house.task(user, payload={"password": SECRET}) for _ in range(3)]

    done = fill(house.dispatcher, publisher, settings, holder="d")

    messages = _messages(redis, settings, "agents.default")
    assert done.sent == len(messages) == 2
    assert {message.task_id for message in messages} == set(made[:2])
    for message in messages:
        row = house.row(message.task_id)
        assert message.name == EXECUTE
        assert message.args == [[show_task(row["id"]), row["epoch"], str(row["token"])]]
        assert message.id == f"{show_task(row['id'])}:{row['epoch']}"
        assert (row["state"], row["claimed_by"]) == ("claimed", "d")


def test_a_message_shows_whose_task_it_is_but_no_secret(
    house: House, redis: EmbeddedRedis, settings: Settings, publisher: Publisher
) -> None:
    user = house.user()
    house.agent()
    task_id = house.task(user, payload={"password": SECRET})

    fill(house.dispatcher, publisher, settings, holder="d")

    [message] = _messages(redis, settings, "agents.default")
    assert message.argsrepr == f"echo {show_task(task_id)} user={user}"
    assert str(house.row(task_id)["token"]) not in message.argsrepr
    assert SECRET not in message.whole


def test_a_message_is_written_as_celery_would_write_it(
    redis: EmbeddedRedis, settings: Settings
) -> None:
    queue, name, shown = "agents.default", "task_1:1", "echo task_1"
    celery = Celery(set_as_current=False)
    celery.conf.update(celery_settings(settings))
    celery.send_task(
        *(EXECUTE, [["task_1", 1, "token"]]),
        task_id=name,
        queue=queue,
        argsrepr=shown,
        kwargsrepr="{}",
    )
    celery.close()

    ours = celery_message.message(
        EXECUTE, [["task_1", 1, "token"]], message_id=name, queue=queue, shown=shown, origin="us"
    )

    with Redis.from_url(redis.url) as client:
        [theirs] = client.lrange(settings.redis_key_prefix + queue, 0, -1)
    assert _comparable(ours) == _comparable(theirs)


def test_each_pool_has_a_queue_of_its_own(
    house: House, redis: EmbeddedRedis, settings: Settings, publisher: Publisher
) -> None:
    user = house.user()
    house.agent(agent_id="plain")
    house.agent(agent_id="gpu", pool="gpu", capabilities=["gpu"])
    special = house.task(user, required_capabilities=["gpu"])

    fill(house.dispatcher, publisher, settings, holder="d")

    [message] = _messages(redis, settings, "agents.gpu")
    assert message.task_id == special
    assert _messages(redis, settings, "agents.default") == []


def test_a_house_without_work_sends_nothing(
    house: House, redis: EmbeddedRedis, settings: Settings, publisher: Publisher
) -> None:
    house.agent()

    done = fill(house.dispatcher, publisher, settings, holder="d")

    assert (done.sent, done.more) == (0, False)
    assert _messages(redis, settings, "agents.default") == []


def test_without_redis_nothing_is_claimed(house: House) -> None:
    house.agent()
    task_id = house.task(house.user())
    settings = _settings(NOBODY_LISTENS)
    before = house.row(task_id)

    with _publishing(settings) as publisher, _bounded(), pytest.raises(BrokerUnreachable):
        fill(house.dispatcher, publisher, settings, holder="d")

    assert house.row(task_id) == before
    assert house.rows("SELECT * FROM attempts") == []


def test_before_a_hung_redis_nothing_is_claimed(
    house: House, redis: EmbeddedRedis, settings: Settings, publisher: Publisher
) -> None:
    house.agent()
    task_id = house.task(house.user())

    with _hung(redis), _bounded(), pytest.raises(BrokerUnreachable):
        fill(house.dispatcher, publisher, settings, holder="d")

    assert house.row(task_id)["epoch"] == 0


@pytest.mark.parametrize("warm", [True, False], ids=["connected before", "never connected"])
def test_claims_are_given_back_when_redis_hangs_after_the_look(
    house: House, redis: EmbeddedRedis, settings: Settings, publisher: Publisher, *, warm: bool
) -> None:
    user = house.user()
    house.agent()
    if warm:
        house.task(user)
        fill(house.dispatcher, publisher, settings, holder="d")
    waiting = [house.task(user) for _ in range(3)]

    with _hung(redis), _bounded():
        done = fill_pool(house.dispatcher, publisher, settings, POOL, holder="d")

    assert (done.sent, done.more) == (0, False)
    assert [house.state(one) for one in waiting] == ["ready"] * 3
    assert [house.row(one)["attempts"] for one in waiting] == [0] * 3
    assert house.lane(user)["active"] == int(warm)


def test_claims_are_given_back_when_redis_went_away_after_the_look(house: House) -> None:
    house.agent()
    task_id = house.task(house.user())
    settings = _settings(NOBODY_LISTENS)

    with _publishing(settings) as publisher, _bounded():
        done = fill_pool(house.dispatcher, publisher, settings, POOL, holder="d")

    assert done.sent == 0
    assert house.state(task_id) == "ready"


def test_killing_a_run_does_not_wait_for_a_hung_redis(
    redis: EmbeddedRedis, publisher: Publisher
) -> None:
    claim_to_kill = Claim(parse_task(show_task(uuid4())), 1, uuid4())

    with _hung(redis), _bounded():
        publisher.terminate(claim_to_kill)


def test_two_dispatchers_at_one_pool_never_count_a_slot_twice(
    house: House, connect: Callable[..., Db]
) -> None:
    house.agent(slots=1)
    for _ in range(2):
        house.task(house.user())
    rivals = [Rival(connect, f"dispatcher-{n}", _claim) for n in range(2)]

    with held_pool(connect, POOL):
        queue_up(connect, rivals)
    taken: list[Taken] = [rival.answer() for rival in rivals]

    assert [len(one.claims) for one in taken] == [1, 0]


def test_a_claim_that_waits_for_its_pool_holds_up_no_user(
    house: House, connect: Callable[..., Db]
) -> None:
    """Pool before lanes, always: the other way round two dispatchers and a join make a ring."""
    user = house.user()
    house.agent()
    house.task(user)
    house.move_clock(timedelta(days=31))  # the lane's month is over, so the claim will roll it
    dispatcher = Rival(connect, "dispatcher", _claim)

    with held_pool(connect, POOL):
        queue_up(connect, [dispatcher])
        _lock_at_once(house, user)

    assert len(dispatcher.answer().claims) == 1


def test_a_joining_worker_takes_the_lanes_in_order(
    house: House, connect: Callable[..., Db]
) -> None:
    """Everybody who needs several lanes takes them by user, or two could wait in a ring."""
    house.agent()
    later, earlier = house.user(id=UUID(int=2)), house.user(id=UUID(int=1))
    for user in (later, earlier):
        house.task(user, required_capabilities=["none has this"])
    house.claim()
    assert house.lane(later)["parked_for"] == house.lane(earlier)["parked_for"] == [POOL]
    joiner = Rival(connect, "joiner", join, AgentCard("new", POOL, (), 1))

    with held_lane(connect, earlier):
        queue_up(connect, [joiner])
        _lock_at_once(house, later)

    joiner.answer()
    assert house.lane(later)["parked_for"] == house.lane(earlier)["parked_for"] == []


def test_a_plan_change_waits_for_a_claim_under_way(
    house: House, connect: Callable[..., Db]
) -> None:
    user = house.user(max_concurrent_agents=3)
    house.agent()
    first, *_ = [house.task(user, timeout_seconds=60) for _ in range(5)]
    dispatcher = Rival(connect, "dispatcher", _claim)
    anybody = _with_all_rights(connect)
    change = Rival(anybody, "change", change_plan, user, PlanTier.FREE, limits=PlanLimits(1, 30, 5))

    with held_task(connect, first):
        queue_up(connect, [dispatcher, change])
    taken: Taken = dispatcher.answer()
    change.answer()

    assert len(taken.claims) == 3
    lane = house.lane(user)
    assert (lane["active"], lane["max_active"], lane["limit_seconds"]) == (3, 1, 5 * 3600)
    assert house.claim().claims == []
    for claimed in taken.claims:
        run = house.start(claimed)
        assert run is not None
        house.settle(run, Returned())
    assert len(house.claim().claims) == 1


def _claim(db: Db) -> Taken:
    return claim(db, POOL, holder="d", terms=TERMS)


def _with_all_rights(connect: Callable[..., Db]) -> Callable[..., Db]:
    return lambda name: connect(name, role=None)


def _lock_at_once(house: House, user: UserId) -> None:
    """Take the user's lane without waiting, or fail."""
    with house.app.engine.begin() as tx:
        sql = text("SELECT FROM lanes WHERE user_id = :id FOR NO KEY UPDATE NOWAIT")
        assert len(tx.execute(sql, {"id": user}).all()) == 1


def _settings(redis_url: str) -> Settings:
    return load(
        {
            "OVERNIGHT_REDIS_URL": redis_url,
            "OVERNIGHT_REDIS_KEY_PREFIX": f"test-{uuid4().hex[:8]}:",
        }
    )


@contextmanager
def _publishing(settings: Settings) -> Iterator[Publisher]:
    publisher = Publisher(settings)
    try:
        yield publisher
    finally:
        publisher.close()


@contextmanager
def _hung(redis: EmbeddedRedis) -> Iterator[None]:
    """Stop Redis where it stands: it accepts connections and never answers."""
    os.kill(redis.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(redis.pid, signal.SIGCONT)


@contextmanager
def _bounded() -> Iterator[None]:
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert took < BOUND_SECONDS, f"took {took:.1f} s"


class _Message:
    """One message of Celery as it lies in Redis."""

    def __init__(self, raw: bytes) -> None:
        outer: dict[str, Any] = json.loads(raw)
        body = base64.b64decode(outer["body"]).decode()
        headers = outer["headers"]
        self.whole = raw.decode() + body
        self.args: list[Any] = json.loads(body)[0]
        self.name: str = headers["task"]
        self.id: str = headers["id"]
        self.argsrepr: str = headers["argsrepr"]

    @property
    def task_id(self) -> UUID:
        [[shown, *_]] = self.args
        return parse_task(shown)


def _messages(redis: EmbeddedRedis, settings: Settings, queue: str) -> list[_Message]:
    """Read what was sent, oldest first, without invitations to idle slots."""
    with Redis.from_url(redis.url) as client:
        raw: Any = client.lrange(f"{settings.redis_key_prefix}{queue}", 0, -1)
    return [message for one in reversed(raw) if (message := _Message(one)).args]


def _comparable(written: str | bytes) -> object:
    """Read a message without what names its sender, its own copy, or where to answer."""
    read = json.loads(written)
    del read["headers"]["origin"]
    del read["properties"]["delivery_tag"], read["properties"]["reply_to"]
    return read | {"body": json.loads(base64.b64decode(read["body"]))}
