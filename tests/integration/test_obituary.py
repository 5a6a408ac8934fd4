"""Telling of deaths: one that cannot be told holds up neither the others nor the worker."""

import time
from collections.abc import Callable

import pytest

from overnight_server.domain.claims import Run
from overnight_server.settings import Settings
from overnight_server.store.db import Db
from overnight_worker.claim_registry import Holding
from overnight_worker.dead_children import Obituary
from tests.support.dying import in_a_process_that_dies
from tests.support.house import House
from tests.support.rivals import held_lane
from tests.support.waiting import wait_until
from tests.support.workers import worker_settings

NOWHERE = "redis://127.0.0.1:1/0"


@pytest.fixture
def settings(database_url: str) -> Settings:
    return worker_settings(database_url, NOWHERE)


@pytest.fixture
def holding() -> Holding:
    return Holding()


@pytest.fixture
def obituary(holding: Holding) -> Obituary:
    return Obituary(holding)


def dies_at_work(holding: Holding, run: Run, *, place: int = 0) -> None:
    """Let the process of a run die while its handler is at work."""

    def work() -> None:
        holding.open()
        holding.take([run.claim])
        holding.handle(until=time.monotonic() + 60)

    in_a_process_that_dies(work, place=place)


def outcome(house: House, run: Run) -> str | None:
    """Return what is recorded of a run."""
    named = {"id": run.claim.task_id}
    return house.one("SELECT outcome FROM attempts WHERE task_id = :id", **named)["outcome"]


def test_a_death_that_nobody_can_be_told_of_holds_up_no_other(
    house: House,
    settings: Settings,
    holding: Holding,
    obituary: Obituary,
    connect: Callable[..., Db],
) -> None:
    house.agent()
    held_up, other = house.running(house.user()), house.running(house.user())
    dies_at_work(holding, held_up, place=0)
    dies_at_work(holding, other, place=1)

    with held_lane(connect, held_up.user_id):
        obituary.tell(settings)
        assert (outcome(house, held_up), outcome(house, other)) == (None, "crash")

    def told() -> bool:
        obituary.tell(settings)
        return outcome(house, held_up) == "crash"

    wait_until(told, timeout=10, what="the death to be told later")


def test_what_a_death_left_is_safe_from_whoever_takes_the_place(
    house: House, settings: Settings, holding: Holding, obituary: Obituary
) -> None:
    house.agent()
    first, second = house.running(house.user()), house.running(house.user())
    dies_at_work(holding, first)
    obituary.note()

    def message_that_starts_nothing() -> None:
        holding.open()
        holding.rest()

    in_a_process_that_dies(message_that_starts_nothing)
    obituary.note()
    dies_at_work(holding, second)
    obituary.tell(settings)

    assert [outcome(house, run) for run in (first, second)] == ["crash", "crash"]


def test_what_could_not_be_told_is_not_tried_again_at_once(
    house: House, settings: Settings, holding: Holding, obituary: Obituary
) -> None:
    house.agent()
    run = house.running(house.user())
    dies_at_work(holding, run)
    nowhere = worker_settings("postgresql://nobody@127.0.0.1:1/nothing", NOWHERE)

    obituary.tell(nowhere)
    obituary.tell(settings)

    assert outcome(house, run) is None, "a worker that speaks all the time does nothing else"
