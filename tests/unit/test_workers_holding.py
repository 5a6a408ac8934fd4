"""What processes have in hand, read when they are gone."""

import os
import signal
from collections.abc import Callable
from uuid import uuid4

import pytest

from app.domain.claims import Claim
from app.domain.ids import TaskId
from tests.support.dying import in_a_process_that_dies
from workers.holding import MOST_PROCESSES, Estate, Holding

CLAIMS = [Claim(TaskId(uuid4()), epoch, uuid4()) for epoch in (1, 2**40)]


@pytest.fixture
def holding() -> Holding:
    return Holding()


def working(holding: Holding, *steps: str, claims: list[Claim] = CLAIMS) -> Callable[[], None]:
    """Say what a process of the pool does: it takes claims, and then some steps."""

    def work() -> None:
        holding.open()
        holding.take(claims)
        for step in steps:
            getattr(holding, step)()

    return work


def test_the_living_leave_nothing(holding: Holding) -> None:
    working(holding, "handle")()

    assert holding.left_by_the_dead() == []


@pytest.mark.parametrize(
    ("steps", "handling"), [(["handle"], True), ([], False), (["handle", "rest"], False)]
)
def test_a_death_in_a_handler_is_told_from_any_other(
    holding: Holding, steps: list[str], *, handling: bool
) -> None:
    in_a_process_that_dies(working(holding, *steps))

    assert holding.left_by_the_dead() == [Estate(CLAIMS, handling)]


def test_what_was_taken_last_counts(holding: Holding) -> None:
    def work() -> None:
        working(holding, "handle")()
        holding.take(CLAIMS[1:])

    in_a_process_that_dies(work)

    assert holding.left_by_the_dead() == [Estate(CLAIMS[1:], handling=False)]


def test_who_has_nothing_in_hand_leaves_nothing(holding: Holding) -> None:
    in_a_process_that_dies(working(holding, claims=[]))

    assert holding.left_by_the_dead() == []


def test_an_estate_is_handed_over_once(holding: Holding) -> None:
    in_a_process_that_dies(working(holding))

    assert holding.left_by_the_dead() == [Estate(CLAIMS, handling=False)]
    assert holding.left_by_the_dead() == []


def test_every_process_has_a_page_of_its_own(holding: Holding) -> None:
    in_a_process_that_dies(working(holding, "handle", claims=CLAIMS[:1]), place=0)
    in_a_process_that_dies(working(holding, claims=CLAIMS[1:]), place=1)

    assert holding.left_by_the_dead() == [
        Estate(CLAIMS[:1], handling=True),
        Estate(CLAIMS[1:], handling=False),
    ]


def test_a_process_without_a_page_works_all_the_same(holding: Holding) -> None:
    in_a_process_that_dies(working(holding, "handle"), place=MOST_PROCESSES)

    assert holding.left_by_the_dead() == []


def test_who_was_given_no_page_writes_on_none(holding: Holding) -> None:
    """Like the main process, or a test that runs handlers in its own."""
    in_a_process_that_dies(lambda: holding.take(CLAIMS))

    assert holding.left_by_the_dead() == []


def test_the_living_never_look_dead_however_much_they_write(holding: Holding) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            work = working(holding, "handle", "rest")
            while True:
                work()
        finally:
            os._exit(1)

    seen = [estate for _ in range(20_000) for estate in holding.left_by_the_dead()]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)

    assert seen == []
