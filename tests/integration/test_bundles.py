"""Bundles of quick tasks: one message, but each task is billed and ended by itself."""

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from uuid import UUID

import pytest

from overnight import Context
from overnight.handlers.registry import Handler, registered
from overnight_server.control.pauses import EVERYTHING, PauseSubject, pause
from overnight_server.dispatch.publish import group_by_message, message_id
from overnight_server.domain.claims import Claimed
from overnight_server.domain.ids import parse_task
from overnight_server.gate.claim import BundleLimits, ClaimPass, ClaimSettings, claim
from overnight_server.maintenance.reap import reap
from overnight_server.store.db import Db
from overnight_server.wakeups.wake import Waker
from overnight_worker import resources
from overnight_worker.execute import carry_out
from overnight_worker.identity import WORKER_ID
from overnight_worker.shutdown import SHUTDOWN_FLAG
from tests.support.deployment import CLAIM_TTL, LIVENESS, POOL, Deployment
from tests.support.rivals import held_lane
from tests.support.wait import wait_until
from tests.support.workers import worker_settings

READY = "SELECT count(*) AS n FROM tasks WHERE state = 'ready'"
NOWHERE = "redis://127.0.0.1:1/0"


@pytest.fixture
def worker(deployment: Deployment, database_url: str, db: Db) -> resources.WorkerResources:
    settings = worker_settings(database_url, NOWHERE)
    return resources.WorkerResources(settings, db, Waker(NOWHERE))


@pytest.fixture
def handle(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Context], object]], None]:
    def register(function: Callable[[Context], object]) -> None:
        handlers = {**registered(), "quick": Handler("quick", function, ())}
        monkeypatch.setattr("overnight_worker.runners.choose.registered", lambda: handlers)

    return register


def quick(deployment: Deployment, count: int, *, seconds: float = 0.001) -> None:
    deployment.run(
        "INSERT INTO type_durations (type, seconds) VALUES ('quick', :s) ON CONFLICT DO NOTHING",
        s=seconds,
    )
    for _ in range(count):
        deployment.task(deployment.user(), type="quick")


def states(deployment: Deployment) -> dict[str, int]:
    rows = deployment.rows("SELECT state, count(*) AS n FROM tasks GROUP BY state")
    return {row["state"]: row["n"] for row in rows}


def take(deployment: Deployment, tasks: int = 50) -> ClaimPass:
    return claim(
        deployment.dispatcher,
        POOL,
        holder="d",
        claim_settings=ClaimSettings(CLAIM_TTL, LIVENESS, bundle_limits=BundleLimits(0.25, tasks)),
    )


def test_quick_tasks_share_the_free_slots_evenly(deployment: Deployment) -> None:
    deployment.agent(slots=2)
    quick(deployment, 20)

    messages = group_by_message(take(deployment).claims)

    assert [len(message) for message in messages] == [10, 10]


def test_a_type_without_known_duration_is_sent_alone(deployment: Deployment) -> None:
    deployment.agent(slots=2)
    for _ in range(5):
        deployment.task(deployment.user(), type="new")

    messages = group_by_message(take(deployment).claims)

    assert [len(message) for message in messages] == [1, 1]


def test_a_bundle_takes_no_longer_than_bundle_seconds(deployment: Deployment) -> None:
    deployment.agent(slots=1)
    quick(deployment, 20, seconds=0.05)

    messages = group_by_message(take(deployment).claims)

    assert [len(message) for message in messages] == [5]


def test_bundles_can_be_switched_off(deployment: Deployment) -> None:
    deployment.agent(slots=3)
    quick(deployment, 5)

    assert [len(message) for message in group_by_message(take(deployment, tasks=1).claims)] == [
        1,
        1,
        1,
    ]


def test_no_task_is_claimed_to_wait_behind_a_bundle(deployment: Deployment) -> None:
    deployment.agent(slots=1)
    quick(deployment, 200)

    assert [len(take(deployment).claims) for _ in range(2)] == [50, 0]


def test_no_task_waits_behind_a_long_run(deployment: Deployment) -> None:
    deployment.agent(slots=1)
    deployment.running(deployment.user(), type="long")
    quick(deployment, 20)

    assert take(deployment).claims == ()


def test_a_bundle_is_run_and_recorded_together(
    deployment: Deployment, worker: resources.WorkerResources, handle: Callable[..., None]
) -> None:
    deployment.agent(slots=1)
    quick(deployment, 20)
    seen: list[str] = []
    handle(lambda ctx: seen.append(ctx.task_id))
    [message] = group_by_message(take(deployment).claims)

    carry_out(worker, [claimed.claim for claimed in message])

    assert len(set(seen)) == 20
    assert deployment.rows("SELECT state, count(*) AS n FROM tasks GROUP BY state") == [
        {"state": "completed", "n": 20}
    ]
    assert deployment.one("SELECT count(*) AS n FROM attempts WHERE bundle IS NOT NULL")["n"] == 20
    assert deployment.one("SELECT count(*) AS n FROM usage_ledger")["n"] == 20


