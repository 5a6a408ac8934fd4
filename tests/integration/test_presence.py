"""A worker registers and sends heartbeats; its runs are lost if it was away for too long."""

from datetime import timedelta

from overnight_server.maintenance.reap import reap
from overnight_server.outcome.presence import WorkerDescription
from overnight_worker.presence import heartbeat_or_join
from tests.support.deployment import AGENT, LEASE, POOL, Deployment

LIVENESS = timedelta(seconds=15)
DESCRIPTION = WorkerDescription(AGENT, POOL, (), 2)


def test_a_new_worker_joins(deployment: Deployment) -> None:
    heartbeat_or_join(deployment.dispatcher, DESCRIPTION, liveness=LIVENESS)

    assert _agent(deployment) == {"id": AGENT, "status": "active", "silent": timedelta(0)}


def test_a_registered_worker_sends_a_heartbeat(deployment: Deployment) -> None:
    heartbeat_or_join(deployment.dispatcher, DESCRIPTION, liveness=LIVENESS)
    joined = deployment.one("SELECT joined_at FROM agents")
    deployment.move_clock(LIVENESS / 3)

    heartbeat_or_join(deployment.dispatcher, DESCRIPTION, liveness=LIVENESS)

    assert _agent(deployment)["silent"] == timedelta(0)
    assert deployment.one("SELECT joined_at FROM agents") == joined


def test_the_runs_of_a_frozen_worker_count_as_lost_and_not_as_crashed(
    deployment: Deployment,
) -> None:
    heartbeat_or_join(deployment.dispatcher, DESCRIPTION, liveness=LIVENESS)
    user = deployment.user()
    run = deployment.running(user)
    deployment.move_clock(LEASE + timedelta(seconds=1))

    heartbeat_or_join(deployment.dispatcher, DESCRIPTION, liveness=LIVENESS)
    reap(deployment.dispatcher)

    assert deployment.one("SELECT outcome FROM attempts")["outcome"] == "worker_lost"
    assert deployment.state(run.claim.task_id) == "retrying"
    assert deployment.lane(user)["used_seconds"] == 0
    assert _agent(deployment)["status"] == "active"


def _agent(deployment: Deployment) -> dict[str, object]:
    sql = (
        "SELECT id, status, date_trunc('second', clock() - last_heartbeat_at) AS silent FROM agents"
    )
    return dict(deployment.one(sql))
