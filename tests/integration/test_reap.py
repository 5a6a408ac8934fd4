"""Taking tasks back: from claims never started, workers that vanished, runs that would not stop."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest

from overnight_server.control.cancel import cancel
from overnight_server.domain.claims import Claim, Run
from overnight_server.domain.ids import UserId
from overnight_server.domain.results import Interrupted, Returned
from overnight_server.domain.retry import RetryRules, Strategy
from overnight_server.maintenance import reap as reaper
from overnight_server.maintenance.promote import promote
from overnight_server.maintenance.reap import (
    end_overdue,
    reap,
    retire_agents,
    settle_runs_of_dead_process,
)
from overnight_server.outcome.heartbeat import HeartbeatAnswer, heartbeat
from overnight_server.outcome.presence import record_heartbeat
from overnight_server.outcome.settle import settle
from overnight_server.store.db import Db
from tests.support.deployment import AGENT, CLAIM_TTL, LEASE, Deployment
from tests.support.graphs import begin
from tests.support.rivals import Rival, held_lane, meet_at_lane, queue_up

LIVENESS = timedelta(seconds=15)
GRACE = timedelta(seconds=10)
SECOND = timedelta(seconds=1)
PAST_LEASE = LEASE + SECOND


def test_an_unstarted_claim_is_released_and_spends_no_attempt(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    task_id = deployment.task(user)
    deployment.claim()
    deployment.move_clock(CLAIM_TTL + SECOND)

    assert reap(deployment.dispatcher) == 1

    row = deployment.row(task_id)
    assert (row["state"], row["attempts"], row["failure_reason"]) == ("ready", 0, None)
    assert deployment.one("SELECT outcome, spent FROM attempts") == {
        "outcome": "expired",
        "spent": False,
    }
    assert deployment.rows("SELECT * FROM usage_ledger") == []
    assert deployment.lane(user)["active"] == 0


def test_a_claim_within_its_lease_is_not_reaped(deployment: Deployment) -> None:
    deployment.agent()
    deployment.task(deployment.user())
    deployment.claim()
    deployment.move_clock(CLAIM_TTL - SECOND)

    assert reap(deployment.dispatcher) == 0


def test_a_lost_worker_costs_the_user_nothing(deployment: Deployment) -> None:
    user, run = _running(deployment)
    deployment.move_clock(PAST_LEASE)

    assert reap(deployment.dispatcher) == 1

    row = deployment.row(run.claim.task_id)
    assert (row["state"], row["attempts"], row["failure_reason"]) == ("retrying", 1, "crash")
    assert deployment.one("SELECT outcome FROM attempts")["outcome"] == "worker_lost"
    assert deployment.lane(user)["used_seconds"] == 0
    kinds = [
        entry["kind"] for entry in deployment.rows("SELECT kind FROM usage_ledger ORDER BY kind")
    ]
    assert kinds == ["refund", "usage"]


def test_the_first_lost_run_is_retried_at_once_and_the_second_waits(
    deployment: Deployment,
) -> None:
    waits = RetryRules(Strategy.FIXED, initial_delay_sec=120, jitter=False)
    _, run = _running(deployment, retry=waits)
    deployment.move_clock(PAST_LEASE)
    reap(deployment.dispatcher)

    assert promote(deployment.dispatcher) == 1
    begin(deployment, run.claim.task_id)
    deployment.move_clock(PAST_LEASE)
    reap(deployment.dispatcher)

    assert promote(deployment.dispatcher) == 0
    wait = deployment.one("SELECT retry_at - clock() AS wait FROM tasks")["wait"]
    assert timedelta(seconds=110) < wait <= timedelta(seconds=120)


def test_an_expired_lease_of_a_live_worker_is_not_a_crash(deployment: Deployment) -> None:
    """The worker may have failed to record the end; it would have reported a crash."""
    user, run = _running(deployment)
    deployment.move_clock(PAST_LEASE)
    record_heartbeat(deployment.dispatcher, AGENT)

    reap(deployment.dispatcher)

    assert deployment.one("SELECT outcome FROM attempts")["outcome"] == "worker_lost"
    assert deployment.state(run.claim.task_id) == "retrying"
    assert deployment.lane(user)["used_seconds"] == 0


@pytest.mark.parametrize(
    ("handling", "outcome", "billed"), [(True, "crash", 5), (False, "worker_lost", 0)]
)
def test_a_run_is_blamed_if_its_process_died_inside_the_handler(
    deployment: Deployment, *, handling: bool, outcome: str, billed: int
) -> None:
    user, run = _running(deployment)
    deployment.move_clock(timedelta(seconds=5))

    assert settle_runs_of_dead_process(deployment.dispatcher, [run.claim], handling=handling) == 1

    assert deployment.one("SELECT outcome FROM attempts")["outcome"] == outcome
    assert deployment.state(run.claim.task_id) == "retrying"
    assert int(deployment.lane(user)["used_seconds"]) == billed


def test_a_dead_process_settles_only_the_claims_it_still_held(deployment: Deployment) -> None:
    user, run = _running(deployment)
    settle(deployment.dispatcher, run, Returned("done"), agent=AGENT)
    _, other = _running(deployment, user)
    foreign_claim = replace(other.claim, token=uuid4())

    claims = [run.claim, foreign_claim]

    assert settle_runs_of_dead_process(deployment.dispatcher, claims, handling=True) == 0
    assert deployment.state(run.claim.task_id) == "completed"
    assert deployment.state(other.claim.task_id) == "running"


def test_a_run_is_not_blamed_for_a_process_frozen_beyond_its_lease(
    deployment: Deployment,
) -> None:
    _, run = _running(deployment)
    deployment.move_clock(PAST_LEASE)

    settle_runs_of_dead_process(deployment.dispatcher, [run.claim], handling=True)

    assert deployment.one("SELECT outcome FROM attempts")["outcome"] == "worker_lost"


def test_a_run_whose_process_the_worker_killed_spends_no_attempt(deployment: Deployment) -> None:
    user, run = _running(deployment)
    deployment.move_clock(timedelta(seconds=5))

    settle_runs_of_dead_process(
        deployment.dispatcher, [run.claim], handling=True, ended_by_worker=True
    )

    row = deployment.row(run.claim.task_id)
    assert (row["state"], row["attempts"]) == ("ready", 0)
    assert deployment.one("SELECT outcome FROM attempts")["outcome"] == "interrupted"
    assert deployment.lane(user)["used_seconds"] == 0


@pytest.mark.parametrize("ended_by_worker", [False, True])
def test_a_run_of_a_dead_process_past_its_timeout_has_timed_out(
    deployment: Deployment, *, ended_by_worker: bool
) -> None:
    _, run = _running(deployment, timeout_seconds=5, max_attempts=1)
    deployment.move_clock(timedelta(seconds=6))

    settle_runs_of_dead_process(
        deployment.dispatcher, [run.claim], handling=False, ended_by_worker=ended_by_worker
    )

    assert deployment.one("SELECT outcome FROM attempts")["outcome"] == "timeout"


def test_a_run_of_a_dead_process_that_was_asked_to_stop_is_cancelled(
    deployment: Deployment,
) -> None:
    user, run = _running(deployment)
    cancel(deployment.app, user, run.claim.task_id, actor="human:me")

    settle_runs_of_dead_process(deployment.dispatcher, [run.claim], handling=True)

    assert deployment.state(run.claim.task_id) == "cancelled"


@pytest.mark.parametrize(
    ("fields", "state", "outcome"),
    [
        ({"timeout_seconds": 60}, "retrying", "timeout"),
        ({}, "dead_lettered", "plan_timeout"),
    ],
    ids=["its own limit", "the plan's limit"],
)
def test_a_silent_run_past_its_timeout_has_timed_out(
    deployment: Deployment, fields: dict[str, int], state: str, outcome: str
) -> None:
    _, run = _running(deployment, deployment.user(max_task_duration_minutes=1), **fields)
    _keep_beating(deployment, run, timedelta(seconds=60))
    deployment.move_clock(PAST_LEASE)

    reap(deployment.dispatcher)

    assert deployment.state(run.claim.task_id) == state
    assert deployment.one("SELECT outcome FROM attempts")["outcome"] == outcome


def test_a_run_lost_long_before_its_timeout_did_not_time_out(deployment: Deployment) -> None:
    """After a night without a reaper every lost run is past its time, and none has used it."""
    user, run = _running(deployment)
    deployment.move_clock(timedelta(hours=12))

    reap(deployment.dispatcher)

    assert deployment.one("SELECT outcome FROM attempts")["outcome"] == "worker_lost"
    assert deployment.state(run.claim.task_id) == "retrying"
    assert deployment.lane(user)["used_seconds"] == 0


def test_a_run_lost_shortly_before_its_timeout_did_not_time_out(deployment: Deployment) -> None:
    """Its lease reached beyond the limit of the plan; its last heartbeat did not."""
    user, run = _running(deployment, deployment.user(max_task_duration_minutes=30))
    _keep_beating(deployment, run, timedelta(minutes=30) - timedelta(seconds=25))
    deployment.move_clock(PAST_LEASE)

    reap(deployment.dispatcher)

    assert deployment.one("SELECT outcome FROM attempts")["outcome"] == "worker_lost"
    assert deployment.state(run.claim.task_id) == "retrying"
    assert deployment.lane(user)["used_seconds"] == 0


def test_three_lost_hosts_do_not_poison_a_task_shorter_than_its_lease(
    deployment: Deployment,
) -> None:
    user = deployment.user()
    task_id = deployment.task(user, timeout_seconds=20, max_attempts=4)
    for number in range(3):
        host = deployment.agent(agent_id=f"host-{number}")
        [claimed] = deployment.claim().claims
        deployment.start(claimed, agent=host)
        deployment.move_clock(PAST_LEASE)
        reap(deployment.dispatcher)
        deployment.move_clock(timedelta(minutes=5))
        promote(deployment.dispatcher)

    outcomes = [row["outcome"] for row in deployment.rows("SELECT outcome FROM attempts")]
    assert outcomes == ["worker_lost"] * 3
    assert deployment.state(task_id) == "ready"
    assert deployment.lane(user)["used_seconds"] == 0


def test_a_lost_run_that_was_asked_to_stop_is_billed_until_its_last_heartbeat(
    deployment: Deployment,
) -> None:
    user, run = _running(deployment)
    _keep_beating(deployment, run, timedelta(seconds=5))
    cancel(deployment.app, user, run.claim.task_id, actor="human:me")
    deployment.move_clock(timedelta(minutes=20))

    reap(deployment.dispatcher)

    assert deployment.state(run.claim.task_id) == "cancelled"
    assert int(deployment.lane(user)["used_seconds"]) == 5


def test_a_heartbeat_of_an_earlier_run_says_nothing_about_the_next(
    deployment: Deployment,
) -> None:
    user, run = _running(deployment, timeout_seconds=20)
    _keep_beating(deployment, run, timedelta(seconds=5))
    deployment.settle(run, Interrupted())
    deployment.move_clock(timedelta(hours=1))
    [run] = begin(deployment, run.claim.task_id)
    cancel(deployment.app, user, run.claim.task_id, actor="human:me")
    deployment.move_clock(PAST_LEASE)

    reap(deployment.dispatcher)

    assert deployment.lane(user)["used_seconds"] == 0


def test_a_process_that_died_in_time_and_is_reported_late_did_not_time_out(
    deployment: Deployment,
) -> None:
    """Its worker could not reach Postgres for ten seconds."""
    user, run = _running(deployment, timeout_seconds=20)
    deployment.move_clock(timedelta(seconds=25))

    settle_runs_of_dead_process(
        deployment.dispatcher, [run.claim], handling=True, dead_for=timedelta(seconds=10)
    )

    assert deployment.one("SELECT outcome FROM attempts")["outcome"] == "crash"
    assert int(deployment.lane(user)["used_seconds"]) == 15


def test_a_second_reap_changes_nothing(deployment: Deployment) -> None:
    _, run = _running(deployment)
    deployment.move_clock(PAST_LEASE)
    reap(deployment.dispatcher)
    before = deployment.row(run.claim.task_id)

    assert reap(deployment.dispatcher) == 0
    assert deployment.row(run.claim.task_id) == before


def test_more_than_a_batch_is_reaped_in_one_sweep(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper, "BATCH", 2)
    user = deployment.user()
    deployment.agent()
    for _ in range(5):
        deployment.task(user, timeout_seconds=60)
    deployment.claim()
    deployment.move_clock(CLAIM_TTL + SECOND)

    assert reap(deployment.dispatcher) == 5
    assert deployment.lane(user)["active"] == 0


def test_a_row_that_cannot_be_read_does_not_stop_the_reaper(deployment: Deployment) -> None:
    """A newer release may write values that this one cannot read; other tasks are still reaped."""
    deployment.agent()
    odd, plain = deployment.running(deployment.user()), deployment.running(deployment.user())
    deployment.run(
        'UPDATE tasks SET retry = \'{"strategy": "fibonacci", "unheard_of": 1}\' WHERE id = :id',
        id=odd.claim.task_id,
    )
    deployment.move_clock(PAST_LEASE)

    assert reap(deployment.dispatcher) == 2
    assert {deployment.state(run.claim.task_id) for run in (odd, plain)} == {"retrying"}


def test_two_reapers_release_a_task_once(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    user, run = _running(deployment)
    deployment.move_clock(PAST_LEASE)

    counts = meet_at_lane(
        connect,
        user,
        *(Rival(connect, f"reaper-{n}", reap) for n in range(2)),
    )

    assert counts == [1, 0]
    assert deployment.row(run.claim.task_id)["attempts"] == 1
    assert deployment.one("SELECT count(*) AS n FROM usage_ledger WHERE kind = 'usage'")["n"] == 1


def test_a_result_after_the_reap_changes_nothing(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    user, run = _running(deployment)
    deployment.move_clock(PAST_LEASE)

    reaped, settled = meet_at_lane(
        connect,
        user,
        Rival(connect, "reaper", reap),
        Rival(connect, "late-worker", settle, run, Returned("late"), agent=AGENT),
    )

    assert (reaped, settled) == (1, False)
    row = deployment.row(run.claim.task_id)
    assert (row["state"], row["output"]) == ("retrying", None)
    assert deployment.one("SELECT result FROM stale_results")["result"]["output"] == "late"


def test_a_late_result_before_the_reap_still_counts(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    user, run = _running(deployment)
    deployment.move_clock(PAST_LEASE)

    settled, reaped = meet_at_lane(
        connect,
        user,
        Rival(connect, "late-worker", settle, run, Returned("late"), agent=AGENT),
        Rival(connect, "reaper", reap),
    )

    assert (settled, reaped) == (True, 0)
    assert deployment.row(run.claim.task_id)["output"] == "late"


def test_a_heartbeat_after_the_reaper_read_the_row_keeps_the_run(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    user, run = _running(deployment)
    deployment.move_clock(PAST_LEASE)
    rival = Rival(connect, "reaper", reap)

    with held_lane(connect, user):
        queue_up(connect, [rival])
        answer = heartbeat(deployment.dispatcher, run.claim, lease=LEASE)

    assert (answer, rival.answer()) == (HeartbeatAnswer.CONTINUE, 0)
    assert deployment.state(run.claim.task_id) == "running"


def test_a_run_that_exceeds_its_timeout_is_ended_and_killed(deployment: Deployment) -> None:
    _, run = _running(deployment, timeout_seconds=60)
    killed: list[Claim] = []
    _keep_beating(deployment, run, timedelta(seconds=60) + GRACE + SECOND)

    assert end_overdue(deployment.dispatcher, grace=GRACE, kill=killed.append) == 1

    assert killed == [run.claim]
    assert deployment.one("SELECT outcome FROM attempts")["outcome"] == "timeout"
    assert heartbeat(deployment.dispatcher, run.claim, lease=LEASE) is HeartbeatAnswer.LOST


def test_a_run_past_its_timeout_may_end_within_the_grace(deployment: Deployment) -> None:
    _, run = _running(deployment, timeout_seconds=60)
    _keep_beating(deployment, run, timedelta(seconds=60) + GRACE - SECOND)

    assert end_overdue(deployment.dispatcher, grace=GRACE, kill=_kill_no_process) == 0
    assert deployment.state(run.claim.task_id) == "running"


def test_a_command_may_end_within_the_grace_of_its_task(deployment: Deployment) -> None:
    _, run = _running(deployment, timeout_seconds=60)
    own = GRACE.total_seconds() + 60
    deployment.run(
        "UPDATE tasks SET execution = jsonb_build_object('limits',"
        " jsonb_build_object('grace_seconds', CAST(:own AS float8)))",
        own=own,
    )
    _keep_beating(deployment, run, timedelta(seconds=60 + own))

    assert end_overdue(deployment.dispatcher, grace=GRACE, kill=_kill_no_process) == 0

    _keep_beating(deployment, run, timedelta(seconds=6))
    assert end_overdue(deployment.dispatcher, grace=GRACE, kill=lambda _claim: None) == 1


def test_a_run_that_ignores_a_stop_is_ended_and_killed(deployment: Deployment) -> None:
    user, run = _running(deployment)
    cancel(deployment.app, user, run.claim.task_id, actor="human:me")
    killed: list[Claim] = []
    _keep_beating(deployment, run, GRACE + SECOND)

    assert end_overdue(deployment.dispatcher, grace=GRACE, kill=killed.append) == 1

    assert killed == [run.claim]
    assert deployment.state(run.claim.task_id) == "cancelled"


def test_a_silent_worker_is_retired_and_must_join_again(deployment: Deployment) -> None:
    silent, lively = deployment.agent(agent_id="silent"), deployment.agent(agent_id="lively")
    user = deployment.user()
    deployment.task(user, required_capabilities=["none has this"])
    deployment.claim()
    assert deployment.lane(user)["skipped_by_pools"] == ["default"]
    deployment.move_clock(timedelta(minutes=2))
    record_heartbeat(deployment.dispatcher, lively)

    assert retire_agents(deployment.dispatcher, silence=timedelta(minutes=1)) == 1

    assert record_heartbeat(deployment.dispatcher, silent) is None
    assert record_heartbeat(deployment.dispatcher, lively) == "active"
    # the pool can promise other things now, so it looks into every lane again
    assert deployment.lane(user)["skipped_by_pools"] == []


def _running(
    deployment: Deployment, user: UserId | None = None, **fields: object
) -> tuple[UserId, Run]:
    deployment.agent()
    user = user or deployment.user()
    return user, deployment.running(user, **fields)


def _keep_beating(deployment: Deployment, run: Run, duration: timedelta) -> None:
    deployment.move_clock(duration)
    heartbeat(deployment.dispatcher, run.claim, lease=LEASE)


def _kill_no_process(claim: Claim) -> None:
    raise AssertionError(f"{claim} was to be killed")