def test_a_slot_claims_its_next_bundle_itself(
    deployment: Deployment, worker: resources.WorkerResources, handle: Callable[..., None]
) -> None:
    deployment.agent(slots=1, agent_id=WORKER_ID)
    quick(deployment, 120)
    handle(lambda _: None)
    [message] = group_by_message(take(deployment, tasks=30).claims)

    carry_out(worker, [claimed.claim for claimed in message])

    assert states(deployment) == {"completed": 120}
    sizes = deployment.rows(
        "SELECT count(*) AS n FROM attempts GROUP BY claimed_at ORDER BY claimed_at"
    )
    assert [row["n"] for row in sizes] == [30, 90]
    assert deployment.one("SELECT count(DISTINCT bundle) AS n FROM attempts")["n"] == 1


def test_a_slot_claims_a_long_task_alone(
    deployment: Deployment, worker: resources.WorkerResources, handle: Callable[..., None]
) -> None:
    deployment.agent(slots=1, agent_id=WORKER_ID)
    quick(deployment, 10)
    handle(lambda _: None)
    [message] = group_by_message(take(deployment).claims)
    long = deployment.task(deployment.user(id=UUID(int=0)), type="quick")
    deployment.run("UPDATE tasks SET runs_alone = true WHERE id = :id", id=long)
    quick(deployment, 5)

    carry_out(worker, [claimed.claim for claimed in message])

    assert states(deployment) == {"completed": 16}
    claimed_with_it = deployment.one(
        "SELECT count(*) AS n FROM attempts a JOIN attempts l USING (claimed_at)"
        " WHERE l.task_id = :id",
        id=long,
    )
    assert claimed_with_it["n"] == 1


@pytest.mark.parametrize("change", ["status = 'draining'", "id = 'another worker'"])
def test_only_an_active_worker_claims_more(
    deployment: Deployment,
    worker: resources.WorkerResources,
    handle: Callable[..., None],
    change: str,
) -> None:
    deployment.agent(slots=2, agent_id="colleague")
    deployment.agent(slots=1, agent_id=WORKER_ID)
    quick(deployment, 20)
    handle(lambda _: None)
    [message, *_] = group_by_message(take(deployment, tasks=2).claims)
    deployment.run(f"UPDATE agents SET {change} WHERE id = :id", id=WORKER_ID)

    carry_out(worker, [claimed.claim for claimed in message])

    assert states(deployment)["completed"] == len(message)


@pytest.mark.parametrize("kind", ["user", "pool", "all"])
def test_a_slot_does_not_claim_paused_tasks(
    deployment: Deployment,
    worker: resources.WorkerResources,
    handle: Callable[..., None],
    kind: str,
) -> None:
    deployment.agent(slots=1, agent_id=WORKER_ID)
    quick(deployment, 20)
    handle(lambda _: None)
    [message] = group_by_message(take(deployment, tasks=5).claims)
    users = [PauseSubject(user_id=row["id"]) for row in deployment.rows("SELECT id FROM users")]
    for target in {"user": users, "pool": [PauseSubject(pool=POOL)], "all": [EVERYTHING]}[kind]:
        pause(deployment.dispatcher, target, actor="human:test")

    carry_out(worker, [claimed.claim for claimed in message])

    assert states(deployment) == {"completed": 5, "ready": 15}


def test_waiting_in_a_bundle_is_not_billed(
    deployment: Deployment, worker: resources.WorkerResources, handle: Callable[..., None]
) -> None:
    deployment.agent(slots=1)
    quick(deployment, 10)
    handle(lambda _: time.sleep(0.04))
    [message] = group_by_message(take(deployment).claims)

    carry_out(worker, [claimed.claim for claimed in message])

    charged = [row["seconds"] for row in deployment.rows("SELECT seconds FROM usage_ledger")]
    assert max(charged) < 0.2


def test_a_slow_run_keeps_its_lease_while_another_result_waits_to_be_recorded(
    deployment: Deployment,
    worker: resources.WorkerResources,
    handle: Callable[..., None],
    connect: Callable[..., Db],
) -> None:
    deployment.agent(slots=1)
    quick(deployment, 2)
    [message] = group_by_message(take(deployment).claims)
    seen: list[str] = []

    def handler(ctx: Context) -> None:
        seen.append(ctx.task_id)
        if len(seen) == 2:
            first, own = (deployment.row(parse_task(item)) for item in seen)
            with held_lane(connect, first["user_id"]):
                wait_until(
                    lambda: deployment.row(own["id"])["expires_at"] > own["expires_at"],
                    what="its next heartbeat",
                    timeout=2,
                )

    handle(handler)
    carry_out(worker, [claimed.claim for claimed in message])

    assert states(deployment) == {"completed": 2}


