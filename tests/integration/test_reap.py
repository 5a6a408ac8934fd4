"""Taking tasks back: from claims never started, workers that vanished, runs that would not stop."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from overnight_server.control.cancel import cancel
from overnight_server.domain.claims import Claim, Run
from overnight_server.domain.ids import UserId
from overnight_server.domain.results import Returned
from overnight_server.domain.retry import RetryPolicy, Strategy
from overnight_server.maintenance import reap as reaper
from overnight_server.maintenance.promote import promote
from overnight_server.maintenance.reap import end_overdue, end_runs_of_the_dead, reap, retire_agents
from overnight_server.outcome.heartbeat import Answer, heartbeat
from overnight_server.outcome.presence import beat
from overnight_server.outcome.settle import settle
from overnight_server.store.db import Db
from tests.support.graphs import begin
from tests.support.house import AGENT, CLAIM_TTL, LEASE, House
from tests.support.rivals import Rival, held_lane, meet_at_lane, queue_up

LIVENESS = timedelta(seconds=15)
GRACE = timedelta(seconds=10)
SECOND = timedelta(seconds=1)
PAST_LEASE = LEASE + SECOND


def test_a_claim_never_started_comes_back_for_nothing(house: House) -> None:
    user = house.user()
    house.agent()
    task_id = house.task(user)
    house.claim()
    house.move_clock(CLAIM_TTL + SECOND)

    assert reap(house.dispatcher) == 1

    row = house.row(task_id)
    assert (row["state"], row["attempts"], row["failure_reason"]) == ("ready", 0, None)
    assert house.one("SELECT outcome, spent FROM attempts") == {
        "outcome": "expired",
        "spent": False,
    }
    assert house.rows("SELECT * FROM usage_ledger") == []
    assert house.lane(user)["active"] == 0


def test_a_claim_still_in_time_is_left_alone(house: House) -> None:
    house.agent()
    house.task(house.user())
    house.claim()
    house.move_clock(CLAIM_TTL - SECOND)

    assert reap(house.dispatcher) == 0


def test_a_vanished_worker_costs_the_user_nothing(house: House) -> None:
    user, run = _running(house)
    house.move_clock(PAST_LEASE)

    assert reap(house.dispatcher) == 1

    row = house.row(run.claim.task_id)
    assert (row["state"], row["attempts"], row["failure_reason"]) == ("retrying", 1, "crash")
    assert house.one("SELECT outcome FROM attempts")["outcome"] == "worker_lost"
    assert house.lane(user)["used_seconds"] == 0
    kinds = [entry["kind"] for entry in house.rows("SELECT kind FROM usage_ledger ORDER BY kind")]
    assert kinds == ["refund", "usage"]


def test_the_first_lost_run_is_tried_again_at_once_and_the_second_waits(house: House) -> None:
    waits = RetryPolicy(Strategy.FIXED, initial_delay_sec=120, jitter=False)
    _, run = _running(house, retry=waits)
    house.move_clock(PAST_LEASE)
    reap(house.dispatcher)

    assert promote(house.dispatcher) == 1
    begin(house, run.claim.task_id)
    house.move_clock(PAST_LEASE)
    reap(house.dispatcher)

    assert promote(house.dispatcher) == 0
    wait = house.one("SELECT retry_at - clock() AS wait FROM tasks")["wait"]
    assert timedelta(seconds=110) < wait <= timedelta(seconds=120)


def test_a_silent_run_under_a_live_worker_accuses_nobody(house: House) -> None:
    """Its end may have been impossible to record; of a death, its worker would have told."""
    user, run = _running(house)
    house.move_clock(PAST_LEASE)
    beat(house.dispatcher, AGENT)

    reap(house.dispatcher)

    assert house.one("SELECT outcome FROM attempts")["outcome"] == "worker_lost"
    assert house.state(run.claim.task_id) == "retrying"
    assert house.lane(user)["used_seconds"] == 0


@pytest.mark.parametrize(
    ("handling", "outcome", "billed"), [(True, "crash", 5), (False, "worker_lost", 0)]
)
def test_a_run_is_to_blame_if_its_handler_was_at_work_when_its_process_died(
    house: House, *, handling: bool, outcome: str, billed: int
) -> None:
    user, run = _running(house)
    house.move_clock(timedelta(seconds=5))

    assert end_runs_of_the_dead(house.dispatcher, [run.claim], handling=handling) == 1

    assert house.one("SELECT outcome FROM attempts")["outcome"] == outcome
    assert house.state(run.claim.task_id) == "retrying"
    assert int(house.lane(user)["used_seconds"]) == billed


def test_a_death_ends_only_what_the_dead_still_held(house: House) -> None:
    user, run = _running(house)
    settle(house.dispatcher, run, Returned("done"), agent=AGENT)
    _, other = _running(house, user)
    stranger = replace(other.claim, token=uuid4())

    told = [run.claim, stranger]

    assert end_runs_of_the_dead(house.dispatcher, told, handling=True) == 0
    assert house.state(run.claim.task_id) == "completed"
    assert house.state(other.claim.task_id) == "running"


def test_a_process_that_was_frozen_beyond_its_lease_did_not_die_of_its_run(house: House) -> None:
    _, run = _running(house)
    house.move_clock(PAST_LEASE)

    end_runs_of_the_dead(house.dispatcher, [run.claim], handling=True)

    assert house.one("SELECT outcome FROM attempts")["outcome"] == "worker_lost"


def test_what_we_took_away_from_the_dead_spends_nothing(house: House) -> None:
    user, run = _running(house)
    house.move_clock(timedelta(seconds=5))

    end_runs_of_the_dead(house.dispatcher, [run.claim], handling=True, taken_away=True)

    row = house.row(run.claim.task_id)
    assert (row["state"], row["attempts"]) == ("ready", 0)
    assert house.one("SELECT outcome FROM attempts")["outcome"] == "interrupted"
    assert house.lane(user)["used_seconds"] == 0


@pytest.mark.parametrize("taken_away", [False, True])
def test_the_dead_whose_time_was_up_have_timed_out(house: House, *, taken_away: bool) -> None:
    _, run = _running(house, timeout_seconds=5, max_attempts=1)
    house.move_clock(timedelta(seconds=6))

    end_runs_of_the_dead(house.dispatcher, [run.claim], handling=False, taken_away=taken_away)

    assert house.one("SELECT outcome FROM attempts")["outcome"] == "timeout"


def test_the_dead_that_were_told_to_stop_did_so(house: House) -> None:
    user, run = _running(house)
    cancel(house.app, user, run.claim.task_id, actor="human:me")

    end_runs_of_the_dead(house.dispatcher, [run.claim], handling=True)

    assert house.state(run.claim.task_id) == "cancelled"


@pytest.mark.parametrize(
    ("fields", "state", "outcome"),
    [
        ({"timeout_seconds": 60}, "retrying", "timeout"),
        ({}, "dead_lettered", "plan_timeout"),
    ],
    ids=["its own limit", "the plan's limit"],
)
def test_a_silent_run_past_its_time_has_timed_out(
    house: House, fields: dict[str, int], state: str, outcome: str
) -> None:
    _, run = _running(house, house.user(max_task_duration_minutes=1), **fields)
    house.move_clock(timedelta(seconds=40))
    heartbeat(house.dispatcher, run.claim, lease=LEASE)
    house.move_clock(PAST_LEASE)

    reap(house.dispatcher)

    assert house.state(run.claim.task_id) == state
    assert house.one("SELECT outcome FROM attempts")["outcome"] == outcome


def test_a_run_lost_long_before_its_time_did_not_time_out(house: House) -> None:
    """After a night without a reaper every lost run is past its time, and none has used it."""
    user, run = _running(house)
    house.move_clock(timedelta(hours=12))

    reap(house.dispatcher)

    assert house.one("SELECT outcome FROM attempts")["outcome"] == "worker_lost"
    assert house.state(run.claim.task_id) == "retrying"
    assert house.lane(user)["used_seconds"] == 0


def test_a_silent_run_told_to_stop_is_cancelled(house: House) -> None:
    user, run = _running(house)
    cancel(house.app, user, run.claim.task_id, actor="human:me")
    house.move_clock(PAST_LEASE)

    reap(house.dispatcher)

    assert house.state(run.claim.task_id) == "cancelled"


def test_reaping_again_finds_nothing(house: House) -> None:
    _, run = _running(house)
    house.move_clock(PAST_LEASE)
    reap(house.dispatcher)
    before = house.row(run.claim.task_id)

    assert reap(house.dispatcher) == 0
    assert house.row(run.claim.task_id) == before


def test_more_than_a_batch_is_reaped_in_one_sweep(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper, "BATCH", 2)
    user = house.user()
    house.agent()
    for _ in range(5):
        house.task(user, timeout_seconds=60)
    house.claim()
    house.move_clock(CLAIM_TTL + SECOND)

    assert reap(house.dispatcher) == 5
    assert house.lane(user)["active"] == 0


def test_a_row_that_cannot_be_read_does_not_stop_the_reaper(house: House) -> None:
    """A newer release may write what this one does not know; the others must come back still."""
    house.agent()
    odd, plain = house.running(house.user()), house.running(house.user())
    house.run(
        'UPDATE tasks SET retry = \'{"strategy": "fibonacci", "unheard_of": 1}\' WHERE id = :id',
        id=odd.claim.task_id,
    )
    house.move_clock(PAST_LEASE)

    assert reap(house.dispatcher) == 2
    assert {house.state(run.claim.task_id) for run in (odd, plain)} == {"retrying"}


def test_two_reapers_take_a_task_back_once(house: House, connect: Callable[..., Db]) -> None:
    user, run = _running(house)
    house.move_clock(PAST_LEASE)

    counts = meet_at_lane(
        connect,
        user,
        *(Rival(connect, f"reaper-{n}", reap) for n in range(2)),
    )

    assert counts == [1, 0]
    assert house.row(run.claim.task_id)["attempts"] == 1
    assert house.one("SELECT count(*) AS n FROM usage_ledger WHERE kind = 'usage'")["n"] == 1


def test_a_late_worker_behind_the_reaper_changes_nothing(
    house: House, connect: Callable[..., Db]
) -> None:
    user, run = _running(house)
    house.move_clock(PAST_LEASE)

    reaped, settled = meet_at_lane(
        connect,
        user,
        Rival(connect, "reaper", reap),
        Rival(connect, "late-worker", settle, run, Returned("late"), agent=AGENT),
    )

    assert (reaped, settled) == (1, False)
    row = house.row(run.claim.task_id)
    assert (row["state"], row["output"]) == ("retrying", None)
    assert house.one("SELECT result FROM stale_results")["result"]["output"] == "late"


def test_a_late_worker_ahead_of_the_reaper_still_counts(
    house: House, connect: Callable[..., Db]
) -> None:
    user, run = _running(house)
    house.move_clock(PAST_LEASE)

    settled, reaped = meet_at_lane(
        connect,
        user,
        Rival(connect, "late-worker", settle, run, Returned("late"), agent=AGENT),
        Rival(connect, "reaper", reap),
    )

    assert (settled, reaped) == (True, 0)
    assert house.row(run.claim.task_id)["output"] == "late"


def test_a_heartbeat_after_the_reapers_look_keeps_the_run(
    house: House, connect: Callable[..., Db]
) -> None:
    user, run = _running(house)
    house.move_clock(PAST_LEASE)
    rival = Rival(connect, "reaper", reap)

    with held_lane(connect, user):
        queue_up(connect, [rival])
        answer = heartbeat(house.dispatcher, run.claim, lease=LEASE)

    assert (answer, rival.answer()) == (Answer.CONTINUE, 0)
    assert house.state(run.claim.task_id) == "running"


def test_a_run_that_beats_on_past_its_time_is_ended_and_killed(house: House) -> None:
    _, run = _running(house, timeout_seconds=60)
    killed: list[tuple[Claim, UUID | None]] = []
    _keep_beating(house, run, timedelta(seconds=60) + GRACE + SECOND)

    assert end_overdue(house.dispatcher, grace=GRACE, kill=lambda *run: killed.append(run)) == 1

    assert killed == [(run.claim, None)]
    assert house.one("SELECT outcome FROM attempts")["outcome"] == "timeout"
    assert heartbeat(house.dispatcher, run.claim, lease=LEASE) is Answer.LOST


def test_a_run_has_a_grace_to_end_by_itself(house: House) -> None:
    _, run = _running(house, timeout_seconds=60)
    _keep_beating(house, run, timedelta(seconds=60) + GRACE - SECOND)

    assert end_overdue(house.dispatcher, grace=GRACE, kill=_kill_nobody) == 0
    assert house.state(run.claim.task_id) == "running"


def test_a_run_that_ignores_a_stop_is_ended_and_killed(house: House) -> None:
    user, run = _running(house)
    cancel(house.app, user, run.claim.task_id, actor="human:me")
    killed: list[tuple[Claim, UUID | None]] = []
    _keep_beating(house, run, GRACE + SECOND)

    assert end_overdue(house.dispatcher, grace=GRACE, kill=lambda *run: killed.append(run)) == 1

    assert killed == [(run.claim, None)]
    assert house.state(run.claim.task_id) == "cancelled"


def test_silent_workers_are_written_off_and_must_join_again(house: House) -> None:
    silent, lively = house.agent(agent_id="silent"), house.agent(agent_id="lively")
    user = house.user()
    house.task(user, required_capabilities=["none has this"])
    house.claim()
    assert house.lane(user)["parked_for"] == ["default"]
    house.move_clock(timedelta(minutes=2))
    beat(house.dispatcher, lively)

    assert retire_agents(house.dispatcher, silence=timedelta(minutes=1)) == 1

    assert beat(house.dispatcher, silent) is None
    assert beat(house.dispatcher, lively) == "active"
    # the pool can promise other things now, so it looks into every lane again
    assert house.lane(user)["parked_for"] == []


def _running(house: House, user: UserId | None = None, **fields: object) -> tuple[UserId, Run]:
    house.agent()
    user = user or house.user()
    return user, house.running(user, **fields)


def _keep_beating(house: House, run: Run, duration: timedelta) -> None:
    house.move_clock(duration)
    heartbeat(house.dispatcher, run.claim, lease=LEASE)


def _kill_nobody(claim: Claim, bundle: UUID | None) -> None:
    raise AssertionError(f"{claim} of {bundle} was to be killed")
