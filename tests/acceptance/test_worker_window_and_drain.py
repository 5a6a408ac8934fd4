"""Real workers that are told to stop for the night, or to drain."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from overnight_server.control.cancel import cancel
from overnight_server.control.drain import drain, undrain
from overnight_server.control.windows import set_window
from overnight_server.dispatch.publish import Publisher
from overnight_server.domain.windows import AtClosing, Window
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis
from tests.support.rivals import lane_held_for_long
from tests.support.waiting import wait_until
from tests.support.workers import (
    Shift,
    Worker,
    is_gone,
    running_worker,
    worker_settings,
    working_deployment,
)


@pytest.fixture(scope="module")
def shift(postgres: EmbeddedPostgres, template: str, redis: EmbeddedRedis) -> Iterator[Shift]:
    with working_deployment(postgres, template) as deployment:
        url = deployment.owner.engine.url.render_as_string(hide_password=False)
        settings = worker_settings(url, redis.url, lease_seconds=8, worker_liveness=3)
        publisher = Publisher(settings)
        yield Shift(deployment, settings, publisher, deployment.user(monthly_agent_hours_limit=10))
        publisher.close()


@pytest.fixture(scope="module")
def worker(shift: Shift) -> Iterator[Worker]:
    with running_worker(shift.settings) as worker:
        yield worker


def shut(shift: Shift, at_closing: AtClosing) -> None:
    """Close the user's window now, as the clock will in earnest."""
    noon = datetime.now(UTC)
    opens, closes = (
        (noon + timedelta(hours=hours)).time().replace(second=0, microsecond=0, tzinfo=None)
        for hours in (2, 3)
    )
    set_window(shift.deployment.app, shift.user, Window("UTC", opens, closes, at_closing))


@pytest.mark.parametrize("stubborn", [False, True], ids=["a good run", "a stubborn run"])
def test_a_run_is_given_back_when_its_window_closes(
    shift: Shift, worker: Worker, *, stubborn: bool
) -> None:
    task_id = shift.send("sleep", {"seconds": 300, "stubborn": stubborn})
    shift.reaches(task_id, "running")

    shut(shift, AtClosing.STOP)

    row = shift.reaches(task_id, "ready", timeout=8)
    assert row["attempts"] == 0
    assert shift.outcomes(task_id) == ["interrupted"]
    assert shift.deployment.lane(shift.user)["used_seconds"] == 0
    assert list(shift.deployment.claim().claims) == []

    set_window(shift.deployment.app, shift.user, None)
    shift.deployment.run("UPDATE tasks SET payload = '{\"seconds\": 0}' WHERE id = :id", id=task_id)
    shift.publish(shift.claimed(task_id))
    shift.reaches(task_id, "completed", timeout=30)


def test_a_run_given_back_costs_nothing_although_that_could_not_be_recorded(
    shift: Shift, worker: Worker
) -> None:
    task_id = shift.send("sleep", {"seconds": 300, "stubborn": True})
    [child] = worker.children()
    shut(shift, AtClosing.STOP)

    with lane_held_for_long(str(shift.settings.database_url), shift.user):
        wait_until(lambda: is_gone(child), what="the run to be ended by force")

    row = shift.reaches(task_id, "ready")
    assert (row["attempts"], shift.outcomes(task_id)) == (0, ["interrupted"])
    assert shift.deployment.lane(shift.user)["used_seconds"] == 0

    set_window(shift.deployment.app, shift.user, None)
    cancel(shift.deployment.app, shift.user, task_id, actor="human:test")


def test_a_run_that_may_finish_continues_when_its_window_closes(
    shift: Shift, worker: Worker
) -> None:
    task_id = shift.send("sleep", {"seconds": 3})
    shift.reaches(task_id, "running")

    shut(shift, AtClosing.FINISH)

    shift.reaches(task_id, "completed")
    set_window(shift.deployment.app, shift.user, None)
    assert shift.outcomes(task_id) == ["completed"]


def test_a_draining_worker_finishes_its_run_and_takes_no_message(
    shift: Shift, worker: Worker
) -> None:
    first = shift.send("sleep", {"seconds": 4})
    shift.reaches(first, "running")
    agent = shift.deployment.one("SELECT id FROM agents WHERE status = 'active'")["id"]

    drain(shift.deployment.dispatcher, agent)
    wait_until(lambda: "queue=worker_draining" in worker.said(), what="the worker to hear of it")
    second = shift.deployment.task(shift.user, type="echo")
    assert list(shift.deployment.claim().claims) == []
    shift.reaches(first, "completed")

    # A message that is there for others of the pool is left to them.
    shift.deployment.agent(slots=1, agent_id="elsewhere")
    shift.publish(shift.claimed(second))
    seen = _seen(shift, agent)
    wait_until(lambda: _seen(shift, agent) > seen, what="the worker's next sign of life")
    assert shift.deployment.state(second) == "claimed"

    undrain(shift.deployment.dispatcher, agent)
    shift.reaches(second, "completed")


def _seen(shift: Shift, agent: str) -> datetime:
    sql = "SELECT last_heartbeat_at AS at FROM agents WHERE id = :id"
    at: datetime = shift.deployment.one(sql, id=agent)["at"]
    return at
