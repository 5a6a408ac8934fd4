"""The claims of pool processes can be read after the processes have died."""

import os
import signal
import time
from collections.abc import Callable
from uuid import uuid4

import pytest

from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import TaskId
from overnight_worker.claim_registry import MAX_PROCESSES, ClaimRegistry, OrphanedClaims
from tests.support.forked_child import run_in_forked_child

Step = Callable[[ClaimRegistry], None]
CLAIMS = [Claim(TaskId(uuid4()), epoch, uuid4()) for epoch in (1, 2**40)]


@pytest.fixture
def registry() -> ClaimRegistry:
    return ClaimRegistry()


def starts_handler(registry: ClaimRegistry) -> None:
    registry.handler_started(until=time.monotonic() + 60)


def ends_handler(registry: ClaimRegistry) -> None:
    registry.handler_ended()


def is_killed_by_the_watchdog(registry: ClaimRegistry) -> None:
    registry.handler_started(until=time.monotonic())


def ends_its_runs(registry: ClaimRegistry) -> None:
    registry.handler_ended(ended_by_worker=True)


def process(
    registry: ClaimRegistry, *steps: Step, claims: list[Claim] = CLAIMS
) -> Callable[[], None]:
    """Return what a pool process does: it registers, begins its claims, and takes some steps."""

    def work() -> None:
        registry.register()
        registry.set_claims(claims)
        for number in range(len(claims)):
            registry.run_begins(number)
        for step in steps:
            step(registry)

    return work


def test_a_living_process_leaves_no_orphaned_claims(registry: ClaimRegistry) -> None:
    process(registry, starts_handler)()

    assert registry.collect_orphaned_claims() == []


@pytest.mark.parametrize(
    ("steps", "orphaned"),
    [
        ([], OrphanedClaims(CLAIMS)),
        ([starts_handler], OrphanedClaims(CLAIMS, in_handler=True)),
        ([starts_handler, ends_handler], OrphanedClaims(CLAIMS)),
        ([starts_handler, is_killed_by_the_watchdog], OrphanedClaims(CLAIMS)),
        ([starts_handler, ends_its_runs], OrphanedClaims(CLAIMS, ended_by_worker=True)),
    ],
)
def test_a_death_in_a_handler_is_distinguished_from_other_deaths(
    registry: ClaimRegistry, steps: list[Step], orphaned: OrphanedClaims
) -> None:
    run_in_forked_child(process(registry, *steps))

    assert registry.collect_orphaned_claims() == [orphaned]


def test_the_last_claims_replace_earlier_ones(registry: ClaimRegistry) -> None:
    def work() -> None:
        process(registry, starts_handler, ends_its_runs)()
        registry.set_claims(CLAIMS[1:])

    run_in_forked_child(work)

    assert registry.collect_orphaned_claims() == [OrphanedClaims(CLAIMS[1:])]


def test_a_process_without_claims_leaves_no_orphaned_claims(registry: ClaimRegistry) -> None:
    run_in_forked_child(process(registry, claims=[]))

    assert registry.collect_orphaned_claims() == []


def test_orphaned_claims_are_collected_once(registry: ClaimRegistry) -> None:
    run_in_forked_child(process(registry))

    assert registry.collect_orphaned_claims() == [OrphanedClaims(CLAIMS)]
    assert registry.collect_orphaned_claims() == []


def test_every_process_has_its_own_record(registry: ClaimRegistry) -> None:
    run_in_forked_child(process(registry, starts_handler, claims=CLAIMS[:1]), place=0)
    run_in_forked_child(process(registry, claims=CLAIMS[1:]), place=1)

    assert registry.collect_orphaned_claims() == [
        OrphanedClaims(CLAIMS[:1], in_handler=True),
        OrphanedClaims(CLAIMS[1:]),
    ]


def test_a_process_beyond_the_last_record_works_without_one(registry: ClaimRegistry) -> None:
    run_in_forked_child(process(registry, starts_handler), place=MAX_PROCESSES)

    assert registry.collect_orphaned_claims() == []


def test_a_process_that_did_not_register_writes_nothing(registry: ClaimRegistry) -> None:
    """Such as the main process, or a test that runs handlers in its own process."""
    run_in_forked_child(lambda: registry.set_claims(CLAIMS))

    assert registry.collect_orphaned_claims() == []


def test_a_process_that_writes_all_the_time_never_looks_dead(registry: ClaimRegistry) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            work = process(registry, starts_handler, ends_handler)
            while True:
                work()
        finally:
            os._exit(1)

    collected = [orphaned for _ in range(20_000) for orphaned in registry.collect_orphaned_claims()]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)

    assert collected == []
