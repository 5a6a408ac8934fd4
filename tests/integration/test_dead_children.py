"""Telling of deaths: one that cannot be told holds up neither the others nor the worker."""

import time
from collections.abc import Callable

import pytest

from overnight_server.domain.claims import Run
from overnight_server.settings import Settings
from overnight_server.store.db import Db
from overnight_worker.claim_registry import ClaimRegistry
from overnight_worker.dead_children import DeadChildren
from tests.support.deployment import Deployment
from tests.support.dying import in_a_process_that_dies
from tests.support.rivals import held_lane
from tests.support.waiting import wait_until
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


def dies_at_work(registry: ClaimRegistry, run: Run, *, place: int = 0) -> None:
    """Let the process of a run die while its handler is at work."""

    def work() -> None:
        registry.register()
        registry.set_claims([run.claim])
        registry.handler_started(until=time.monotonic() + 60)

    in_a_process_that_dies(work, place=place)


def outcome(deployment: Deployment, run: Run) -> str | None:
    """Return what is recorded of a run."""
    named = {"id": run.claim.task_id}
    return deployment.one("SELECT outcome FROM attempts WHERE task_id = :id", **named)["outcome"]


def test_a_death_that_nobody_can_be_told_of_holds_up_no_other(
    deployment: Deployment,
    settings: Settings,
    registry: ClaimRegistry,
    dead_children: DeadChildren,
    connect: Callable[..., Db],
) -> None:
    deployment.agent()
    held_up, other = deployment.running(deployment.user()), deployment.running(deployment.user())
    dies_at_work(registry, held_up, place=0)
    dies_at_work(registry, other, place=1)

    with held_lane(connect, held_up.user_id):
        dead_children.settle(settings)
        assert (outcome(deployment, held_up), outcome(deployment, other)) == (None, "crash")

    def told() -> bool:
        dead_children.settle(settings)
        return outcome(deployment, held_up) == "crash"

    wait_until(told, timeout=10, what="the death to be told later")


def test_what_a_death_left_is_safe_from_whoever_takes_the_place(
    deployment: Deployment, settings: Settings, registry: ClaimRegistry, dead_children: DeadChildren
) -> None:
    deployment.agent()
    first, second = deployment.running(deployment.user()), deployment.running(deployment.user())
    dies_at_work(registry, first)
    dead_children.collect()

    def message_that_starts_nothing() -> None:
        registry.register()
        registry.handler_ended()

    in_a_process_that_dies(message_that_starts_nothing)
    dead_children.collect()
    dies_at_work(registry, second)
    dead_children.settle(settings)

    assert [outcome(deployment, run) for run in (first, second)] == ["crash", "crash"]


def test_what_could_not_be_told_is_not_tried_again_at_once(
    deployment: Deployment, settings: Settings, registry: ClaimRegistry, dead_children: DeadChildren
) -> None:
    deployment.agent()
    run = deployment.running(deployment.user())
    dies_at_work(registry, run)
    nowhere = worker_settings("postgresql://nobody@127.0.0.1:1/nothing", NOWHERE)

    dead_children.settle(nowhere)
    dead_children.settle(settings)

    assert outcome(deployment, run) is None, "a worker that speaks all the time does nothing else"
