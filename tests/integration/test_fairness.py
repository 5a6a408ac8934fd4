"""The receipts of a real house: read from what happened, bounded by the period."""

from datetime import timedelta

import pytest

from overnight_server.domain.fairness import Receipt
from overnight_server.domain.results import Raised, Returned
from overnight_server.insight import fairness as receipts
from overnight_server.insight.fairness import FairnessView, fairness
from tests.support.house import LIVENESS, House

MINUTE = timedelta(minutes=1)


def read(house: House, **options: timedelta) -> FairnessView:
    return fairness(house.dispatcher, liveness=LIVENESS, **options)


def of(found: FairnessView, user: str) -> Receipt:
    [receipt] = [one for one in found.users if one.user == user]
    return receipt


def run_all(house: House, *, minutes: float = 10) -> None:
    """Let everything that may start now start, and end after a while."""
    runs = [house.start(claimed) for claimed in house.claim().claims]
    house.move_clock(minutes * MINUTE)
    for run in runs:
        assert run is not None
        house.settle(run, Returned())


def test_waits_count_from_ready_to_start(house: House) -> None:
    house.agent(slots=1)
    ada = house.user(name="ada")
    for _ in range(2):
        house.task(ada)
    run_all(house)
    run_all(house)

    found = read(house)

    receipt = of(found, "ada")
    assert (found.starts, receipt.started, receipt.waiting) == (2, 2, 0)
    assert receipt.longest_wait == pytest.approx(600, abs=30)
    assert receipt.median_wait == pytest.approx(300, abs=30)
    assert receipt.slot_seconds == pytest.approx(1200, abs=60)
    assert found.longest_wait_seconds == receipt.longest_wait


def test_a_retry_waits_only_since_it_was_ready_again(house: House) -> None:
    house.agent()
    run = house.running(house.user(name="ada"))
    house.move_clock(60 * MINUTE)
    house.settle(run, Raised("error", "no luck"))
    house.run("UPDATE tasks SET state = 'ready', retry_at = NULL")
    house.move_clock(5 * MINUTE)
    run_all(house)

    assert of(read(house), "ada").longest_wait == pytest.approx(300, abs=30)


def test_the_gate_serves_a_small_user_beside_a_large_one_evenly(house: House) -> None:
    house.agent(slots=2)
    large, small = house.user(name="large"), house.user(name="small")
    for _ in range(12):
        house.task(large)
    for _ in range(4):
        house.task(small)
    for _ in range(8):
        run_all(house)

    found = read(house, since=timedelta(hours=2))

    assert found.jain is not None
    assert found.jain > 0.98
    assert of(found, "small").longest_wait <= of(found, "large").longest_wait
    assert found.starving == []


def test_who_waits_without_ever_starting_has_a_receipt_too(house: House) -> None:
    house.task(house.user(name="ada"))
    house.move_clock(10 * MINUTE)

    receipt = of(read(house), "ada")

    assert (receipt.started, receipt.waiting, receipt.median_wait) == (0, 1, None)
    assert receipt.longest_wait == pytest.approx(600, abs=30)


def test_what_happened_before_the_period_is_left_out(house: House) -> None:
    house.agent()
    house.task(house.user(name="ada"))
    run_all(house)
    house.move_clock(timedelta(hours=2))

    assert read(house, since=timedelta(hours=1)).users == []


def test_a_period_with_too_many_runs_is_shortened_and_says_so(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipts, "MOST_STARTS", 2)
    house.agent(slots=1)
    ada = house.user(name="ada")
    for _ in range(4):
        house.task(ada)
    for _ in range(4):
        run_all(house, minutes=30)

    found = read(house, since=timedelta(hours=2, minutes=10))

    assert found.is_shortened
    assert found.starts <= 2
    assert found.until_at - found.since_at < timedelta(hours=2)


def test_an_alarm_names_who_could_be_served_and_is_not(house: House) -> None:
    """Ada's lane is kept from the gate's sight, as a fault in it might."""
    house.agent(slots=2)
    ada, bob = house.user(name="ada"), house.user(name="bob")
    house.task(ada)
    house.move_clock(20 * MINUTE)
    house.task(bob)
    house.run("UPDATE lanes SET paused = true WHERE user_id = :id", id=ada)
    run_all(house, minutes=1)
    house.run("UPDATE lanes SET paused = false WHERE user_id = :id", id=ada)

    found = read(house)

    [alarm] = found.starving
    assert alarm.user == "ada"
    assert alarm.waited_seconds == pytest.approx(21 * 60, abs=30)
    assert read(house, patience=timedelta(hours=1)).starving == []


def test_there_is_no_alarm_for_what_no_worker_can_do(house: House) -> None:
    house.agent(slots=2)
    ada, bob = house.user(name="ada"), house.user(name="bob")
    house.task(ada, required_capabilities=["moon"])
    house.move_clock(20 * MINUTE)
    house.task(bob)
    run_all(house, minutes=1)

    assert read(house).starving == []


def test_a_paused_user_is_owed_nothing(house: House) -> None:
    house.agent(slots=2)
    ada, bob = house.user(name="ada"), house.user(name="bob")
    house.task(ada)
    house.run("UPDATE lanes SET paused = true WHERE user_id = :id", id=ada)
    house.task(bob)
    run_all(house, minutes=30)

    found = read(house, since=timedelta(hours=1))

    assert (of(found, "ada").service, of(found, "bob").service) == (None, 1)
    assert of(found, "ada").waiting == 1


def test_an_empty_house_is_fair_to_nobody(house: House) -> None:
    found = read(house)

    assert (found.jain, found.users, found.starving, found.starts) == (None, [], [], 0)
