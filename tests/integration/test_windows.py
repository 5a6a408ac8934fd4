"""The gate and the night window: exact to the instant, also when local clocks change."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, time, timedelta
from functools import partial
from uuid import uuid4

import pytest
from sqlalchemy import Connection

from overnight.errors import UserNotFound
from overnight.models.enums import AtClosing
from overnight_server.control.windows import set_window
from overnight_server.domain.ids import UserId
from overnight_server.domain.results import Interrupted
from overnight_server.domain.windows import NightWindow
from overnight_server.forecast.forecast import forecast_task
from overnight_server.forecast.plan import plan
from overnight_server.gate import claim as gate
from overnight_server.insight.queue_status import queue_status
from overnight_server.insight.users import list_users
from overnight_server.intake.new_graph import NewTask
from overnight_server.maintenance.reset import reset_cycles
from overnight_server.outcome.heartbeat import HeartbeatAnswer, heartbeat
from overnight_server.store import lanes
from overnight_server.store.db import ADMIN, Db
from tests.support.deployment import AGENT, CLAIM_SETTINGS, LEASE, LOOSE, POOL, Deployment
from tests.support.rivals import Rival, held_pool, held_task, meet_at_lane, queue_up

TICK = timedelta(microseconds=1)
NIGHT = {"window_zone": "Europe/Berlin", "window_from": time(22), "window_to": time(6)}
SHUT = NightWindow("Europe/Berlin", time(22), time(6))
OPENS = datetime.fromisoformat("2026-07-01T20:00Z")
CLOSES = datetime.fromisoformat("2026-07-02T04:00Z")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def claimed(deployment: Deployment) -> int:
    return len(deployment.claim().claims)


@pytest.fixture
def evening(deployment: Deployment) -> Deployment:
    """A deployment with workers, shortly before Berlin's night of the first of July."""
    deployment.set_clock(OPENS - timedelta(hours=1))
    deployment.agent()
    return deployment


# Window, and when it opens and closes: a plain night, and those at which the clocks change.
NIGHTS = {
    "a plain night": ("22:00", "06:00", "2026-07-01T20:00Z", "2026-07-02T04:00Z"),
    "clocks go forward": ("22:00", "06:00", "2027-03-27T21:00Z", "2027-03-28T04:00Z"),
    "clocks go back": ("22:00", "06:00", "2026-10-24T20:00Z", "2026-10-25T05:00Z"),
    "opens in a skipped hour": ("02:30", "05:00", "2027-03-28T01:00Z", "2027-03-28T03:00Z"),
    "closes in a double hour": ("22:00", "02:30", "2026-10-24T20:00Z", "2026-10-25T00:30Z"),
}  # fmt: skip


@pytest.mark.parametrize("night", NIGHTS.values(), ids=NIGHTS.keys())
def test_the_gate_opens_and_closes_at_the_exact_instant(
    deployment: Deployment, night: tuple[str, str, str, str]
) -> None:
    opens, closes, opens_at, closes_at = night
    deployment.set_clock(at(opens_at) - timedelta(hours=1))
    deployment.agent()
    user = deployment.user(
        window_zone="Europe/Berlin",
        window_from=time.fromisoformat(opens),
        window_to=time.fromisoformat(closes),
        monthly_agent_hours_limit=None,
    )

    claim_counts = []
    for instant in (at(opens_at) - TICK, at(opens_at), at(closes_at) - TICK, at(closes_at)):
        deployment.set_clock(instant)
        deployment.task(user, timeout_seconds=60)
        claim_counts.append(claimed(deployment))

    # the task of the minute before opening starts with the next one
    assert claim_counts == [0, 2, 1, 0]


