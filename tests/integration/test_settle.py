"""Settle: the state that each result leads to, recorded exactly once."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import NamedTuple
from uuid import uuid4

import pytest
from sqlalchemy.exc import IntegrityError

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
    StoppedByCancel,
    TimedOut,
)
from overnight_server.domain.retry import RetryRules, Strategy
from overnight_server.insight.tasks import list_tasks
from overnight_server.maintenance.promote import promote
from overnight_server.maintenance.reap import reap
from overnight_server.outcome.settle import release, settle, settle_all
from overnight_server.store.db import Db
from tests.support.deployment import AGENT, Deployment
from tests.support.graphs import begin
from tests.support.rivals import Rival, meet_at_lane

RETRYABLE = Raised("error", "no luck", "ValueError", "line 1")
FATAL = Raised("auth_failure", "wrong key")
AT_ONCE = RetryRules(Strategy.IMMEDIATE)
MONTH = timedelta(days=30)


class Record(NamedTuple):
    """The values of the task, its attempt and the ledger after a settle."""

    state: str
    attempts: int
    outcome: str
    reason: str | None
    ledger: Sequence[str] = ("usage",)


@pytest.mark.parametrize("seconds", [1.8e12, 1e13, float("inf"), float("nan")])
@pytest.mark.parametrize(
    "result", [Deferred(0), Raised("error", "no luck", retryable=True)], ids=["deferred", "raised"]
)
def test_no_wait_is_longer_than_a_month(
    deployment: Deployment, result: Deferred | Raised, seconds: float
) -> None:
    """A wait in milliseconds stored the year 58749, which no list of the user could show."""
    user = deployment.user()
    deployment.agent()
    run = deployment.running(user)

    assert deployment.settle(run, replace(result, wait_seconds=seconds)) is True

    wait = deployment.one("SELECT retry_at - clock() AS wait FROM tasks")["wait"]
    assert MONTH - timedelta(minutes=1) < wait <= MONTH
    assert [task.state for task in list_tasks(deployment.app, user)] == ["retrying"]


@pytest.mark.parametrize(
    ("result", "state"),
    [
        (Raised("class\x00\ud800", "boom\x00", detail="\udfff"), "dead_lettered"),
        (Returned(summary="a\x00b", files_changed=("c\x00d",)), "completed"),
        (Returned(tokens={"input\x00": 2**70}, cost_usd=float("inf")), "completed"),
        (Returned("output\x00"), "retrying"),
    ],
)
def test_a_result_that_cannot_be_stored_ends_the_run_all_the_same(
    deployment: Deployment, result: Result, state: str
) -> None:
    deployment.agent()
    run = deployment.running(deployment.user())

    assert deployment.settle(run, result) is True
    assert deployment.state(run.claim.task_id) == state


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (Returned("done"), Record("completed", 1, "completed", None)),
        (RETRYABLE, Record("retrying", 1, "failed", "error")),
        (FATAL, Record("dead_lettered", 1, "failed", "auth_failure")),
        (TimedOut(by_plan=False), Record("retrying", 1, "timeout", "timeout")),
        (TimedOut(by_plan=True), Record("dead_lettered", 1, "plan_timeout", "plan_timeout")),
        (StoppedByCancel(), Record("cancelled", 1, "cancelled", "cancelled")),
        (Interrupted(), Record("ready", 0, "interrupted", None, ("refund", "usage"))),
        (Deferred(60), Record("retrying", 0, "deferred", "rate_limit")),
        (Died(), Record("retrying", 1, "crash", "crash")),
        (Lost(), Record("retrying", 1, "worker_lost", "crash", ("refund", "usage"))),
    ],
    ids=lambda value: value.outcome if isinstance(value, Record) else type(value).__name__,
)
def test_each_result_is_recorded_as_its_state_and_outcome(
    deployment: Deployment, result: Result, expected: Record
) -> None:
    user = deployment.user()
    deployment.agent()
    run = deployment.running(user, timeout_seconds=600)
    deployment.move_clock(timedelta(seconds=20))

    assert deployment.settle(run, result) is True

    row = deployment.row(run.claim.task_id)
    attempt = deployment.one("SELECT * FROM attempts")
    entries = deployment.rows("SELECT kind, seconds FROM usage_ledger ORDER BY kind")
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
    lane = deployment.lane(user)
    assert lane["used_seconds"] == sum(entry["seconds"] for entry in entries)
    assert (lane["active"], lane["reserved_seconds"]) == (0, 0)


def test_every_field_of_a_result_is_stored(deployment: Deployment) -> None:
    deployment.agent()
    run = deployment.running(deployment.user())

    deployment.settle(
        run, Returned({"a": [1]}, "did it", ("x.py", "y.py"), cost_usd=0.25, tokens={"in": 7})
    )

    row = deployment.row(run.claim.task_id)
    assert (row["output"], row["result_summary"]) == ({"a": [1]}, "did it")
    assert row["files_changed"] == ["x.py", "y.py"]
    assert (row["cost_usd"], row["tokens_used"]) == (Decimal("0.25"), {"in": 7})
    assert deployment.one("SELECT spent_usd FROM graphs")["spent_usd"] == Decimal("0.25")


def test_a_failure_can_always_be_stored(deployment: Deployment) -> None:
    """A file name that is no UTF-8 reaches an error message as half a surrogate pair."""
    deployment.agent()
    run = deployment.running(deployment.user())

    deployment.settle(run, Raised("error", "no such file: \udcff\x00.txt", detail="\ud800"))

    assert deployment.row(run.claim.task_id)["error"] == "no such file: ?.txt"
    assert deployment.one("SELECT detail FROM attempts")["detail"] == "?"


def test_a_very_long_error_message_is_cut(deployment: Deployment) -> None:
    deployment.agent()
    run = deployment.running(deployment.user())

    deployment.settle(run, Raised("error", "x" * 50_000, detail="y\x00" * 50_000))

    assert len(deployment.row(run.claim.task_id)["error"]) == 10_000
    assert deployment.one("SELECT detail FROM attempts")["detail"] == "y" * 10_000


def test_a_run_across_the_month_end_is_charged_to_both_months(deployment: Deployment) -> None:
    boundary = deployment.one("SELECT clock() + interval '100 seconds' AS at")["at"]
    user = deployment.user(billing_anchor_at=boundary)
    deployment.agent()
    run = deployment.running(user, timeout_seconds=600)
    deployment.move_clock(timedelta(seconds=160))

    deployment.settle(run, Returned())

    attempt = deployment.one("SELECT started_at, ended_at FROM attempts")
    old, new = deployment.rows(
        "SELECT period_started_at, kind, seconds FROM usage_ledger ORDER BY period_started_at"
    )
    assert (old["kind"], new["kind"]) == ("usage", "usage")
    assert old["period_started_at"] == deployment.lane(user)["cycle_started_at"]
    assert new["period_started_at"] == boundary
    assert float(old["seconds"]) == _seconds(boundary - attempt["started_at"])
    assert float(new["seconds"]) == _seconds(attempt["ended_at"] - boundary)
    assert deployment.lane(user)["used_seconds"] == old["seconds"]


def _seconds(duration: timedelta) -> float:
    return round(duration.total_seconds(), 3)


def test_no_run_is_charged_more_than_its_reservation(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    run = deployment.running(user, timeout_seconds=60)
    deployment.move_clock(timedelta(hours=5))

    deployment.settle(run, Returned())

    assert deployment.lane(user)["used_seconds"] == 60


def test_the_ledger_refuses_to_bill_an_attempt_twice(deployment: Deployment) -> None:
    deployment.agent()
    deployment.settle(deployment.running(deployment.user()), Returned())

    with pytest.raises(IntegrityError, match="usage_ledger_once"):
        deployment.run(
            "INSERT INTO usage_ledger (user_id, task_id, epoch, period_started_at, kind, seconds)"
            " SELECT user_id, task_id, epoch, period_started_at, kind, seconds FROM usage_ledger"
        )

    assert deployment.one("SELECT count(*) AS n FROM usage_ledger")["n"] == 1


def test_two_settles_of_one_run_count_once(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    user = deployment.user()
    deployment.agent()
    run = deployment.running(user)

    won = meet_at_lane(
        connect,
        user,
        Rival(connect, "first", settle, run, Returned("first"), agent=AGENT),
        Rival(connect, "second", settle, run, Returned("second"), agent=AGENT),
    )

    assert won == [True, False]
    assert deployment.row(run.claim.task_id)["output"] == "first"
    assert deployment.one("SELECT count(*) AS n FROM usage_ledger")["n"] == 1
    stale = deployment.one("SELECT * FROM stale_results")
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
def test_a_settle_without_the_claim_changes_nothing(
    deployment: Deployment, spoil: Callable[[Claim], Claim]
) -> None:
    deployment.agent()
    run = deployment.running(deployment.user())
    before = deployment.row(run.claim.task_id)

    assert deployment.settle(replace(run, claim=spoil(run.claim)), Returned("mine")) is False

    assert deployment.row(run.claim.task_id) == before
    assert deployment.rows("SELECT * FROM usage_ledger") == []
    assert deployment.one("SELECT result FROM stale_results")["result"]["output"] == "mine"


@pytest.mark.parametrize("result", [RETRYABLE, Interrupted(), Deferred(5), Lost()])
def test_a_task_that_was_asked_to_stop_is_not_retried(
    deployment: Deployment, result: Result
) -> None:
    user = deployment.user()
    deployment.agent()
    run = deployment.running(user)
    cancel(deployment.app, user, run.claim.task_id, actor="human:me")

    deployment.settle(run, result)

    row = deployment.row(run.claim.task_id)
    assert (row["state"], row["failure_reason"]) == ("cancelled", "cancelled")


def test_a_task_that_returned_after_a_stop_request_is_completed(
    deployment: Deployment,
) -> None:
    user = deployment.user()
    deployment.agent()
    run = deployment.running(user)
    cancel(deployment.app, user, run.claim.task_id, actor="human:me")

    deployment.settle(run, Returned("just in time"))

    assert deployment.state(run.claim.task_id) == "completed"


def test_a_dead_letter_contains_every_attempt(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    run = deployment.running(user, max_attempts=3, retry=AT_ONCE)
    task_id = run.claim.task_id
    deployment.settle(run, Raised("error", "first", detail="trace", cost_usd=0.1))
    deployment.settle(_again(deployment, task_id), Interrupted())
    deployment.settle(_again(deployment, task_id), Raised("error", "second", cost_usd=0.2))
    deployment.settle(_again(deployment, task_id), Raised("error", "third", cost_usd=0.3))

    letter = deployment.one("SELECT * FROM dead_letters")

    history = letter["failure_history"]
    assert [entry["error"] for entry in history] == ["first", "second", "third"]
    assert [entry["attempt"] for entry in history] == [1, 2, 3]
    assert [entry["epoch"] for entry in history] == [1, 3, 4]
    assert history[0]["detail"] == "trace"
    assert history[0]["duration_sec"] >= 0
    assert letter["total_cost_usd"] == Decimal("0.6")
    assert letter["poison_pill"] is False


def test_a_task_that_kills_its_run_on_two_workers_is_poison(deployment: Deployment) -> None:
    run = _patient(deployment)
    deployment.settle(run, Died(), agent="worker-a")

    deployment.settle(_again(deployment, run.claim.task_id, "worker-b"), Died(), agent="worker-b")

    assert deployment.state(run.claim.task_id) == "dead_lettered"
    assert deployment.one("SELECT poison_pill FROM dead_letters")["poison_pill"] is True


def test_workers_killed_from_outside_do_not_make_a_task_poison(deployment: Deployment) -> None:
    run = _patient(deployment)
    task_id = run.claim.task_id
    deployment.settle(run, Lost(), agent="worker-a")
    for worker in ("worker-b", "worker-c", "worker-d"):
        deployment.settle(_again(deployment, task_id, worker), Lost(), agent=worker)

    assert deployment.state(task_id) == "retrying"
    assert deployment.rows("SELECT * FROM dead_letters") == []


def test_three_failures_on_two_workers_are_poison(deployment: Deployment) -> None:
    run = _patient(deployment)
    task_id = run.claim.task_id
    deployment.settle(run, RETRYABLE, agent="worker-a")
    deployment.settle(_again(deployment, task_id, "worker-a"), RETRYABLE, agent="worker-a")
    assert deployment.state(task_id) == "retrying"

    deployment.settle(_again(deployment, task_id, "worker-b"), RETRYABLE, agent="worker-b")

    assert deployment.one("SELECT poison_pill FROM dead_letters")["poison_pill"] is True


def _patient(deployment: Deployment) -> Run:
    """A run with tries to spare, on worker-a."""
    deployment.agent()
    task_id = deployment.task(deployment.user(), max_attempts=10, retry=AT_ONCE)
    return _again(deployment, task_id, "worker-a")


def _again(deployment: Deployment, task_id: TaskId, agent: str = AGENT) -> Run:
    deployment.move_clock(timedelta(hours=1))
    promote(deployment.dispatcher)
    [run] = begin(deployment, task_id, agent=agent)
    return run


def test_a_claim_that_never_started_is_released_without_cost(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    task_id = deployment.task(user)
    taken = deployment.claim()

    assert release(deployment.dispatcher, taken.claims, reason="broker") == 1

    row = deployment.row(task_id)
    assert (row["state"], row["attempts"], row["epoch"]) == ("ready", 0, 1)
    assert deployment.one("SELECT outcome, spent FROM attempts") == {
        "outcome": "expired",
        "spent": False,
    }
    assert deployment.rows("SELECT * FROM usage_ledger") == []
    assert deployment.lane(user)["reserved_seconds"] == 0


def test_a_claim_that_was_started_is_not_released(deployment: Deployment) -> None:
    """A publish that failed for its sender may have arrived all the same."""
    deployment.agent()
    deployment.task(deployment.user())
    taken = deployment.claim()
    run = deployment.start(taken.claims[0])
    assert run is not None

    assert release(deployment.dispatcher, taken.claims, reason="broker") == 0

    assert deployment.state(run.claim.task_id) == "running"
    assert deployment.settle(run, Returned()) is True
    assert deployment.rows("SELECT * FROM stale_results") == []


@pytest.mark.parametrize(
    ("result", "cancel_says", "state"),
    [(RETRYABLE, "running", "cancelled"), (Returned(), "running", "completed")],
    ids=["would retry", "finished"],
)
def test_a_failed_run_after_a_cancel_is_cancelled_and_a_finished_one_completes(
    deployment: Deployment, connect: Callable[..., Db], result: Result, cancel_says: str, state: str
) -> None:
    user = deployment.user()
    deployment.agent()
    run = deployment.running(user)

    answers = meet_at_lane(connect, user, *_cancel_and_settle(connect, user, run, result))

    assert answers == [cancel_says, True]
    assert deployment.state(run.claim.task_id) == state


def test_a_cancel_after_a_failure_ends_the_wait_for_the_retry(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    user = deployment.user()
    deployment.agent()
    run = deployment.running(user)

    answers = meet_at_lane(
        connect, user, *reversed(_cancel_and_settle(connect, user, run, RETRYABLE))
    )

    assert answers == [True, "cancelled"]
    assert _moves(deployment, run.claim.task_id)[-2:] == [
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


def _moves(deployment: Deployment, task_id: TaskId) -> list[tuple[str | None, str]]:
    events = deployment.rows("SELECT * FROM events WHERE task_id = :id ORDER BY seq", id=task_id)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    return [(event["from_state"], event["to_state"]) for event in events]


def test_a_lost_run_that_is_settled_with_the_next_run_of_its_task_changes_nothing(
    deployment: Deployment,
) -> None:
    deployment.agent()
    user = deployment.user()
    lost = deployment.running(user)
    deployment.move_clock(timedelta(minutes=5))
    reap(deployment.dispatcher)
    deployment.run("UPDATE tasks SET state = 'ready', retry_at = NULL WHERE state = 'retrying'")
    [claimed] = deployment.claim().claims
    run = deployment.start(claimed)
    assert run is not None

    fatal = Raised("error", "hopeless", retryable=False)
    settled = settle_all(deployment.dispatcher, [(lost, fatal), (run, Returned())], agent=AGENT)

    assert [ending.claim for ending in settled.won] == [run.claim]
    assert [ending.claim for ending in settled.stale] == [lost.claim]
    assert deployment.rows("SELECT * FROM dead_letters") == []
