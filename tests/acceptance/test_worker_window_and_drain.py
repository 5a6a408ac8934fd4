"""Real workers that are requested to stop for the night, or to drain."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from overnight.models.enums import AtClosing
from overnight_server.control.cancel import cancel
from overnight_server.control.drain import drain, undrain
from overnight_server.control.windows import set_window
from overnight_server.dispatch.publish import Publisher
from overnight_server.domain.windows import NightWindow
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis
from tests.support.rivals import lane_held_for_long
from tests.support.wait import wait_until
from tests.support.workers import (
    Worker,
    WorkerHarness,
    is_gone,
    running_worker,
    worker_settings,
    working_deployment,
)


@pytest.fixture(scope="module")
def harness(
    postgres: EmbeddedPostgres, template: str, redis: EmbeddedRedis
) -> Iterator[WorkerHarness]:
    with working_deployment(postgres, template) as deployment:
        url = deployment.owner.engine.url.render_as_string(hide_password=False)
        settings = worker_settings(url, redis.url, lease_seconds=8, worker_liveness=3)
        publisher = Publisher(settings)
        yield WorkerHarness(
            deployment, settings, publisher, deployment.user(monthly_agent_hours_limit=10)
        )
        publisher.close()


@pytest.fixture(scope="module")
def worker(harness: WorkerHarness) -> Iterator[Worker]:
    with running_worker(harness.settings) as worker:
        yield worker


def shut(harness: WorkerHarness, at_closing: AtClosing) -> None:
    """Close the user's window now, as the clock will in earnest."""
    noon = datetime.now(UTC)
    opens, closes = (
        (noon + timedelta(hours=hours)).time().replace(second=0, microsecond=0, tzinfo=None)
        for hours in (2, 3)
    )
    set_window(harness.deployment.app, harness.user, NightWindow("UTC", opens, closes, at_closing))


def used_seconds(harness: WorkerHarness) -> Decimal:
    """Return what all runs of the user were charged so far."""
    return Decimal(harness.deployment.lane(harness.user)["used_seconds"])


@pytest.mark.parametrize("stubborn", [False, True], ids=["a good run", "a stubborn run"])
def test_a_run_is_given_back_when_its_window_closes(
    harness: WorkerHarness, worker: Worker, *, stubborn: bool
) -> None:
    used = used_seconds(harness)
    task_id = harness.send("sleep", {"seconds": 300, "stubborn": stubborn})
    harness.reaches(task_id, "running")

    shut(harness, AtClosing.STOP)

    row = harness.reaches(task_id, "ready", timeout=8)
    assert row["attempts"] == 0
    assert harness.outcomes(task_id) == ["interrupted"]
    assert used_seconds(harness) == used
    assert list(harness.deployment.claim().claims) == []

    set_window(harness.deployment.app, harness.user, None)
    harness.deployment.run(
        "UPDATE tasks SET payload = '{\"seconds\": 0}' WHERE id = :id", id=task_id
    )
    harness.publish(harness.claimed(task_id))
    harness.reaches(task_id, "completed", timeout=30)


def test_a_run_given_back_costs_nothing_although_that_could_not_be_recorded(
    harness: WorkerHarness, worker: Worker
) -> None:
    used = used_seconds(harness)
    task_id = harness.send("sleep", {"seconds": 300, "stubborn": True})
    [child] = worker.children()
    shut(harness, AtClosing.STOP)

    with lane_held_for_long(str(harness.settings.database_url), harness.user):
        wait_until(lambda: is_gone(child), what="the run to be ended by force")

    row = harness.reaches(task_id, "ready")
    assert (row["attempts"], harness.outcomes(task_id)) == (0, ["interrupted"])
    assert used_seconds(harness) == used

    set_window(harness.deployment.app, harness.user, None)
    cancel(harness.deployment.app, harness.user, task_id, actor="human:test")


def test_a_run_that_may_finish_continues_when_its_window_closes(
    harness: WorkerHarness, worker: Worker
) -> None:
    task_id = harness.send("sleep", {"seconds": 3})
    harness.reaches(task_id, "running")

    shut(harness, AtClosing.FINISH)

    harness.reaches(task_id, "completed")
    set_window(harness.deployment.app, harness.user, None)
    assert harness.outcomes(task_id) == ["completed"]


def test_a_draining_worker_finishes_its_run_and_takes_no_message(
    harness: WorkerHarness, worker: Worker
) -> None:
    first = harness.send("sleep", {"seconds": 4})
    harness.reaches(first, "running")
    agent = harness.deployment.one("SELECT id FROM agents WHERE status = 'active'")["id"]

    drain(harness.deployment.dispatcher, agent)
    wait_until(
        lambda: "queue=worker_draining" in worker.log_text(), what="the worker to hear of it"
    )
    second = harness.deployment.task(harness.user, type="echo")
    assert list(harness.deployment.claim().claims) == []
    harness.reaches(first, "completed")

    # A message that is there for others of the pool is left to them.
    harness.deployment.agent(slots=1, agent_id="elsewhere")
    harness.publish(harness.claimed(second))
    seen = _seen(harness, agent)
    wait_until(lambda: _seen(harness, agent) > seen, what="the worker's next sign of life")
    assert harness.deployment.state(second) == "claimed"

    undrain(harness.deployment.dispatcher, agent)
    harness.reaches(second, "completed")


def _seen(harness: WorkerHarness, agent: str) -> datetime:
    sql = "SELECT last_heartbeat_at AS at FROM agents WHERE id = :id"
    at: datetime = harness.deployment.one(sql, id=agent)["at"]
    return at
