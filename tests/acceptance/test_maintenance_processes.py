import json
from collections.abc import Iterator
from typing import Any

import pytest

from overnight.models.bulk import TaskFilter
from overnight_server.cli.commands.processes import (
    beat_arguments,
    flower_arguments,
    maintenance_arguments,
)
from overnight_server.control.bulk import BulkOrder, start
from overnight_server.dispatch.publish import Publisher
from overnight_server.domain.bulk import Action
from overnight_server.domain.ids import show_task
from overnight_server.insight.bulk import get_bulk
from overnight_server.local.ports import free_port
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.maintenance.sweeps import SWEEPS
from overnight_server.settings import Settings
from tests.support.flower import SIGN_IN, Flower
from tests.support.wait import wait_until
from tests.support.workers import (
    WorkerHarness,
    running,
    running_worker,
    worker_settings,
    working_deployment,
)

EVERY_SECOND = dict.fromkeys(
    (name for name in Settings.model_fields if name.endswith("_interval")), 1
)


@pytest.fixture(scope="module")
def harness(
    postgres: EmbeddedPostgres, template: str, redis: EmbeddedRedis
) -> Iterator[WorkerHarness]:
    """Worker, maintenance, beat and Flower, but no dispatcher."""
    with working_deployment(postgres, template) as deployment:
        url = deployment.owner.engine.url.render_as_string(hide_password=False)
        settings = worker_settings(url, redis.url, flower_port=free_port(), **EVERY_SECOND)
        publisher = Publisher(settings)
        with (
            running(flower_arguments(settings), settings, FLOWER_BASIC_AUTH=SIGN_IN) as flower,
            running_worker(settings),
            running(maintenance_arguments(), settings) as maintenance,
            running(beat_arguments(), settings) as beat,
        ):
            yield WorkerHarness(deployment, settings, publisher, deployment.user())
            for process in (beat, maintenance, flower):
                process.process.terminate()
            codes = [process.ended(within=15) for process in (beat, maintenance, flower)]
        publisher.close()
    assert codes == [0, 0, 0]


def test_beat_runs_every_sweep_and_dispatches_without_a_dispatcher(harness: WorkerHarness) -> None:
    task_id = harness.deployment.task(harness.user, type="echo", payload={"nobody": "dispatches"})

    harness.reaches(task_id, "completed", timeout=30)

    wait_until(lambda: finished_sweeps(harness) == set(SWEEPS), what="every sweep to have run")


def finished_sweeps(harness: WorkerHarness) -> set[str]:
    rows = harness.deployment.rows("SELECT name FROM sweeps WHERE finished_at IS NOT NULL")
    return {row["name"] for row in rows}


def test_a_failed_run_is_retried(harness: WorkerHarness) -> None:
    task_id = harness.deployment.task(harness.user, type="flaky", payload={"failures": 1})
    harness.reaches(task_id, "retrying", timeout=30)

    harness.deployment.run("UPDATE tasks SET retry_at = clock() WHERE id = :id", id=task_id)

    row = harness.reaches(task_id, "completed", timeout=30)
    assert row["output"] == {"attempts": 2}


def test_a_bulk_operation_runs_in_the_background(harness: WorkerHarness) -> None:
    user = harness.deployment.user()
    # No worker takes them meanwhile.
    tasks = [
        harness.deployment.task(user, required_capabilities=["gpu"], tags=["all"])
        for _ in range(60)
    ]
    order = BulkOrder(Action.CANCEL, TaskFilter(tag="all"))

    bulk_id = start(harness.deployment.app, user, order, actor=f"user:{user}").bulk_id

    for task_id in tasks:
        harness.reaches(task_id, "cancelled", timeout=30)
    wait_until(lambda: get_bulk(harness.deployment.app, user, bulk_id).finished_at, what="its end")


def test_flower_shows_users_and_types_but_neither_payload_nor_token(harness: WorkerHarness) -> None:
    flower = Flower(harness.settings.flower_port)
    wait_until(flower.is_up, what="Flower to answer")

    def shown() -> dict[str, Any] | None:
        # Workers tell of their messages once Flower has asked them to, some seconds after it is up.
        task_id = harness.deployment.task(
            harness.user, type="echo", payload={"canary": "do-not-show"}
        )
        harness.reaches(task_id, "completed", timeout=30)
        seen = flower.get("/api/tasks").get(f"{show_task(task_id)}:1")
        return seen and {**seen, "task_id": task_id}

    seen = wait_until(shown, what="Flower to see a task", timeout=60, pause=1)

    task_id = seen["task_id"]
    row = harness.deployment.rows("SELECT token FROM attempts WHERE task_id = :id", id=task_id)
    assert seen["args"] == f"echo {show_task(task_id)} user={harness.user}"
    everything = json.dumps([flower.get("/api/tasks"), flower.get("/api/workers?refresh=1")])
    assert "default." in everything
    assert "do-not-show" not in everything
    assert str(row[0]["token"]) not in everything


def test_flower_asks_for_a_password_and_cannot_control_workers(harness: WorkerHarness) -> None:
    flower = Flower(harness.settings.flower_port)
    wait_until(flower.is_up, what="Flower to answer")

    for path in ("/", "/workers", "/tasks", "/api/tasks", "/api/workers", "/metrics"):
        assert flower.status(path, sign_in=None) == 401
        assert flower.status(path, sign_in="operator:guess") == 401
    assert flower.status("/api/task/revoke/anything", method="POST") == 403
    assert flower.status("/api/worker/shutdown/anything", method="POST") == 403
