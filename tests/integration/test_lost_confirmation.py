"""Transactions that were committed although the confirmation was lost."""

from collections.abc import Iterator

import pytest

from overnight_server.domain.ids import UserId
from overnight_server.intake.new_graph import NewTask
from overnight_server.intake.submit import submit
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.store.db import ADMIN, DISPATCHER, DatabaseUnreachable, Db
from overnight_server.wakeups.wake import Waker
from overnight_worker import resources
from overnight_worker.execute import carry_out, start
from overnight_worker.identity import WORKER_ID
from overnight_worker.load_handlers import load_handlers
from overnight_worker.slot_loop import SlotLoop
from tests.chaos.proxy import FaultProxy, LinkFault, ProxyLink
from tests.chaos.stack import through
from tests.support.deployment import LOOSE, Deployment
from tests.support.workers import worker_settings

NOWHERE = "redis://127.0.0.1:1/0"


@pytest.fixture
def link(postgres: EmbeddedPostgres) -> Iterator[ProxyLink]:
    with FaultProxy() as proxy:
        yield proxy.link(postgres.cluster.port)


@pytest.fixture
def user(deployment: Deployment) -> UserId:
    deployment.agent()
    return deployment.user()


@pytest.fixture
def worker(database_url: str, link: ProxyLink) -> Iterator[resources.WorkerResources]:
    load_handlers((), demo=True)
    settings = worker_settings(through(database_url, link), NOWHERE)
    waker = Waker(NOWHERE)
    db = Db.connect(str(settings.database_url), role=DISPATCHER)
    yield resources.WorkerResources(settings, db, waker)
    db.close()
    waker.close()


def test_a_submit_whose_confirmation_was_lost_can_be_repeated(
    deployment: Deployment, user: UserId, database_url: str, link: ProxyLink
) -> None:
    db = Db.connect(through(database_url, link), role=ADMIN)
    task = NewTask("a task", "echo", idempotency_key="once")
    link.set_fault(LinkFault.FORGET_COMMIT)
    with pytest.raises(DatabaseUnreachable):
        submit(db, user, task, LOOSE)
    link.heal()

    again = submit(db, user, task, LOOSE)
    db.close()

    assert not again.created
    assert [row["id"] for row in deployment.rows("SELECT id FROM tasks")] == [again.task_id]


def test_a_start_whose_confirmation_was_lost_is_released_and_costs_nothing(
    deployment: Deployment, user: UserId, worker: resources.WorkerResources, link: ProxyLink
) -> None:
    task_id = deployment.task(user)
    [claimed] = deployment.claim().claims
    # Only the confirmation of the start is lost.
    link.forget_next_commit()

    assert start(worker, [claimed.claim]) == []

    row = deployment.row(task_id)
    assert (row["state"], row["attempts"], row["epoch"]) == ("ready", 0, 1)
    attempt = deployment.one("SELECT outcome, spent, started_at IS NOT NULL AS began FROM attempts")
    assert attempt == {"outcome": "interrupted", "spent": False, "began": True}
    assert deployment.lane(user)["used_seconds"] == 0


def test_a_result_whose_confirmation_was_lost_is_recorded_once(
    deployment: Deployment, user: UserId, worker: resources.WorkerResources, link: ProxyLink
) -> None:
    task_id = deployment.task(user, payload={"hello": "world"})
    [claimed] = deployment.claim().claims
    link.forget_next_commit(after=1)

    carry_out(worker, [claimed.claim])

    assert deployment.state(task_id) == "completed"
    assert [row["outcome"] for row in deployment.rows("SELECT outcome FROM attempts")] == [
        "completed"
    ]
    assert deployment.one("SELECT count(*) AS n FROM usage_ledger")["n"] == 1


def test_a_claim_of_an_idle_listener_whose_confirmation_was_lost_is_released(
    deployment: Deployment, user: UserId, worker: resources.WorkerResources, link: ProxyLink
) -> None:
    deployment.run("INSERT INTO type_durations (type, seconds) VALUES ('echo', 0.001)")
    deployment.agent(agent_id=WORKER_ID)
    task_id = deployment.task(user)
    loop = SlotLoop(worker)
    with worker.db.reserve_connection() as standby:
        prepared = loop._prepare_claim(standby)
        link.forget_next_commit()

        with pytest.raises(DatabaseUnreachable):
            loop._claim_first(standby, *prepared)

    row = deployment.row(task_id)
    assert (row["state"], row["attempts"], row["epoch"]) == ("ready", 0, 1)
    attempt = deployment.one("SELECT outcome, spent, started_at IS NOT NULL AS began FROM attempts")
    assert attempt == {"outcome": "interrupted", "spent": False, "began": True}
    assert deployment.lane(user)["used_seconds"] == 0
