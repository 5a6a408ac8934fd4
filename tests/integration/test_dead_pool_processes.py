"""Claims of dead processes: one that cannot be settled delays neither the others nor the worker."""

import time
from collections.abc import Callable
from uuid import uuid4

import pytest
from billiard.process import current_process

from overnight_server.domain.claims import Claim, Run
from overnight_server.domain.ids import TaskId
from overnight_server.domain.results import Raised, Returned, WaitingForTasks
from overnight_server.gate.claim import BundleLimits, ClaimSettings, claim
from overnight_server.settings import Settings
from overnight_server.store.db import Db
from overnight_worker.claim_registry import ClaimRegistry
from overnight_worker.dead_pool_processes import DeadPoolProcesses
from overnight_worker.identity import WORKER_ID
from tests.support.deployment import CLAIM_TTL, LIVENESS, POOL, Deployment
from tests.support.forked_child import run_in_forked_child
from tests.support.rivals import held_lane
from tests.support.wait import wait_until
from tests.support.workers import worker_settings

NOWHERE = "redis://127.0.0.1:1/0"


@pytest.fixture
def settings(database_url: str) -> Settings:
    return worker_settings(database_url, NOWHERE)


@pytest.fixture
def registry() -> ClaimRegistry:
    return ClaimRegistry()


@pytest.fixture
def dead_pool_processes(registry: ClaimRegistry) -> DeadPoolProcesses:
    return DeadPoolProcesses(registry)


def die_in_handler(registry: ClaimRegistry, run: Run, *, place: int = 0) -> None:
    """Let the process of a run die while its handler runs."""

    def work() -> None:
        registry.register()
        registry.set_claims([run.claim])
        registry.handler_started(until=time.monotonic() + 60)

    run_in_forked_child(work, place=place)


def outcome(deployment: Deployment, run: Run) -> str | None:
    """Return the recorded outcome of a run."""
    sql = "SELECT outcome FROM attempts WHERE task_id = :id"
    return deployment.one(sql, id=run.claim.task_id)["outcome"]


def test_a_claim_that_cannot_be_settled_delays_no_other(
    deployment: Deployment,
    settings: Settings,
    registry: ClaimRegistry,
    dead_pool_processes: DeadPoolProcesses,
    connect: Callable[..., Db],
) -> None:
    deployment.agent()
    blocked, other = deployment.running(deployment.user()), deployment.running(deployment.user())
    die_in_handler(registry, blocked, place=0)
    die_in_handler(registry, other, place=1)

    with held_lane(connect, blocked.user_id):
        dead_pool_processes.settle(settings)
        assert (outcome(deployment, blocked), outcome(deployment, other)) == (None, "crash")

    def is_settled() -> bool:
        dead_pool_processes.settle(settings)
        return outcome(deployment, blocked) == "crash"

    wait_until(is_settled, timeout=10, what="the claim to be settled later")


def test_a_new_process_does_not_overwrite_the_claims_of_a_dead_one(
    deployment: Deployment,
    settings: Settings,
    registry: ClaimRegistry,
    dead_pool_processes: DeadPoolProcesses,
) -> None:
    deployment.agent()
    first, second = deployment.running(deployment.user()), deployment.running(deployment.user())
    die_in_handler(registry, first)
    dead_pool_processes.collect()

    def message_that_starts_nothing() -> None:
        registry.register()
        registry.handler_ended()

    run_in_forked_child(message_that_starts_nothing)
    dead_pool_processes.collect()
    die_in_handler(registry, second)
    dead_pool_processes.settle(settings)

    assert [outcome(deployment, run) for run in (first, second)] == ["crash", "crash"]


def test_a_claim_that_could_not_be_settled_is_not_retried_at_once(
    deployment: Deployment,
    settings: Settings,
    registry: ClaimRegistry,
    dead_pool_processes: DeadPoolProcesses,
) -> None:
    deployment.agent()
    run = deployment.running(deployment.user())
    die_in_handler(registry, run)
    nowhere = worker_settings("postgresql://nobody@127.0.0.1:1/nothing", NOWHERE)

    dead_pool_processes.settle(nowhere)
    dead_pool_processes.settle(settings)

    assert outcome(deployment, run) is None, "a worker that retries all the time does nothing else"


