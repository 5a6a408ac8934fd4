"""One computation of a user at a time: equal requests share an answer, others wait."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from overnight.errors import TooManyRequests
from overnight_server.store.one_at_a_time import OneAtATime
from tests.support.wait import wait_until


def test_a_second_caller_gets_the_first_ones_answer() -> None:
    flights, release, calls = OneAtATime(max_waiting=8), Event(), []

    def work() -> int:
        calls.append(1)
        release.wait(10)
        return len(calls)

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(flights.compute, "ada", "next", work)
        wait_until(lambda: bool(calls), what="the first to begin")
        [shared] = flights._in_progress.values()
        second = threads.submit(flights.compute, "ada", "next", work)
        wait_until(lambda: bool(shared._condition._waiters), what="the second to wait")  # type: ignore[attr-defined]
        release.set()

        assert (first.result(10), second.result(10)) == (1, 1)
    assert calls == [1]


def test_different_computations_of_one_user_take_turns() -> None:
    flights, release, running = OneAtATime(max_waiting=8), Event(), []

    def work(name: str) -> str:
        running.append(name)
        release.wait(10)
        return name

    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(flights.compute, "ada", 1, lambda: work("first"))
        wait_until(lambda: running == ["first"], what="the first to begin")
        second = threads.submit(flights.compute, "ada", 2, lambda: work("second"))
        other = threads.submit(flights.compute, "bob", 1, lambda: work("other"))
        wait_until(lambda: "other" in running, what="another user's computation")

        assert running == ["first", "other"]
        release.set()
        assert [future.result(10) for future in (first, second, other)] == [
            "first",
            "second",
            "other",
        ]


def test_too_many_different_computations_are_refused() -> None:
    flights, release, running = OneAtATime(max_waiting=1), Event(), []

    def work() -> None:
        running.append(1)
        release.wait(10)

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(flights.compute, "ada", 1, work)
        wait_until(lambda: bool(running), what="the first to begin")
        second = threads.submit(flights.compute, "ada", 2, work)
        wait_until(lambda: flights._callers["ada"] == 2, what="the second to wait")

        with pytest.raises(TooManyRequests):
            flights.compute("ada", 3, work)
        release.set()
        first.result(10)
        second.result(10)
    assert flights.compute("ada", 3, lambda: "free again") == "free again"


def test_an_error_reaches_everybody_and_leaves_nothing_behind() -> None:
    flights = OneAtATime(max_waiting=1)

    def fail() -> None:
        raise LookupError("no such task")

    with pytest.raises(LookupError):
        flights.compute("ada", 1, fail)
    assert flights.compute("ada", 1, lambda: "again") == "again"
    assert not flights._in_progress
    assert not flights._turns
