"""What processes have in hand, read when they are gone."""

import os
from collections.abc import Callable
from uuid import uuid4

import pytest

from app.domain.claims import Claim
from app.domain.ids import TaskId
from workers.holding import Estate, Holding

CLAIMS = [Claim(TaskId(uuid4()), epoch, uuid4()) for epoch in (1, 2**40)]


@pytest.fixture
def holding() -> Holding:
    return Holding()


def in_a_process_that_dies(work: Callable[[], None]) -> None:
    """Do something in a child, and see it gone."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(1)
    os.waitpid(pid, 0)


def test_the_living_leave_nothing(holding: Holding) -> None:
    holding.take(CLAIMS)
    holding.handle()

    assert list(holding.left_by_the_dead()) == []


def test_a_death_in_a_handler_is_told_from_any_other(holding: Holding) -> None:
    left: list[Estate] = []
    for steps in (["handle"], [], ["handle", "rest"]):

        def work(steps: list[str] = steps) -> None:
            holding.take(CLAIMS)
            for step in steps:
                getattr(holding, step)()

        in_a_process_that_dies(work)
        left += holding.left_by_the_dead()

    assert left == [Estate(CLAIMS, handling) for handling in (True, False, False)]


def test_what_was_taken_last_counts(holding: Holding) -> None:
    def work() -> None:
        holding.take(CLAIMS)
        holding.handle()
        holding.take(CLAIMS[1:])

    in_a_process_that_dies(work)

    assert list(holding.left_by_the_dead()) == [Estate(CLAIMS[1:], handling=False)]


def test_an_estate_is_settled_once_and_not_before_it_could_be_told(holding: Holding) -> None:
    in_a_process_that_dies(lambda: holding.take(CLAIMS))
    for _ in holding.left_by_the_dead():
        break  # as a listener does who cannot be told

    again = list(holding.left_by_the_dead())

    assert again == [Estate(CLAIMS, handling=False)]
    assert list(holding.left_by_the_dead()) == []
