"""Drain: the runs of a worker finish, its slots get no new task, other workers continue."""

from datetime import timedelta

import pytest

from overnight.errors import WorkerNotFound
from overnight_server.control.drain import drain, undrain
from overnight_server.domain.results import Returned
from overnight_server.insight.workers import list_workers
from overnight_server.maintenance.reap import retire_agents
from overnight_server.outcome.presence import WorkerDescription
from overnight_worker.presence import heartbeat_or_join
from tests.support.deployment import POOL, Deployment

LIVENESS = timedelta(seconds=15)
OLD, NEW = "host-a:1:aaaa", "host-b:2:bbbb"


def description(agent_id: str) -> WorkerDescription:
    return WorkerDescription(agent_id, POOL, (), 2)


def test_a_draining_worker_finishes_and_gets_no_new_task(deployment: Deployment) -> None:
    deployment.agent(slots=2, agent_id=OLD)
    user = deployment.user()
    first, _second = (deployment.running(user) for _ in range(2))
    deployment.task(user)

    drain(deployment.dispatcher, OLD)

    assert list(deployment.claim().claims) == []
    assert deployment.settle(first, Returned(), agent=OLD) is True
    assert list(deployment.claim().claims) == []


def test_the_runs_of_a_draining_worker_take_no_slot_of_other_workers(
    deployment: Deployment,
) -> None:
    deployment.agent(slots=2, agent_id=OLD)
    user = deployment.user()
    for claimed in (deployment.task(user), deployment.task(user)) and deployment.claim().claims:
        deployment.start(claimed, agent=OLD)
    drain(deployment.dispatcher, OLD)
    deployment.agent(slots=2, agent_id=NEW)
    for _ in range(3):
        deployment.task(user)

    assert len(deployment.claim().claims) == 2
    assert len(deployment.claim(slots_max=4).claims) == 0


def test_a_drained_worker_no_longer_limits_its_pools_capabilities(deployment: Deployment) -> None:
    deployment.agent(agent_id=NEW, capabilities=["gpu"])
    deployment.agent(agent_id=OLD, capabilities=[])
    deployment.task(deployment.user(), required_capabilities=["gpu"])
    assert list(deployment.claim().claims) == []

    drain(deployment.dispatcher, OLD)

    assert len(deployment.claim().claims) == 1


def test_the_heartbeats_of_a_worker_do_not_end_its_drain(deployment: Deployment) -> None:
    before = heartbeat_or_join(deployment.dispatcher, description(OLD), liveness=LIVENESS)
    drain(deployment.dispatcher, OLD)

    beating = heartbeat_or_join(deployment.dispatcher, description(OLD), liveness=LIVENESS)
    deployment.move_clock(LIVENESS * 2)
    after_silence = heartbeat_or_join(deployment.dispatcher, description(OLD), liveness=LIVENESS)
    deployment.move_clock(LIVENESS * 10)
    retire_agents(deployment.dispatcher, silence=LIVENESS)
    written_off = deployment.one("SELECT status FROM agents")["status"]
    after_all = heartbeat_or_join(deployment.dispatcher, description(OLD), liveness=LIVENESS)

    assert (before, beating, after_silence) == ("active", "draining", "draining")
    assert (written_off, after_all) == ("offline", "draining")


def test_a_drain_can_be_taken_back(deployment: Deployment) -> None:
    deployment.agent(slots=2, agent_id=OLD)
    deployment.task(deployment.user())
    drain(deployment.dispatcher, OLD)
    assert list(deployment.claim().claims) == []

    undrain(deployment.dispatcher, OLD)

    assert heartbeat_or_join(deployment.dispatcher, description(OLD), liveness=LIVENESS) == "active"
    assert len(deployment.claim().claims) == 1


@pytest.mark.parametrize("name", [OLD, "host-a", "aaaa"])
def test_a_worker_is_found_by_either_end_of_its_name(deployment: Deployment, name: str) -> None:
    deployment.agent(agent_id=OLD)
    deployment.agent(agent_id=NEW)

    assert drain(deployment.dispatcher, name) == OLD
    assert {worker.id: worker.status for worker in list_workers(deployment.app)} == {
        OLD: "draining",
        NEW: "active",
    }


@pytest.mark.parametrize("name", ["host", "nobody", ""])
def test_a_name_that_matches_no_worker_or_several_is_refused(
    deployment: Deployment, name: str
) -> None:
    deployment.agent(agent_id=OLD)
    deployment.agent(agent_id=NEW)

    with pytest.raises(WorkerNotFound) as refused:
        drain(deployment.dispatcher, name)

    assert (OLD in refused.value.message) == (name != "nobody")


def test_workers_are_listed_with_their_running_tasks(deployment: Deployment) -> None:
    deployment.agent(slots=3, agent_id=OLD)
    deployment.agent(slots=2, agent_id=NEW, pool="gpu")
    task_id = deployment.task(deployment.user())
    [claimed] = deployment.claim().claims
    deployment.start(claimed, agent=OLD)

    workers = {worker.id: worker for worker in list_workers(deployment.app)}
    deployment.move_clock(LIVENESS * 2)
    later = {worker.id: worker.status for worker in list_workers(deployment.app, liveness=LIVENESS)}
    retire_agents(deployment.dispatcher, silence=LIVENESS)

    assert deployment.state(task_id) == "running"
    assert (workers[OLD].pool, workers[OLD].slots, workers[OLD].busy) == (POOL, 3, 1)
    assert (workers[NEW].pool, workers[NEW].slots, workers[NEW].busy) == ("gpu", 2, 0)
    assert set(later.values()) == {"silent"}
    assert list_workers(deployment.app) == []
    assert {worker.status for worker in list_workers(deployment.app, offline=True)} == {"offline"}