def test_a_user_without_a_window_starts_at_any_time(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    deployment.task(user)

    assert claimed(deployment) == 1
    assert deployment.lane(user)["window_changes_at"] is None


def test_with_finish_running_tasks_continue_and_nothing_new_starts(evening: Deployment) -> None:
    user = evening.user(**NIGHT)
    evening.set_clock(CLOSES - TICK)
    run = evening.running(user)
    evening.set_clock(CLOSES)
    evening.task(user)

    assert heartbeat(evening.dispatcher, run.claim, lease=LEASE) is HeartbeatAnswer.CONTINUE
    assert claimed(evening) == 0


def test_with_stop_running_tasks_are_asked_to_stop_at_closing(evening: Deployment) -> None:
    user = evening.user(**NIGHT, window_at_closing="stop")
    evening.set_clock(CLOSES - TICK)
    run = evening.running(user)

    before = heartbeat(evening.dispatcher, run.claim, lease=LEASE)
    evening.set_clock(CLOSES)
    after = heartbeat(evening.dispatcher, run.claim, lease=LEASE)

    assert (before, after) == (HeartbeatAnswer.CONTINUE, HeartbeatAnswer.HAND_BACK)


def test_a_task_stopped_at_closing_costs_nothing_and_runs_next_night(evening: Deployment) -> None:
    user = evening.user(**NIGHT, window_at_closing="stop", monthly_agent_hours_limit=10)
    evening.set_clock(OPENS)
    run = evening.running(user, timeout_seconds=60)
    evening.set_clock(CLOSES)
    evening.settle(run, Interrupted("window_closed"))

    waiting = claimed(evening)
    row = evening.row(run.claim.task_id)
    evening.set_clock(OPENS + timedelta(days=1))
    [again] = evening.claim().claims

    assert waiting == 0
    assert (row["state"], row["attempts"]) == ("ready", 0)
    assert evening.lane(user)["used_seconds"] == 0
    assert again.claim.task_id == run.claim.task_id
    resumed = evening.start(again)
    assert resumed is not None
    assert heartbeat(evening.dispatcher, again.claim, lease=LEASE) is HeartbeatAnswer.CONTINUE


def test_with_continue_tasks_that_waited_at_closing_may_start(evening: Deployment) -> None:
    user = evening.user(**NIGHT, window_at_closing="continue")
    evening.set_clock(CLOSES - TICK)
    carried = evening.task(user)
    evening.set_clock(CLOSES)
    evening.task(user)

    [first] = evening.claim().claims
    evening.set_clock(CLOSES + timedelta(hours=3))
    later = claimed(evening)
    evening.set_clock(OPENS + timedelta(days=1))

    assert first.claim.task_id == carried
    assert later == 0
    assert claimed(evening) == 1


def test_a_window_applies_as_soon_as_it_is_set(evening: Deployment) -> None:
    user = evening.user()
    run = evening.running(user)
    evening.task(user)

    set_window(evening.app, user, NightWindow("Europe/Berlin", time(22), time(6), AtClosing.STOP))
    closed = claimed(evening)
    answer = heartbeat(evening.dispatcher, run.claim, lease=LEASE)
    set_window(evening.app, user, None)

    assert closed == 0
    assert answer is HeartbeatAnswer.HAND_BACK
    assert claimed(evening) == 1
    assert heartbeat(evening.dispatcher, run.claim, lease=LEASE) is HeartbeatAnswer.CONTINUE


def test_a_window_written_by_sql_is_applied(evening: Deployment) -> None:
    user = evening.user()
    evening.task(user)

    evening.run("UPDATE users SET window_zone = 'UTC', window_from = '23:00', window_to = '01:00'")

    assert claimed(evening) == 0
    assert evening.lane(user)["window_changes_at"] == at("2026-07-01T23:00Z")


def test_an_unknown_time_zone_closes_only_its_own_window(evening: Deployment) -> None:
    lost = evening.user(**NIGHT | {"window_zone": "Europe/Atlantis"})
    other = evening.user()
    for user in (lost, other):
        evening.task(user)

    [one] = evening.claim().claims

    assert one.user_id == other
    assert evening.lane(lost)["window_closed"] is True


def test_an_incomplete_window_is_refused_by_the_database(deployment: Deployment) -> None:
    with pytest.raises(Exception, match="users_window_whole_or_none"):
        deployment.user(window_zone="UTC")


def test_an_unknown_user_has_no_window(deployment: Deployment) -> None:
    with pytest.raises(UserNotFound):
        set_window(
            deployment.app, UserId(deployment.one("SELECT gen_random_uuid() AS id")["id"]), None
        )


def test_a_sweep_refreshes_windows_that_no_pass_has_refreshed(evening: Deployment) -> None:
    user = evening.user(**NIGHT)
    first = reset_cycles(evening.dispatcher)
    closed = evening.lane(user)["window_closed"]
    idle = reset_cycles(evening.dispatcher)
    evening.set_clock(OPENS)

    assert (first, closed, idle) == (1, True, 0)
    assert reset_cycles(evening.dispatcher) == 1
    assert evening.lane(user)["window_closed"] is False
    assert evening.lane(user)["window_changes_at"] == CLOSES


def test_lanes_with_a_due_window_make_the_dispatcher_poll_again(
    evening: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "LANES_PER_REFRESH", 2)
    monkeypatch.setattr(gate, "MAX_LANE_BATCHES_PER_PASS", 2)
    for _ in range(5):
        evening.user(**NIGHT)
    evening.task(evening.user(**NIGHT | {"window_from": time(23)}))
    # new lanes are due: no pass has evaluated their windows yet
    reset_cycles(evening.dispatcher)
    evening.set_clock(OPENS + timedelta(hours=1))

    passes = [evening.claim() for _ in range(3)]

    assert [len(claim_pass.claims) for claim_pass in passes] == [0, 1, 0]
    assert [claim_pass.more for claim_pass in passes] == [True, True, False]


def test_the_window_is_shown_to_users_and_operators(evening: Deployment) -> None:
    user = evening.user(**NIGHT)

    status = queue_status(evening.app, user)
    [listed] = list_users(evening.app)
    evening.set_clock(OPENS)

    assert status.can_start_more is False
    assert [hold.code for hold in status.held_by] == ["window"]
    assert "2026-07-01 20:00Z" in status.held_by[0].message
    assert listed.window is not None
    assert str(listed.window) == "22:00-06:00 Europe/Berlin"
    assert queue_status(evening.app, user).held_by == []


def test_a_forecast_waits_for_the_window_to_open(evening: Deployment) -> None:
    workers = CLAIM_SETTINGS
    user, late = evening.user(**NIGHT), evening.user(**NIGHT, window_at_closing="continue")
    evening.set_clock(CLOSES - timedelta(days=1) - TICK)
    carried = evening.task(late)
    evening.set_clock(OPENS - timedelta(hours=1))
    shut_out, next_one = evening.task(user), evening.task(late)

    starts = [
        forecast_task(evening.app, owner, task, workers).start.p50_at
        for owner, task in ((user, shut_out), (late, carried), (late, next_one))
    ]
    batch = [NewTask(title="a", type="echo")]
    planned = [plan(evening.app, owner, batch, LOOSE, workers).steps[0] for owner in (user, late)]

    assert starts == [OPENS, OPENS - timedelta(hours=1), OPENS]
    assert [step.start.p50_at for step in planned] == [OPENS, OPENS]
    assert [one.claim.task_id for one in evening.claim().claims] == [carried]


def _claim(db: Db) -> int:
    return len(gate.claim(db, POOL, holder="rival", claim_settings=CLAIM_SETTINGS).claims)


def test_a_window_that_closes_while_a_claim_waits_stays_closed(
    evening: Deployment, connect: Callable[..., Db]
) -> None:
    evening.set_clock(CLOSES - TICK)
    evening.task(evening.user(**NIGHT))
    claimer = Rival(connect, "claimer", _claim)

    with held_pool(connect, POOL):
        queue_up(connect, [claimer])
        evening.set_clock(CLOSES)

    assert claimer.answer() == 0


def test_a_window_that_closes_in_the_middle_of_a_pass_is_closed(
    evening: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = evening.user(**NIGHT)
    evening.set_clock(CLOSES - TICK)
    evening.task(user)
    hold = gate._lock_lanes

    def then_close(tx: Connection, pool: str, want: gate.ClaimRequest) -> gate.LockedLanes:
        held = hold(tx, pool, want)
        evening.set_clock(CLOSES)
        return held

    monkeypatch.setattr(gate, "_lock_lanes", then_close)

    assert claimed(evening) == 0


@pytest.mark.parametrize("is_named", [True, False])
def test_a_direct_claim_respects_the_window(evening: Deployment, *, is_named: bool) -> None:
    user = evening.user(**NIGHT)
    evening.task(user, timeout_seconds=60)
    evening.task(user, timeout_seconds=60)
    claim_user = user if is_named else None

    claim_counts = []
    for instant in (OPENS - TICK, OPENS, CLOSES):
        evening.set_clock(instant)
        one = gate.claim_one(
            evening.dispatcher, holder="sandbox", claim_settings=CLAIM_SETTINGS, user_id=claim_user
        )
        claim_counts.append(one is not None)

    assert claim_counts == [False, True, False]


def test_a_slot_that_claims_its_next_bundle_respects_the_window(evening: Deployment) -> None:
    evening.run("INSERT INTO type_durations (type, seconds) VALUES ('quick', 0.001)")
    user = evening.user(**NIGHT)
    for _ in range(4):
        evening.task(user, type="quick", timeout_seconds=60)
    claim_settings = replace(CLAIM_SETTINGS, bundle_limits=gate.BundleLimits(tasks=2))
    claim_next = partial(
        gate.claim_next_for_slot,
        pool=POOL,
        agent=AGENT,
        bundle=uuid4(),
        claim_settings=claim_settings,
        lease=claim_settings.claim_ttl,
    )

    claim_counts = []
    for instant in (OPENS - TICK, OPENS, CLOSES):
        evening.set_clock(instant)
        claim_counts.append(len(evening.dispatcher.atomically(claim_next).runs))

    assert claim_counts == [0, 2, 0]


def test_a_claim_in_progress_uses_the_previous_window(
    evening: Deployment, connect: Callable[..., Db]
) -> None:
    user = evening.user()
    task_id = evening.task(user)
    claimer = Rival(connect, "claimer", _claim)
    keeper = Rival(partial(connect, role=ADMIN), "keeper", set_window, user, SHUT)

    with held_task(connect, task_id):
        # the claim holds the lane and waits for the row; the new window waits for the lane
        queue_up(connect, [claimer, keeper])

    assert claimer.answer() == 1
    keeper.answer()
    evening.task(user)
    assert claimed(evening) == 0


def test_a_locked_lane_whose_window_change_is_due_is_skipped(
    evening: Deployment, connect: Callable[..., Db]
) -> None:
    """The gate skips a lane whose window has changed while the lane still has the old state."""
    user = evening.user(**NIGHT)
    evening.set_clock(OPENS)
    evening.task(user)
    evening.set_clock(CLOSES)
    with connect("holder").engine.begin() as tx:
        lanes.lock(tx, [user])
        busy = claimed(evening)

    assert busy == 0
    assert claimed(evening) == 0
    assert evening.lane(user)["window_closed"] is True


def test_of_two_windows_set_at_once_the_last_one_stays(
    evening: Deployment, connect: Callable[..., Db]
) -> None:
    user = evening.user()
    evening.task(user)

    meet_at_lane(
        connect,
        user,
        Rival(partial(connect, role=ADMIN), "keeper-1", set_window, user, SHUT),
        Rival(partial(connect, role=ADMIN), "keeper-2", set_window, user, None),
    )

    lane = evening.lane(user)
    assert (lane["window_closed"], lane["window_changes_at"]) == (False, None)
    assert claimed(evening) == 1
