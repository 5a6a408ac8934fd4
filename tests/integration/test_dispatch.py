"""Dispatch: one message per claim, after the commit; no attempt is spent if Redis fails."""

import base64
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from celery import Celery
from redis import Redis
from sqlalchemy import text

from overnight.models.enums import PlanTier
from overnight_server.control.users import change_plan
from overnight_server.dispatch import celery_message
from overnight_server.dispatch.celery_settings import EXECUTE, celery_settings
from overnight_server.dispatch.fill import fill, fill_pool
from overnight_server.dispatch.publish import BrokerUnreachable, Publisher
from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import UserId, parse_task, show_task
from overnight_server.domain.plans import PlanLimits
from overnight_server.domain.results import Returned
from overnight_server.gate.claim import ClaimPass, claim
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.outcome.presence import WorkerDescription, join
from overnight_server.settings import Settings, load
from overnight_server.store.db import Db
from tests.support.deployment import CLAIM_SETTINGS, POOL, Deployment
from tests.support.rivals import Rival, held_lane, held_pool, held_task, queue_up

SECRET = "rosebud"
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
    deployment: Deployment, redis: EmbeddedRedis, settings: Settings, publisher: Publisher
) -> None:
    user = deployment.user()
    deployment.agent(slots=2)
    made = [deployment.task(user, payload={"password": SECRET}) for _ in range(3)]

    done = fill(deployment.dispatcher, publisher, settings, holder="d")

    messages = _messages(redis, settings, "agents.default")
    assert done.sent == len(messages) == 2
    assert {message.task_id for message in messages} == set(made[:2])
    for message in messages:
        row = deployment.row(message.task_id)
        assert message.name == EXECUTE
        assert message.args == [[show_task(row["id"]), row["epoch"], str(row["token"])]]
        assert message.id == f"{show_task(row['id'])}:{row['epoch']}"
        assert (row["state"], row["claimed_by"]) == ("claimed", "d")


def test_a_message_shows_its_user_but_no_secret(
    deployment: Deployment, redis: EmbeddedRedis, settings: Settings, publisher: Publisher
) -> None:
    user = deployment.user()
    deployment.agent()
    task_id = deployment.task(user, payload={"password": SECRET})

    fill(deployment.dispatcher, publisher, settings, holder="d")

    [message] = _messages(redis, settings, "agents.default")
    assert message.argsrepr == f"echo {show_task(task_id)} user={user}"
    assert str(deployment.row(task_id)["token"]) not in message.argsrepr
    assert SECRET not in message.whole


def test_a_message_equals_the_one_celery_would_write(
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
        EXECUTE, [["task_1", 1, "token"]], message_id=name, queue=queue, display=shown, origin="us"
    )

    with Redis.from_url(redis.url) as client:
        [theirs] = client.lrange(settings.redis_key_prefix + queue, 0, -1)
    assert _comparable(ours) == _comparable(theirs)


def test_each_pool_has_its_own_queue(
    deployment: Deployment, redis: EmbeddedRedis, settings: Settings, publisher: Publisher
) -> None:
    user = deployment.user()
    deployment.agent(agent_id="plain")
    deployment.agent(agent_id="gpu", pool="gpu", capabilities=["gpu"])
    special = deployment.task(user, required_capabilities=["gpu"])

    fill(deployment.dispatcher, publisher, settings, holder="d")

    [message] = _messages(redis, settings, "agents.gpu")
    assert message.task_id == special
    assert _messages(redis, settings, "agents.default") == []


def test_a_dispatcher_without_ready_tasks_sends_nothing(
    deployment: Deployment, redis: EmbeddedRedis, settings: Settings, publisher: Publisher
) -> None:
    deployment.agent()

    done = fill(deployment.dispatcher, publisher, settings, holder="d")

    assert (done.sent, done.more) == (0, False)
    assert _messages(redis, settings, "agents.default") == []


def test_without_redis_nothing_is_claimed(deployment: Deployment) -> None:
    deployment.agent()
    task_id = deployment.task(deployment.user())
    settings = _settings(NOBODY_LISTENS)
    before = deployment.row(task_id)

    with _publishing(settings) as publisher, pytest.raises(BrokerUnreachable):
        fill(deployment.dispatcher, publisher, settings, holder="d")

    assert deployment.row(task_id) == before
    assert deployment.rows("SELECT * FROM attempts") == []


def test_with_a_hung_redis_nothing_is_claimed(
    deployment: Deployment, redis: EmbeddedRedis, settings: Settings, publisher: Publisher
) -> None:
    deployment.agent()
    task_id = deployment.task(deployment.user())

    with _hung(redis), pytest.raises(BrokerUnreachable):
        fill(deployment.dispatcher, publisher, settings, holder="d")

    assert deployment.row(task_id)["epoch"] == 0


@pytest.mark.parametrize("warm", [True, False], ids=["connected before", "never connected"])
def test_claims_are_released_when_redis_hangs_after_the_check(
    deployment: Deployment,
    redis: EmbeddedRedis,
    settings: Settings,
    publisher: Publisher,
    *,
    warm: bool,
) -> None:
    user = deployment.user()
    deployment.agent()
    if warm:
        deployment.task(user)
        fill(deployment.dispatcher, publisher, settings, holder="d")
    waiting = [deployment.task(user) for _ in range(3)]

    with _hung(redis):
        done = fill_pool(deployment.dispatcher, publisher, settings, POOL, holder="d")

    assert (done.sent, done.more) == (0, False)
    assert [deployment.state(task_id) for task_id in waiting] == ["ready"] * 3
    assert [deployment.row(task_id)["attempts"] for task_id in waiting] == [0] * 3
    assert deployment.lane(user)["active"] == int(warm)


