"""Ending runs: what each result makes of the task, and that it is recorded exactly once."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import NamedTuple
from uuid import uuid4

import pytest
from sqlalchemy.exc import DataError, IntegrityError

from overnight_server.control.cancel import cancel
from overnight_server.domain.claims import Claim, Run
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.domain.results import (
    Deferred,
    Died,
    Interrupted,
    Lost,
    Raised,
    Result,
    Returned,
    Stopped,
    TimedOut,
)
from overnight_server.domain.retry import RetryPolicy, Strategy
from overnight_server.maintenance.promote import promote
from overnight_server.outcome.settle import release, settle
from overnight_server.store.db import Db
from tests.support.graphs import begin
from tests.support.house import AGENT, House
from tests.support.rivals import Rival, meet_at_lane

RETRYABLE = Raised("error", "no luck", "ValueError", "line 1")
FATAL = Raised("auth_failure", "wrong key")
AT_ONCE = RetryPolicy(Strategy.IMMEDIATE)


class Record(NamedTuple):
    """What an ending leaves on the task, on its attempt and in the ledger."""

    state: str
    attempts: int
    outcome: str
    reason: str | None
    ledger: Sequence[str] = ("usage",)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (Returned("done"), Record("completed", 1, "completed", None)),
        (RETRYABLE, Record("retrying", 1, "failed", "error")),
        (FATAL, Record("dead_lettered", 1, "failed", "auth_failure")),
        (TimedOut(by_plan=False), Record("retrying", 1, "timeout", "timeout")),
        (TimedOut(by_plan=True), Record("dead_lettered", 1, "plan_timeout", "plan_timeout")),
        (Stopped(), Record("cancelled", 1, "cancelled", "cancelled")),
        (Interrupted(), Record("ready", 0, "interrupted", None, ("refund", "usage"))),
        (Deferred(60), Record("retrying", 0, "deferred", "rate_limit")),
        (Died(), Record("retrying", 1, "crash", "crash")),
        (Lost(), Record("retrying", 1, "worker_lost", "crash", ("refund", "usage"))),
    ],
    ids=lambda value: value.outcome if isinstance(value, Record) else type(value).__name__,
)
def test_each_way_to_end_leaves_its_own_record(
    house: House, result: Result, expected: Record
) -> None:
    user = house.user()
    house.agent()
    run = house.running(user, timeout_seconds=600)
    house.move_clock(timedelta(seconds=20))

    assert house.settle(run, result) is True

    row = house.row(run.claim.task_id)
    attempt = house.one("SELECT * FROM attempts")
    entries = house.rows("SELECT kind, seconds FROM usage_ledger ORDER BY kind")
    assert expected == Record(
        row["state"],
        row["attempts"],
        attempt["outcome"],
        row["failure_reason"],
        tuple(entry["kind"] for entry in entries),
    )
    assert attempt["spent"] is bool(expected.attempts)
    ran = (attempt["ended_at"] - attempt["started_at"]).total_seconds()
    assert abs(float(entries[-1]["seconds"]) - ran) < 0.001
    lane = house.lane(user)
    assert lane["used_seconds"] == sum(entry["seconds"] for entry in entries)
    assert (lane["active"], lane["reserved_seconds"]) == (0, 0)


def test_a_result_keeps_everything_it_brought(house: House) -> None:
    house.agent()
    run = house.running(house.user())

    house.settle(
        run, Returned({"a": [1]}, "did it", ("x.py", "y.py"), cost_usd=0.25, tokens={"in": 7})
    )

    row = house.row(run.claim.task_id)
    assert (row["output"], row["result_summary"]) == ({"a": [1]}, "did it")
    assert row["files_changed"] == ["x.py", "y.py"]
    assert (row["cost_usd"], row["tokens_used"]) == (Decimal("0.25"), {"in": 7})
    assert house.one("SELECT spent_usd FROM graphs")["spent_usd"] == Decimal("0.25")


@pytest.mark.parametrize(
    "output", [{"raw": "a\x00b"}, {"half": "\ud800"}, {"loss": float("nan")}], ids=repr
)
def test_an_output_that_cannot_be_stored_leaves_the_run_open(
    house: House, output: dict[str, object]
) -> None:
    house.agent()
    run = house.running(house.user())
    before = house.row(run.claim.task_id)

    with pytest.raises(DataError):
        house.settle(run, Returned(output))

    assert house.row(run.claim.task_id) == before
    assert house.settle(run, Raised("invalid_output", "cannot be stored")) is True


def test_a_failure_can_always_be_stored(house: House) -> None:
    """A file name that is no UTF-8 reaches an error message as half a surrogate pair."""
    house.agent()
    run = house.running(house.user())

    house.settle(run, Raised("error", "no such file: \udcff\x00.txt", detail="\ud800"))

    assert house.row(run.claim.task_id)["error"] == "no such file: ?.txt"
    assert house.one("SELECT detail FROM attempts")["detail"] == "?"


def test_an_endless_error_message_is_cut(house: House) -> None:
    house.agent()
    run = house.running(house.user())

    house.settle(run, Raised("error", "x" * 50_000, detail="y\x00" * 50_000))

    assert len(house.row(run.claim.task_id)["error"]) == 10_000
    assert house.one("SELECT detail FROM attempts")["detail"] == "y" * 10_000


def test_a_run_across_the_month_end_is_charged_to_both_months(house: House) -> None:
    boundary = house.one("SELECT clock() + interval '100 seconds' AS at")["at"]
    user = house.user(billing_anchor_at=boundary)
    house.agent()
    run = house.running(user, timeout_seconds=600)
    house.move_clock(timedelta(seconds=160))

    house.settle(run, Returned())

    attempt = house.one("SELECT started_at, ended_at FROM attempts")
    old, new = house.rows(
        "SELECT period_started_at, kind, seconds FROM usage_ledger ORDER BY period_started_at"
    )
    assert (old["kind"], new["kind"]) == ("usage", "usage")
    assert old["period_started_at"] == house.lane(user)["cycle_started_at"]
    assert new["period_started_at"] == boundary
    assert float(old["seconds"]) == _seconds(boundary - attempt["started_at"])
    assert float(new["seconds"]) == _seconds(attempt["ended_at"] - boundary)
    assert house.lane(user)["used_seconds"] == old["seconds"]


def _seconds(duration: timedelta) -> float:
    return round(duration.total_seconds(), 3)


def test_no_run_is_charged_more_than_was_reserved_for_it(house: House) -> None:
    user = house.user()
    house.agent()
    run = house.running(user, timeout_seconds=60)
    house.move_clock(timedelta(hours=5))

    house.settle(run, Returned())

    assert house.lane(user)["used_seconds"] == 60


def test_the_ledger_refuses_to_bill_an_attempt_twice(house: House) -> None:
    house.agent()
    house.settle(house.running(house.user()), Returned())

    with pytest.raises(IntegrityError, match="usage_ledger_once"):
        house.run(
            "INSERT INTO usage_ledger (user_id, task_id, epoch, period_started_at, kind, seconds)"
            " SELECT user_id, task_id, epoch, period_started_at, kind, seconds FROM usage_ledger"
        )

    assert house.one("SELECT count(*) AS n FROM usage_ledger")["n"] == 1


def test_two_settles_of_one_run_count_once(house: House, connect: Callable[..., Db]) -> None:
    user = house.user()
    house.agent()
    run = house.running(user)

    won = meet_at_lane(
        connect,
        user,
        Rival(connect, "first", settle, run, Returned("first"), agent=AGENT),
        Rival(connect, "second", settle, run, Returned("second"), agent=AGENT),
    )

    assert won == [True, False]
    assert house.row(run.claim.task_id)["output"] == "first"
    assert house.one("SELECT count(*) AS n FROM usage_ledger")["n"] == 1
    stale = house.one("SELECT * FROM stale_results")
    assert (stale["task_id"], stale["epoch"], stale["agent"]) == (run.claim.task_id, 1, AGENT)
    assert (stale["outcome"], stale["result"]["output"]) == ("completed", "second")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda claim: replace(claim, token=uuid4()),
        lambda claim: replace(claim, epoch=claim.epoch - 1),
    ],
    ids=["forged token", "earlier epoch"],
)
def test_whoever_does_not_hold_the_claim_settles_nothing(
    house: House, spoil: Callable[[Claim], Claim]
) -> None:
    house.agent()
    run = house.running(house.user())
    before = house.row(run.claim.task_id)

    assert house.settle(replace(run, claim=spoil(run.claim)), Returned("mine")) is False

    assert house.row(run.claim.task_id) == before
    assert house.rows("SELECT * FROM usage_ledger") == []
    assert house.one("SELECT result FROM stale_results")["result"]["output"] == "mine"


@pytest.mark.parametrize("result", [RETRYABLE, Interrupted(), Deferred(5), Lost()])
def test_a_task_told_to_stop_does_not_come_back(house: House, result: Result) -> None:
    user = house.user()
    house.agent()
    run = house.running(user)
    cancel(house.app, user, run.claim.task_id, actor="human:me")

    house.settle(run, result)

    row = house.row(run.claim.task_id)
    assert (row["state"], row["failure_reason"]) == ("cancelled", "cancelled")


def test_a_task_told_to_stop_that_finished_all_the_same_is_completed(house: House) -> None:
    user = house.user()
    house.agent()
    run = house.running(user)
    cancel(house.app, user, run.claim.task_id, actor="human:me")

    house.settle(run, Returned("just in time"))

    assert house.state(run.claim.task_id) == "completed"


def test_a_dead_letter_tells_the_whole_story(house: House) -> None:
    user = house.user()
    house.agent()
    run = house.running(user, max_attempts=3, retry=AT_ONCE)
    task_id = run.claim.task_id
    house.settle(run, Raised("error", "first", detail="trace", cost_usd=0.1))
    house.settle(_again(house, task_id), Interrupted())
    house.settle(_again(house, task_id), Raised("error", "second", cost_usd=0.2))
    house.settle(_again(house, task_id), Raised("error", "third", cost_usd=0.3))

    letter = house.one("SELECT * FROM dead_letters")

    history = letter["failure_history"]
    assert [entry["error"] for entry in history] == ["first", "second", "third"]
    assert [entry["attempt"] for entry in history] == [1, 2, 3]
    assert [entry["epoch"] for entry in history] == [1, 3, 4]
    assert history[0]["detail"] == "trace"
    assert history[0]["duration_sec"] >= 0
    assert letter["total_cost_usd"] == Decimal("0.6")
    assert letter["poison_pill"] is False


def test_a_task_that_kills_its_run_on_two_workers_is_poison(house: House) -> None:
    run = _patient(house)
    house.settle(run, Died(), agent="worker-a")

    house.settle(_again(house, run.claim.task_id, "worker-b"), Died(), agent="worker-b")

    assert house.state(run.claim.task_id) == "dead_lettered"
    assert house.one("SELECT poison_pill FROM dead_letters")["poison_pill"] is True


def test_workers_killed_from_outside_accuse_nobody(house: House) -> None:
    run = _patient(house)
    task_id = run.claim.task_id
    house.settle(run, Lost(), agent="worker-a")
    for worker in ("worker-b", "worker-c", "worker-d"):
        house.settle(_again(house, task_id, worker), Lost(), agent=worker)

    assert house.state(task_id) == "retrying"
    assert house.rows("SELECT * FROM dead_letters") == []


def test_three_failures_on_two_workers_are_poison(house: House) -> None:
    run = _patient(house)
    task_id = run.claim.task_id
    house.settle(run, RETRYABLE, agent="worker-a")
    house.settle(_again(house, task_id, "worker-a"), RETRYABLE, agent="worker-a")
    assert house.state(task_id) == "retrying"

    house.settle(_again(house, task_id, "worker-b"), RETRYABLE, agent="worker-b")

    assert house.one("SELECT poison_pill FROM dead_letters")["poison_pill"] is True


def _patient(house: House) -> Run:
    """A run with tries to spare, on worker-a."""
    house.agent()
    task_id = house.task(house.user(), max_attempts=10, retry=AT_ONCE)
    return _again(house, task_id, "worker-a")


def _again(house: House, task_id: TaskId, agent: str = AGENT) -> Run:
    house.move_clock(timedelta(hours=1))
    promote(house.dispatcher)
    [run] = begin(house, task_id, agent=agent)
    return run


def test_a_claim_that_never_started_is_given_back_for_nothing(house: House) -> None:
    user = house.user()
    house.agent()
    task_id = house.task(user)
    taken = house.claim()

    assert release(house.dispatcher, taken.claims, reason="broker") == 1

    row = house.row(task_id)
    assert (row["state"], row["attempts"], row["epoch"]) == ("ready", 0, 1)
    assert house.one("SELECT outcome, spent FROM attempts") == {
        "outcome": "expired",
        "spent": False,
    }
    assert house.rows("SELECT * FROM usage_ledger") == []
    assert house.lane(user)["reserved_seconds"] == 0


def test_a_claim_that_was_started_after_all_is_not_given_back(house: House) -> None:
    """A publish that failed for its sender may have arrived all the same."""
    house.agent()
    house.task(house.user())
    taken = house.claim()
    run = house.start(taken.claims[0])
    assert run is not None

    assert release(house.dispatcher, taken.claims, reason="broker") == 0

    assert house.state(run.claim.task_id) == "running"
    assert house.settle(run, Returned()) is True
    assert house.rows("SELECT * FROM stale_results") == []


@pytest.mark.parametrize(
    ("result", "cancel_says", "state"),
    [(RETRYABLE, "running", "cancelled"), (Returned(), "running", "completed")],
    ids=["would retry", "finished"],
)
def test_a_settle_that_comes_after_a_cancel(
    house: House, connect: Callable[..., Db], result: Result, cancel_says: str, state: str
) -> None:
    user = house.user()
    house.agent()
    run = house.running(user)

    answers = meet_at_lane(connect, user, *_cancel_and_settle(connect, user, run, result))

    assert answers == [cancel_says, True]
    assert house.state(run.claim.task_id) == state


def test_a_cancel_that_comes_after_a_failure_ends_the_wait(
    house: House, connect: Callable[..., Db]
) -> None:
    user = house.user()
    house.agent()
    run = house.running(user)

    answers = meet_at_lane(
        connect, user, *reversed(_cancel_and_settle(connect, user, run, RETRYABLE))
    )

    assert answers == [True, "cancelled"]
    assert _moves(house, run.claim.task_id)[-2:] == [
        ("running", "retrying"),
        ("retrying", "cancelled"),
    ]


def _cancel_and_settle(
    connect: Callable[..., Db], user: UserId, run: Run, result: Result
) -> Sequence[Rival]:
    return (
        Rival(connect, "canceller", cancel, user, run.claim.task_id, actor="human:me"),
        Rival(connect, "worker", settle, run, result, agent=AGENT),
    )


def _moves(house: House, task_id: TaskId) -> list[tuple[str | None, str]]:
    events = house.rows("SELECT * FROM events WHERE task_id = :id ORDER BY seq", id=task_id)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    return [(event["from_state"], event["to_state"]) for event in events]