def bundle_of(deployment: Deployment, count: int) -> list[Run]:
    """Claim and start a bundle of short tasks, each of another user."""
    deployment.agent(slots=1)
    deployment.run("INSERT INTO type_durations (type, seconds) VALUES ('quick', 0.001)")
    for _ in range(count):
        deployment.task(deployment.user(), type="quick")
    limits = ClaimSettings(CLAIM_TTL, LIVENESS, bundle_limits=BundleLimits(0.25, 50))
    claims = claim(deployment.dispatcher, POOL, holder="d", claim_settings=limits).claims
    runs = [deployment.start(claimed, agent=WORKER_ID) for claimed in claims]
    assert len({run.bundle for run in runs if run is not None}) == 1
    return [run for run in runs if run is not None]


def test_a_run_that_ends_its_process_does_not_repeat_other_runs_of_its_bundle(
    deployment: Deployment,
    settings: Settings,
    registry: ClaimRegistry,
    dead_pool_processes: DeadPoolProcesses,
) -> None:
    finished, failed, killer, waiting = bundle_of(deployment, 4)

    def work() -> None:
        registry.register()
        registry.set_claims([run.claim for run in (finished, failed, killer, waiting)])
        registry.run_begins(0)
        assert registry.keep_result(0, Returned({"n": 1}, files_changed=("a",), ran_seconds=0.5))
        registry.run_begins(1)
        assert registry.keep_result(1, Raised("error", "it broke", retryable=False))
        registry.run_begins(2)
        registry.handler_started(until=time.monotonic() + 60)

    run_in_forked_child(work)
    dead_pool_processes.settle(settings)

    rows = [deployment.row(run.claim.task_id) for run in (finished, failed, killer, waiting)]
    assert [row["state"] for row in rows] == ["completed", "dead_lettered", "ready", "ready"]
    assert (rows[0]["output"], rows[0]["files_changed"]) == ({"n": 1}, ["a"])
    assert rows[1]["error"] == "it broke"
    outcomes = [outcome(deployment, run) for run in (finished, failed, killer, waiting)]
    assert outcomes == ["completed", "failed", "bundle_crash", "interrupted"]
    assert [row["runs_alone"] for row in rows] == [False, False, True, False]


def test_a_result_that_was_recorded_before_the_death_stays_as_it_is(
    deployment: Deployment,
    settings: Settings,
    registry: ClaimRegistry,
    dead_pool_processes: DeadPoolProcesses,
) -> None:
    first, second = bundle_of(deployment, 2)

    def work() -> None:
        registry.register()
        registry.set_claims([first.claim, second.claim])
        registry.run_begins(0)
        assert registry.keep_result(0, Returned("kept"))

    run_in_forked_child(work)
    deployment.settle(first, Returned("recorded"), agent=WORKER_ID)
    dead_pool_processes.settle(settings)

    assert deployment.row(first.claim.task_id)["output"] == "recorded"
    assert deployment.one("SELECT count(*) AS n FROM stale_results")["n"] == 0


def test_a_result_that_cannot_be_kept_is_reported(registry: ClaimRegistry) -> None:
    claims = [Claim(TaskId(uuid4()), 1, uuid4()) for _ in range(2)]
    answers: list[bool] = []

    setattr(current_process(), "index", 0)  # noqa: B010 - as in run_in_forked_child
    registry.register()
    registry.set_claims(claims)
    answers.append(registry.keep_result(0, Returned("x" * 300_000)))
    answers.append(registry.keep_result(0, WaitingForTasks((uuid4(),))))
    answers.append(registry.keep_result(0, Returned(object())))
    answers.append(registry.keep_result(0, Returned("x")))

    assert answers == [False, False, False, True]