def test_claims_are_released_when_redis_goes_away_after_the_check(deployment: Deployment) -> None:
    deployment.agent()
    task_id = deployment.task(deployment.user())
    settings = _settings(NOBODY_LISTENS)

    with _publishing(settings) as publisher:
        done = fill_pool(deployment.dispatcher, publisher, settings, POOL, holder="d")

    assert done.sent == 0
    assert deployment.state(task_id) == "ready"


def test_killing_a_run_does_not_wait_for_a_hung_redis(
    redis: EmbeddedRedis, publisher: Publisher
) -> None:
    claim_to_kill = Claim(parse_task(show_task(uuid4())), 1, uuid4())

    with _hung(redis):
        publisher.terminate(claim_to_kill)


def test_two_dispatchers_of_one_pool_never_fill_a_slot_twice(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    deployment.agent(slots=1)
    for _ in range(2):
        deployment.task(deployment.user())
    rivals = [Rival(connect, f"dispatcher-{n}", _claim) for n in range(2)]

    with held_pool(connect, POOL):
        queue_up(connect, rivals)
    taken: list[ClaimPass] = [rival.answer() for rival in rivals]

    assert [len(claim_pass.claims) for claim_pass in taken] == [1, 0]


def test_a_claim_that_waits_for_its_pool_locks_no_lane(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    """Pool before lanes, always: the other way round two dispatchers and a join make a ring."""
    user = deployment.user()
    deployment.agent()
    deployment.task(user)
    deployment.move_clock(timedelta(days=31))  # the lane's month is over, so the claim will roll it
    dispatcher = Rival(connect, "dispatcher", _claim)

    with held_pool(connect, POOL):
        queue_up(connect, [dispatcher])
        _lock_at_once(deployment, user)

    assert len(dispatcher.answer().claims) == 1


def test_a_joining_worker_locks_the_lanes_in_order(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    """Lanes are always locked in the order of user ids; otherwise two joins could deadlock."""
    deployment.agent()
    later, earlier = deployment.user(id=UUID(int=2)), deployment.user(id=UUID(int=1))
    for user in (later, earlier):
        deployment.task(user, required_capabilities=["none has this"])
    deployment.claim()
    assert (
        deployment.lane(later)["skipped_by_pools"]
        == deployment.lane(earlier)["skipped_by_pools"]
        == [POOL]
    )
    joiner = Rival(connect, "joiner", join, WorkerDescription("new", POOL, (), 1))

    with held_lane(connect, earlier):
        queue_up(connect, [joiner])
        _lock_at_once(deployment, later)

    joiner.answer()
    assert (
        deployment.lane(later)["skipped_by_pools"]
        == deployment.lane(earlier)["skipped_by_pools"]
        == []
    )


def test_a_plan_change_waits_for_a_claim_in_progress(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    user = deployment.user(max_concurrent_agents=3)
    deployment.agent()
    first, *_ = [deployment.task(user, timeout_seconds=60) for _ in range(5)]
    dispatcher = Rival(connect, "dispatcher", _claim)
    anybody = _with_all_rights(connect)
    change = Rival(anybody, "change", change_plan, user, PlanTier.FREE, limits=PlanLimits(1, 30, 5))

    with held_task(connect, first):
        queue_up(connect, [dispatcher, change])
    taken: ClaimPass = dispatcher.answer()
    change.answer()

    assert len(taken.claims) == 3
    lane = deployment.lane(user)
    assert (lane["active"], lane["max_active"], lane["limit_seconds"]) == (3, 1, 5 * 3600)
    assert deployment.claim().claims == []
    for claimed in taken.claims:
        run = deployment.start(claimed)
        assert run is not None
        deployment.settle(run, Returned())
    assert len(deployment.claim().claims) == 1


def _claim(db: Db) -> ClaimPass:
    return claim(db, POOL, holder="d", claim_settings=CLAIM_SETTINGS)


def _with_all_rights(connect: Callable[..., Db]) -> Callable[..., Db]:
    return lambda name: connect(name, role=None)


def _lock_at_once(deployment: Deployment, user: UserId) -> None:
    """Take the user's lane without waiting, or fail."""
    with deployment.app.engine.begin() as tx:
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
    """Stop Redis: it accepts connections and never answers, so a call without a timeout hangs."""
    os.kill(redis.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(redis.pid, signal.SIGCONT)


class _Message:
    """A message of Celery as it is stored in Redis."""

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
    """Return the published messages, oldest first, without requests for an idle listener."""
    with Redis.from_url(redis.url) as client:
        raw: Any = client.lrange(f"{settings.redis_key_prefix}{queue}", 0, -1)
    return [message for item in reversed(raw) if (message := _Message(item)).args]


def _comparable(written: str | bytes) -> object:
    """Return a message without origin, delivery tag and reply queue."""
    read = json.loads(written)
    del read["headers"]["origin"]
    del read["properties"]["delivery_tag"], read["properties"]["reply_to"]
    return read | {"body": json.loads(base64.b64decode(read["body"]))}
