"""Sweeps: run once for several beat processes, and at any time by an operator."""

import base64
import json
from collections.abc import Callable
from datetime import timedelta
from uuid import uuid4

import pytest
from redis import Redis
from sqlalchemy import text

from overnight_server.dispatch.publish import BrokerUnreachable
from overnight_server.domain.results import Raised, Returned
from overnight_server.domain.retry import RetryRules, Strategy
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.maintenance.sweeps import SWEEPS, run_sweep
from overnight_server.outcome.heartbeat import HeartbeatAnswer, heartbeat
from overnight_server.settings import Settings, load
from overnight_server.store.db import Db
from overnight_server.store.statements import statement
from overnight_worker.message import read_claims
from tests.support.deployment import CLAIM_TTL, LEASE, Deployment
from tests.support.rivals import Rival, queue_up

PLAIN = load({})
AT_ONCE = RetryRules(Strategy.IMMEDIATE)
SECOND = timedelta(seconds=1)
OUTAGE = timedelta(minutes=2)


@pytest.fixture
def settings(redis: EmbeddedRedis) -> Settings:
    return load(
        {
            "OVERNIGHT_REDIS_URL": redis.url,
            "OVERNIGHT_REDIS_KEY_PREFIX": f"test-{uuid4().hex[:8]}:",
        }
    )


@pytest.mark.parametrize("name", sorted(SWEEPS))
def test_every_sweep_can_be_run_in_an_empty_deployment(
    deployment: Deployment, settings: Settings, name: str
) -> None:
    assert run_sweep(deployment.dispatcher, settings, name) == 0

    row = deployment.one("SELECT * FROM sweeps WHERE name = :name", name=name)
    assert row["touched"] == 0
    assert row["finished_at"] >= row["started_at"]


def test_after_an_outage_a_run_is_lost_only_after_another_lease(
    deployment: Deployment, settings: Settings
) -> None:
    deployment.agent()
    user = deployment.user()
    alive, lost = deployment.running(user), deployment.running(user)
    assert run_sweep(deployment.dispatcher, settings, "reap") == 0
    deployment.move_clock(OUTAGE)

    assert run_sweep(deployment.dispatcher, settings, "reap") == 0
    assert heartbeat(deployment.dispatcher, alive.claim, lease=LEASE) is HeartbeatAnswer.CONTINUE
    deployment.move_clock(LEASE - SECOND)
    assert run_sweep(deployment.dispatcher, settings, "reap") == 0
    heartbeat(deployment.dispatcher, alive.claim, lease=LEASE)
    deployment.move_clock(3 * SECOND)

    assert run_sweep(deployment.dispatcher, settings, "reap") == 1
    states = [deployment.state(run.claim.task_id) for run in (alive, lost)]
    assert states == ["running", "retrying"]
    assert deployment.lane(user)["used_seconds"] == 0


def test_after_an_outage_an_unstarted_claim_is_released_at_once(
    deployment: Deployment, settings: Settings
) -> None:
    deployment.agent()
    task_id = deployment.task(deployment.user())
    deployment.claim()
    run_sweep(deployment.dispatcher, settings, "reap")
    deployment.move_clock(OUTAGE)

    assert run_sweep(deployment.dispatcher, settings, "reap") == 1
    assert deployment.state(task_id) == "ready"


def test_a_result_that_waited_for_the_end_of_an_outage_counts(
    deployment: Deployment, settings: Settings
) -> None:
    deployment.agent()
    run = deployment.running(deployment.user())
    run_sweep(deployment.dispatcher, settings, "reap")
    deployment.move_clock(OUTAGE)
    run_sweep(deployment.dispatcher, settings, "reap")

    assert deployment.settle(run, Returned("kept")) is True
    assert deployment.row(run.claim.task_id)["output"] == "kept"


def test_a_reaper_that_is_always_late_still_takes_tasks_back(
    deployment: Deployment, settings: Settings
) -> None:
    deployment.agent()
    run = deployment.running(deployment.user())
    for _ in range(4):
        run_sweep(deployment.dispatcher, settings, "reap")
        deployment.move_clock(LEASE - SECOND)

    assert deployment.state(run.claim.task_id) == "retrying"


def test_workers_are_not_retired_right_after_an_outage(
    deployment: Deployment, settings: Settings
) -> None:
    deployment.agent()
    run_sweep(deployment.dispatcher, settings, "reap")
    deployment.move_clock(OUTAGE)
    run_sweep(deployment.dispatcher, settings, "reap")

    assert deployment.one("SELECT status FROM agents")["status"] == "active"