def test_a_slow_run_releases_the_others_of_its_bundle(
    deployment: Deployment, worker: resources.WorkerResources, handle: Callable[..., None]
) -> None:
    deployment.agent(slots=1)
    quick(deployment, 5)
    [message] = group_by_message(take(deployment).claims)
    order: list[str] = []

    def handler(ctx: Context) -> None:
        order.append(ctx.task_id)
        if len(order) == 2:
            wait_until(
                lambda: (
                    deployment.one("SELECT count(*) AS n FROM tasks WHERE state = 'ready'")["n"]
                    == 3
                ),
                what="the others to be given back",
                timeout=10,
            )

    handle(handler)
    carry_out(worker, [claimed.claim for claimed in message])

    assert len(order) == 2
    states = deployment.rows("SELECT state, count(*) AS n FROM tasks GROUP BY state ORDER BY state")
    assert states == [{"state": "completed", "n": 2}, {"state": "ready", "n": 3}]
    spent = deployment.one("SELECT sum(attempts) AS n FROM tasks WHERE state = 'ready'")["n"]
    assert spent == 0


def test_the_tasks_of_a_crashed_bundle_run_singly_next_and_spend_nothing(
    deployment: Deployment,
) -> None:
    deployment.agent(slots=1)
    quick(deployment, 5)
    claims = take(deployment).claims
    for claimed in claims:
        assert deployment.start(claimed) is not None

    deployment.move_clock(timedelta(minutes=5))
    reap(deployment.dispatcher)

    rows = deployment.rows("SELECT state, attempts, runs_alone, bundle FROM tasks")
    assert {(row["state"], row["attempts"], row["runs_alone"], row["bundle"]) for row in rows} == {
        ("ready", 0, True, None)
    }
    assert {row["outcome"] for row in deployment.rows("SELECT outcome FROM attempts")} == {
        "bundle_crash"
    }
    deployment.agent(slots=1)
    assert [len(message) for message in group_by_message(take(deployment).claims)] == [1]


@pytest.fixture
def draining() -> Iterator[None]:
    SHUTDOWN_FLAG.set()
    yield
    SHUTDOWN_FLAG._byte[0] = 0


@pytest.mark.usefixtures("draining")
def test_a_shutdown_gives_a_whole_bundle_back(
    deployment: Deployment, worker: resources.WorkerResources, handle: Callable[..., None]
) -> None:
    deployment.agent(slots=1)
    quick(deployment, 5)
    handle(lambda _: None)
    [message] = group_by_message(take(deployment).claims)

    carry_out(worker, [claimed.claim for claimed in message])

    rows = deployment.rows("SELECT state, attempts FROM tasks")
    assert {(row["state"], row["attempts"]) for row in rows} == {("ready", 0)}


def test_a_claim_twice_in_one_message_runs_once(
    deployment: Deployment, worker: resources.WorkerResources, handle: Callable[..., None]
) -> None:
    deployment.agent(slots=1)
    quick(deployment, 1)
    seen: list[str] = []
    handle(lambda ctx: seen.append(ctx.task_id))
    [claimed] = take(deployment).claims

    carry_out(worker, [claimed.claim, claimed.claim])

    assert len(seen) == 1


def test_an_output_that_postgres_refuses_fails_only_its_own_run(
    deployment: Deployment, worker: resources.WorkerResources, handle: Callable[..., None]
) -> None:
    deployment.agent(slots=1)
    quick(deployment, 3)
    order: list[str] = []

    def handler(ctx: Context) -> object:
        order.append(ctx.task_id)
        return {"text": "\udfff"} if len(order) == 2 else {"text": "fine"}

    handle(handler)
    [message] = group_by_message(take(deployment).claims)
    carry_out(worker, [claimed.claim for claimed in message])

    states = deployment.rows("SELECT state, count(*) AS n FROM tasks GROUP BY state ORDER BY state")
    assert states == [{"state": "completed", "n": 2}, {"state": "retrying", "n": 1}]


def test_a_message_is_named_after_its_task_or_its_bundle(deployment: Deployment) -> None:
    deployment.agent(slots=1)
    quick(deployment, 2)
    claims: list[Claimed] = list(take(deployment).claims)

    assert message_id(claims[0].claim, claims[0].bundle) == f"bundle_{claims[0].bundle}"
    assert message_id(claims[0].claim).endswith(":1")


def test_a_single_quick_task_is_not_a_bundle(deployment: Deployment) -> None:
    deployment.agent(slots=2)
    quick(deployment, 1)

    [claimed] = take(deployment).claims

    assert claimed.bundle is None
