"""The state `validating`: the claim goes on, a run may end in every way, and what is kept."""

from datetime import timedelta
from uuid import uuid4

import pytest

from overnight_server.control.cancel import cancel
from overnight_server.domain.claims import Claim, Run
from overnight_server.domain.ids import UserId
from overnight_server.domain.lifecycle import State
from overnight_server.domain.results import (
    Died,
    Interrupted,
    Result,
    Returned,
    StoppedByBudget,
    StoppedByCancel,
    TimedOut,
)
from overnight_server.maintenance.promote import promote
from overnight_server.maintenance.reap import end_overdue, reap
from overnight_server.outcome.heartbeat import HeartbeatAnswer, heartbeat
from overnight_server.outcome.validation import begin_validation, latest_feedback
from tests.support.deployment import LEASE, Deployment
from tests.support.graphs import assert_invariants, begin
from tests.support.rejected_output import SPEC, rejected, validating

ADA = "user:ada"


@pytest.fixture
def user(deployment: Deployment) -> UserId:
    deployment.agent()
    return deployment.user()


@pytest.fixture
def run(deployment: Deployment, user: UserId) -> Run:
    """A run whose output is validated."""
    return validating(deployment, user)


def test_a_validation_keeps_the_claim_and_its_hours(deployment: Deployment, user: UserId) -> None:
    run = deployment.running(user, spec=SPEC)
    before = deployment.row(run.claim.task_id)
    lane = deployment.lane(user)

    assert begin_validation(deployment.dispatcher, run.claim)
    assert begin_validation(deployment.dispatcher, run.claim), "a repeated move changes nothing"

    row = deployment.row(run.claim.task_id)
    kept = ("epoch", "token", "claimed_by", "expires_at", "reserved_seconds", "started_at")
    assert row["state"] == "validating"
    assert [row[name] for name in kept] == [before[name] for name in kept]
    assert deployment.lane(user)["active"] == lane["active"]
    moves = deployment.rows("SELECT from_state, to_state FROM events ORDER BY seq DESC LIMIT 1")
    assert moves == [{"from_state": "running", "to_state": "validating"}]
    assert_invariants(deployment)


def test_only_the_holder_of_a_started_claim_begins_a_validation(
    deployment: Deployment, user: UserId
) -> None:
    task_id = deployment.task(user, spec=SPEC)
    [claimed] = deployment.claim().claims
    claim = claimed.claim

    assert not begin_validation(deployment.dispatcher, claim), "it was not started"
    deployment.start(claimed)
    for other in (Claim(task_id, claim.epoch, uuid4()), Claim(task_id, 2, claim.token)):
        assert not begin_validation(deployment.dispatcher, other)

    assert deployment.state(task_id) == "running"


def test_a_run_that_lost_its_claim_does_not_validate_the_next_one(
    deployment: Deployment, user: UserId
) -> None:
    """A worker that stood still returns its output while another one runs the task again."""
    lost = deployment.running(user, spec=SPEC)
    deployment.move_clock(LEASE + timedelta(seconds=1))
    reap(deployment.dispatcher)
    deployment.move_clock(timedelta(hours=1))
    deployment.agent()
    promote(deployment.dispatcher)
    [again] = begin(deployment, lost.claim.task_id)

    assert not begin_validation(deployment.dispatcher, lost.claim)

    assert deployment.state(lost.claim.task_id) == "running"
    assert not deployment.settle(lost, Returned("late")), "no validator has seen it"
    assert begin_validation(deployment.dispatcher, again.claim)
    assert deployment.settle(again, Returned("ok"))
    assert_invariants(deployment)


def test_a_validated_run_can_be_extended_and_cancelled(deployment: Deployment, run: Run) -> None:
    assert heartbeat(deployment.dispatcher, run.claim, lease=LEASE) is HeartbeatAnswer.CONTINUE

    state = cancel(deployment.app, run.user_id, run.claim.task_id, actor=ADA)

    assert state is State.RUNNING, "it was requested to stop"
    assert heartbeat(deployment.dispatcher, run.claim, lease=LEASE) is HeartbeatAnswer.CANCEL
    deployment.settle(run, StoppedByCancel())
    assert deployment.state(run.claim.task_id) == "cancelled"
    assert_invariants(deployment)