def test_two_beat_processes_run_a_sweep_once(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    _due_retry(deployment)
    rivals = [Rival(connect, f"beat-{n}", run_sweep, PLAIN, "promote") for n in range(2)]

    with connect("holder").engine.begin() as tx:
        # an old run of the sweep, locked and not committed, so that both rivals wait for it
        tx.execute(statement("begin_sweep"), {"name": "promote", "gap": 0})
        tx.execute(text("UPDATE sweeps SET started_at = 'epoch'"))
        queue_up(connect, rivals)
    answers = [rival.answer() for rival in rivals]

    assert sorted(answers, key=lambda one: one is None) == [1, None]


def test_the_next_tick_runs_the_sweep_again(deployment: Deployment) -> None:
    first = run_sweep(deployment.dispatcher, PLAIN, "promote")
    echo = run_sweep(deployment.dispatcher, PLAIN, "promote")
    deployment.move_clock(timedelta(seconds=PLAIN.promote_interval))

    assert (first, echo) == (0, None)
    assert run_sweep(deployment.dispatcher, PLAIN, "promote") == 0


def test_a_tick_that_is_slightly_early_still_runs(deployment: Deployment) -> None:
    """Beat's clock and the deployment clock need not agree to the second."""
    run_sweep(deployment.dispatcher, PLAIN, "promote")
    deployment.move_clock(timedelta(seconds=PLAIN.promote_interval * 0.9))

    assert run_sweep(deployment.dispatcher, PLAIN, "promote") == 0


def test_sweeps_are_due_independently(deployment: Deployment) -> None:
    run_sweep(deployment.dispatcher, PLAIN, "promote")

    assert run_sweep(deployment.dispatcher, PLAIN, "reset") == 0


def test_an_operator_runs_a_sweep_that_is_not_due(deployment: Deployment) -> None:
    run_sweep(deployment.dispatcher, PLAIN, "promote")
    _due_retry(deployment)

    assert run_sweep(deployment.dispatcher, PLAIN, "promote", force=True) == 1
    assert deployment.one("SELECT touched FROM sweeps")["touched"] == 1


def test_an_unknown_sweep_is_refused(deployment: Deployment) -> None:
    with pytest.raises(KeyError, match="tidy"):
        run_sweep(deployment.dispatcher, PLAIN, "tidy")

    assert deployment.rows("SELECT * FROM sweeps") == []


def test_the_reap_sweep_releases_claims_and_retires_workers(deployment: Deployment) -> None:
    deployment.agent()
    task_id = deployment.task(deployment.user())
    deployment.claim()
    deployment.move_clock(CLAIM_TTL + timedelta(seconds=1))

    assert run_sweep(deployment.dispatcher, PLAIN, "reap") == 1

    assert deployment.state(task_id) == "ready"
    assert deployment.one("SELECT status FROM agents")["status"] == "offline"


def test_the_timeouts_sweep_ends_a_run_and_orders_it_killed(
    deployment: Deployment, redis: EmbeddedRedis, settings: Settings
) -> None:
    deployment.agent()
    run = deployment.running(deployment.user(), timeout_seconds=60)
    deployment.move_clock(timedelta(seconds=60 + settings.cancel_grace + 1))
    heartbeat(deployment.dispatcher, run.claim, lease=LEASE)

    with Redis.from_url(redis.url) as client, client.pubsub() as subscription:
        subscription.psubscribe(f"*{settings.redis_key_prefix}*")
        subscription.get_message(timeout=5)
        assert run_sweep(deployment.dispatcher, settings, "timeouts") == 1
        order = subscription.get_message(timeout=5)

    assert deployment.one("SELECT outcome FROM attempts")["outcome"] == "timeout"
    assert order is not None
    body = json.loads(base64.b64decode(json.loads(order["data"])["body"]))
    assert body["method"] == "end_run"
    assert read_claims([list(body["arguments"].values())]) == [run.claim]


def test_the_dispatch_sweep_fills_slots_when_no_dispatcher_does(
    deployment: Deployment, redis: EmbeddedRedis, settings: Settings
) -> None:
    deployment.agent()
    task_id = deployment.task(deployment.user())

    assert run_sweep(deployment.dispatcher, settings, "dispatch") == 1

    assert deployment.state(task_id) == "claimed"
    with Redis.from_url(redis.url) as client:
        assert client.llen(f"{settings.redis_key_prefix}agents.default") == 1


def test_a_sweep_that_failed_is_repeated_by_the_next_tick(deployment: Deployment) -> None:
    away = load({"OVERNIGHT_REDIS_URL": "redis://127.0.0.1:1/0"})
    deployment.agent()
    deployment.task(deployment.user())

    with pytest.raises(BrokerUnreachable):
        run_sweep(deployment.dispatcher, away, "dispatch")

    assert deployment.one("SELECT finished_at FROM sweeps")["finished_at"] is None
    deployment.move_clock(timedelta(seconds=away.dispatch_tick_interval))
    with pytest.raises(BrokerUnreachable):
        run_sweep(deployment.dispatcher, away, "dispatch")


def _due_retry(deployment: Deployment) -> None:
    deployment.agent()
    run = deployment.running(deployment.user(), retry=AT_ONCE)
    deployment.settle(run, Raised("error", "no luck"))
    deployment.move_clock(timedelta(seconds=1))
