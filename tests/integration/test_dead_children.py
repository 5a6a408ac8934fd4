"""Claims of dead processes: one that cannot be settled delays neither the others nor the worker."""

import time
from collections.abc import Callable

import pytest

from overnight_server.domain.claims import Run
from overnight_server.settings import Settings
from overnight_server.store.db import Db
from overnight_worker.claim_registry import ClaimRegistry
from overnight_worker.dead_children import DeadChildren
from tests.support.deployment import Deployment
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
def dead_children(registry: ClaimRegistry) -> DeadChildren:
    return DeadChildren(registry)


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
    dead_children: DeadChildren,
    connect: Callable[..., Db],
) -> None:
    deployment.agent()
    blocked, other = deployment.running(deployment.user()), deployment.running(deployment.user())
    die_in_handler(registry, blocked, place=0)
    die_in_handler(registry, other, place=1)

    with held_lane(connect, blocked.user_id):
        dead_children.settle(settings)
        assert (outcome(deployment, blocked), outcome(deployment, other)) == (None, "crash")

    def is_settled() -> bool:
        dead_children.settle(settings)
        return outcome(deployment, blocked) == "crash"

    wait_until(is_settled, timeout=10, what="the claim to be settled later")


def test_a_new_process_does_not_overwrite_the_claims_of_a_dead_one(
    deployment: Deployment, settings: Settings, registry: ClaimRegistry, dead_children: DeadChildren
) -> None:
    deployment.agent()
    first, second = deployment.running(deployment.user()), deployment.running(deployment.user())
    die_in_handler(registry, first)
    dead_children.collect()

    def message_that_starts_nothing() -> None:
        registry.register()
        registry.handler_ended()

    run_in_forked_child(message_that_starts_nothing)
    dead_children.collect()
    die_in_handler(registry, second)
    dead_children.settle(settings)

    assert [outcome(deployment, run) for run in (first, second)] == ["crash", "crash"]


def test_a_claim_that_could_not_be_settled_is_not_retried_at_once(
    deployment: Deployment, settings: Settings, registry: ClaimRegistry, dead_children: DeadChildren
) -> None:
    deployment.agent()
    run = deployment.running(deployment.user())
    die_in_handler(registry, run)
    nowhere = worker_settings("postgresql://nobody@127.0.0.1:1/nothing", NOWHERE)

    dead_children.settle(nowhere)
    dead_children.settle(settings)

    assert outcome(deployment, run) is None, "a worker that retries all the time does nothing else"