@pytest.mark.parametrize(
    ("result", "state"),
    [
        (Returned("ok"), "completed"),
        (rejected(), "retrying"),
        (TimedOut(by_plan=True), "dead_lettered"),
        (Interrupted(), "ready"),
        (StoppedByBudget(cost_usd=2.0), "pending"),
        (rejected(cost_usd=2.0), "pending"),
        (Died(), "retrying"),
        (StoppedByCancel(), "cancelled"),
    ],
)
def test_a_validated_run_may_end_in_every_way(
    deployment: Deployment, user: UserId, result: Result, state: str
) -> None:
    run = deployment.running(user, spec=SPEC, max_cost_usd=1.0)
    begin_validation(deployment.dispatcher, run.claim)

    assert deployment.settle(run, result)

    assert deployment.state(run.claim.task_id) == state
    ledger = deployment.one("SELECT count(*) AS lines FROM usage_ledger WHERE kind = 'usage'")
    assert ledger["lines"] == 1
    assert_invariants(deployment)


def test_a_validated_run_whose_lease_ended_is_reaped(deployment: Deployment, run: Run) -> None:
    deployment.move_clock(LEASE + timedelta(seconds=1))

    assert reap(deployment.dispatcher) == 1

    assert deployment.state(run.claim.task_id) == "retrying"
    assert not begin_validation(deployment.dispatcher, run.claim)
    assert not deployment.settle(run, Returned("ok")), "the late result is not applied"
    assert_invariants(deployment)


def test_a_validation_that_overruns_the_time_limit_is_ended(
    deployment: Deployment, run: Run
) -> None:
    deployment.move_clock(timedelta(seconds=run.granted_seconds + 60))
    heartbeat(deployment.dispatcher, run.claim, lease=LEASE)
    killed: list[Claim] = []

    ended = end_overdue(deployment.dispatcher, grace=timedelta(seconds=30), kill=killed.append)

    assert (ended, killed) == (1, [run.claim])
    assert deployment.one("SELECT outcome FROM attempts")["outcome"] == "plan_timeout"
    assert_invariants(deployment)


def test_a_task_with_validators_never_completes_without_validation(
    deployment: Deployment, user: UserId
) -> None:
    run = deployment.running(user, spec=SPEC)

    assert not deployment.settle(run, Returned("anything"))

    assert deployment.state(run.claim.task_id) == "running"


def test_a_rejected_output_is_kept_with_its_attempt_and_told_to_the_next_one(
    deployment: Deployment, run: Run
) -> None:
    task_id = run.claim.task_id
    assert latest_feedback(deployment.dispatcher, task_id) is None
    deployment.settle(run, rejected({"text": "no"}))

    feedback = latest_feedback(deployment.dispatcher, task_id)

    assert feedback is not None
    assert (feedback.attempt, feedback.validator, feedback.message) == (1, "regex", "regex: no")
    assert feedback.output == '{"text": "no"}'
    attempt = deployment.one("SELECT * FROM attempts")
    assert (attempt["validator"], attempt["error_class"]) == ("regex", "invalid_output")
    assert attempt["rejected"]["output"] == {"text": "no"}


def test_only_the_latest_rejected_output_is_kept(deployment: Deployment, run: Run) -> None:
    deployment.settle(run, rejected("first"))
    deployment.move_clock(timedelta(hours=1))
    deployment.agent()
    promote(deployment.dispatcher)
    [again] = begin(deployment, run.claim.task_id)
    begin_validation(deployment.dispatcher, again.claim)

    deployment.settle(again, rejected("second"))

    kept = deployment.rows("SELECT validator, rejected FROM attempts ORDER BY epoch")
    assert [each["validator"] for each in kept] == ["regex", "regex"]
    assert [each["rejected"] and each["rejected"]["output"] for each in kept] == [None, "second"]


def test_feedback_has_at_most_8_kb_of_the_output(deployment: Deployment, run: Run) -> None:
    deployment.settle(run, rejected("ä" * 10_000))

    feedback = latest_feedback(deployment.dispatcher, run.claim.task_id)

    assert feedback is not None
    assert feedback.output == "ä" * 4096
