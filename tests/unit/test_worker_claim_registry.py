"""What processes have in hand, read when they are gone."""

import os
import signal
import time
from collections.abc import Callable
from uuid import uuid4

import pytest

from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import TaskId
from overnight_worker.claim_registry import MAX_PROCESSES, ClaimRegistry, OrphanedClaims
from tests.support.dying import in_a_process_that_dies

Step = Callable[[ClaimRegistry], None]
CLAIMS = [Claim(TaskId(uuid4()), epoch, uuid4()) for epoch in (1, 2**40)]


@pytest.fixture
def registry() -> ClaimRegistry:
    return ClaimRegistry()


def handles(registry: ClaimRegistry) -> None:
    registry.handler_started(until=time.monotonic() + 60)


def rests(registry: ClaimRegistry) -> None:
    registry.handler_ended()


def is_ended_by_the_watchdog(registry: ClaimRegistry) -> None:
    registry.handler_started(until=time.monotonic())


def loses_its_runs_to_us(registry: ClaimRegistry) -> None:
    registry.handler_ended(taken_away=True)


def working(
    registry: ClaimRegistry, *steps: Step, claims: list[Claim] = CLAIMS
) -> Callable[[], None]:
    """Say what a process of the pool does: it takes claims, and then some steps."""

    def work() -> None:
        registry.register()
        registry.set_claims(claims)
        for step in steps:
            step(registry)

    return work


def test_the_living_leave_nothing(registry: ClaimRegistry) -> None:
    working(registry, handles)()

    assert registry.collect_orphaned_claims() == []


@pytest.mark.parametrize(
    ("steps", "orphaned"),
    [
        ([], OrphanedClaims(CLAIMS)),
        ([handles], OrphanedClaims(CLAIMS, in_handler=True)),
        ([handles, rests], OrphanedClaims(CLAIMS)),
        ([handles, is_ended_by_the_watchdog], OrphanedClaims(CLAIMS)),
        ([handles, loses_its_runs_to_us], OrphanedClaims(CLAIMS, taken_away=True)),
    ],
)
def test_a_death_in_a_handler_is_told_from_any_other(
    registry: ClaimRegistry, steps: list[Step], orphaned: OrphanedClaims
) -> None:
    in_a_process_that_dies(working(registry, *steps))

    assert registry.collect_orphaned_claims() == [orphaned]


def test_what_was_taken_last_counts(registry: ClaimRegistry) -> None:
    def work() -> None:
        working(registry, handles, loses_its_runs_to_us)()
        registry.set_claims(CLAIMS[1:])

    in_a_process_that_dies(work)

    assert registry.collect_orphaned_claims() == [OrphanedClaims(CLAIMS[1:])]


def test_who_has_nothing_in_hand_leaves_nothing(registry: ClaimRegistry) -> None:
    in_a_process_that_dies(working(registry, claims=[]))

    assert registry.collect_orphaned_claims() == []


def test_an_estate_is_handed_over_once(registry: ClaimRegistry) -> None:
    in_a_process_that_dies(working(registry))

    assert registry.collect_orphaned_claims() == [OrphanedClaims(CLAIMS)]
    assert registry.collect_orphaned_claims() == []


def test_every_process_has_a_page_of_its_own(registry: ClaimRegistry) -> None:
    in_a_process_that_dies(working(registry, handles, claims=CLAIMS[:1]), place=0)
    in_a_process_that_dies(working(registry, claims=CLAIMS[1:]), place=1)

    assert registry.collect_orphaned_claims() == [
        OrphanedClaims(CLAIMS[:1], in_handler=True),
        OrphanedClaims(CLAIMS[1:]),
    ]


def test_a_process_without_a_page_works_all_the_same(registry: ClaimRegistry) -> None:
    in_a_process_that_dies(working(registry, handles), place=MAX_PROCESSES)

    assert registry.collect_orphaned_claims() == []


def test_who_was_given_no_page_writes_on_none(registry: ClaimRegistry) -> None:
    """Like the main process, or a test that runs handlers in its own."""
    in_a_process_that_dies(lambda: registry.set_claims(CLAIMS))

    assert registry.collect_orphaned_claims() == []


def test_the_living_never_look_dead_however_much_they_write(registry: ClaimRegistry) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            work = working(registry, handles, rests)
            while True:
                work()
        finally:
            os._exit(1)

    seen = [orphaned for _ in range(20_000) for orphaned in registry.collect_orphaned_claims()]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)

    assert seen == []
