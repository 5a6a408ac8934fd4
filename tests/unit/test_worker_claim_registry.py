"""What processes have in hand, read when they are gone."""

import os
import signal
import time
from collections.abc import Callable
from uuid import uuid4

import pytest

from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import TaskId
from overnight_worker.claim_registry import MOST_PROCESSES, ClaimRegistry, OrphanedClaims
from tests.support.dying import in_a_process_that_dies

Step = Callable[[ClaimRegistry], None]
CLAIMS = [Claim(TaskId(uuid4()), epoch, uuid4()) for epoch in (1, 2**40)]


@pytest.fixture
def holding() -> ClaimRegistry:
    return ClaimRegistry()


def handles(holding: ClaimRegistry) -> None:
    holding.handle(until=time.monotonic() + 60)


def rests(holding: ClaimRegistry) -> None:
    holding.rest()


def is_ended_by_the_watchdog(holding: ClaimRegistry) -> None:
    holding.handle(until=time.monotonic())


def loses_its_runs_to_us(holding: ClaimRegistry) -> None:
    holding.rest(taken_away=True)


def working(
    holding: ClaimRegistry, *steps: Step, claims: list[Claim] = CLAIMS
) -> Callable[[], None]:
    """Say what a process of the pool does: it takes claims, and then some steps."""

    def work() -> None:
        holding.open()
        holding.take(claims)
        for step in steps:
            step(holding)

    return work


def test_the_living_leave_nothing(holding: ClaimRegistry) -> None:
    working(holding, handles)()

    assert holding.left_by_the_dead() == []


@pytest.mark.parametrize(
    ("steps", "estate"),
    [
        ([], OrphanedClaims(CLAIMS)),
        ([handles], OrphanedClaims(CLAIMS, handling=True)),
        ([handles, rests], OrphanedClaims(CLAIMS)),
        ([handles, is_ended_by_the_watchdog], OrphanedClaims(CLAIMS)),
        ([handles, loses_its_runs_to_us], OrphanedClaims(CLAIMS, taken_away=True)),
    ],
)
def test_a_death_in_a_handler_is_told_from_any_other(
    holding: ClaimRegistry, steps: list[Step], estate: OrphanedClaims
) -> None:
    in_a_process_that_dies(working(holding, *steps))

    assert holding.left_by_the_dead() == [estate]


def test_what_was_taken_last_counts(holding: ClaimRegistry) -> None:
    def work() -> None:
        working(holding, handles, loses_its_runs_to_us)()
        holding.take(CLAIMS[1:])

    in_a_process_that_dies(work)

    assert holding.left_by_the_dead() == [OrphanedClaims(CLAIMS[1:])]


def test_who_has_nothing_in_hand_leaves_nothing(holding: ClaimRegistry) -> None:
    in_a_process_that_dies(working(holding, claims=[]))

    assert holding.left_by_the_dead() == []


def test_an_estate_is_handed_over_once(holding: ClaimRegistry) -> None:
    in_a_process_that_dies(working(holding))

    assert holding.left_by_the_dead() == [OrphanedClaims(CLAIMS)]
    assert holding.left_by_the_dead() == []


def test_every_process_has_a_page_of_its_own(holding: ClaimRegistry) -> None:
    in_a_process_that_dies(working(holding, handles, claims=CLAIMS[:1]), place=0)
    in_a_process_that_dies(working(holding, claims=CLAIMS[1:]), place=1)

    assert holding.left_by_the_dead() == [
        OrphanedClaims(CLAIMS[:1], handling=True),
        OrphanedClaims(CLAIMS[1:]),
    ]


def test_a_process_without_a_page_works_all_the_same(holding: ClaimRegistry) -> None:
    in_a_process_that_dies(working(holding, handles), place=MOST_PROCESSES)

    assert holding.left_by_the_dead() == []


def test_who_was_given_no_page_writes_on_none(holding: ClaimRegistry) -> None:
    """Like the main process, or a test that runs handlers in its own."""
    in_a_process_that_dies(lambda: holding.take(CLAIMS))

    assert holding.left_by_the_dead() == []


def test_the_living_never_look_dead_however_much_they_write(holding: ClaimRegistry) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            work = working(holding, handles, rests)
            while True:
                work()
        finally:
            os._exit(1)

    seen = [estate for _ in range(20_000) for estate in holding.left_by_the_dead()]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)

    assert seen == []
