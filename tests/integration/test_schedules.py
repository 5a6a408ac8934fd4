"""Schedules: each fire time is submitted exactly once, and has exactly one outcome."""

import logging
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from random import Random
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from overnight.errors import InvalidRequest, ScheduleNotFound, TooManyPending
from overnight.models.schedules import BackfillRequest, ScheduleCreate, ScheduleEdit
from overnight_server.control import schedules as acts
from overnight_server.domain.ids import ScheduleId, UserId, new_schedule_id, show_schedule
from overnight_server.domain.results import Returned
from overnight_server.fault_points import arm
from overnight_server.insight.schedules import get_schedule, list_fires, list_schedules
from overnight_server.maintenance.schedules import RETRY_AFTER_SECONDS, fire_schedules
from overnight_server.store.db import DatabaseUnreachable, Db
from overnight_server.telemetry import LogEvent
from tests.support.deployment import Deployment
from tests.support.fire_times import MINUTE, cron_times, interval_times
from tests.support.graphs import assert_invariants, end
from tests.support.notifications import add_channel, outbox
from tests.support.rivals import Rival, meet_at_lane
from tests.support.schedules import SETTINGS, add, at, fires, outcomes, submitted
from tests.support.workers import ROOT

NOON = at("2026-07-01T12:00Z")
TICK = timedelta(microseconds=1)
ME = "human:me"


@pytest.fixture
def user(deployment: Deployment) -> UserId:
    deployment.set_clock(NOON)
    deployment.agent()
    return deployment.user()


@pytest.fixture(autouse=True)
def nothing_armed() -> Iterator[None]:
    yield
    arm(None)


def sweep(deployment: Deployment, now: str | datetime) -> int:
    """Run one pass at an instant."""
    deployment.set_clock(at(now) if isinstance(now, str) else now)
    return fire_schedules(deployment.dispatcher, SETTINGS)


def finish_all(deployment: Deployment) -> None:
    for task in submitted(deployment):
        if task["state"] == "ready":
            end(deployment, task["id"], Returned())


def test_a_schedule_submits_its_task_at_its_fire_time_and_only_once(
    deployment: Deployment, user: UserId
) -> None:
    schedule = add(
        deployment,
        user,
        "every day at 22:00",
        zone="Europe/Berlin",
        task={
            "title": "report {{ fire_date }}",
            "payload": {"at": "{{ fire_time_local }}", "unix": "{{ fire_unix }}"},
            "priority": 1,
            "tags": ["nightly"],
            "type": "mail",
        },
    )

    assert sweep(deployment, "2026-07-01T19:59:59Z") == 0
    assert sweep(deployment, "2026-07-01T20:00:00Z") == 1
    assert sweep(deployment, "2026-07-01T20:00:01Z") == 0

    [task] = submitted(deployment)
    assert task["title"] == "report 2026-07-01"
    assert task["payload"] == {"at": "2026-07-01T22:00:00+02:00", "unix": 1_782_936_000}
    assert (task["type"], task["tags"]) == ("mail", ["nightly"])
    assert (task["created_by"], task["spec"]["source_job"]) == ("cron:nightly", "nightly")
    [fire] = fires(deployment, schedule)
    assert (fire["status"], fire["task_id"], fire["dag_id"]) == ("queued", task["id"], task["id"])
    view = get_schedule(deployment.app, user, schedule)
    assert view.next_fire_at == at("2026-07-02T20:00Z")
    assert view.next[0].words == "Thu 2 Jul 2026, 22:00 CEST"
    assert len(view.next) == 5
    assert view.last
    assert (view.last.status, view.last.is_running) == ("queued", True)
    assert_invariants(deployment)


def test_a_schedule_submits_a_graph(deployment: Deployment, user: UserId) -> None:
    graph = {
        "title": "{{ schedule }} of {{ fire_date }}",
        "tasks": [{"name": "load"}, {"name": "mail", "after": ["load"]}],
    }
    schedule = add(deployment, user, graph=graph)

    sweep(deployment, "2026-07-01T22:00Z")

    [dag] = deployment.rows("SELECT * FROM dags")
    assert (dag["title"], dag["created_by"]) == ("nightly of 2026-07-01", "cron:nightly")
    [fire] = fires(deployment, schedule)
    assert (fire["task_id"], fire["dag_id"]) == (None, dag["id"])
    assert len(submitted(deployment)) == 2


@pytest.mark.parametrize(
    ("overlap", "statuses"),
    [
        ("skip", ["queued", "skipped_overlap"]),
        ("queue", ["queued", "waiting"]),
        ("cancel", ["queued", "queued"]),
    ],
)
def test_the_overlap_policy_decides_while_the_run_before_is_not_over(
    deployment: Deployment, user: UserId, overlap: str, statuses: list[str]
) -> None:
    schedule = add(deployment, user, "every hour", overlap=overlap)

    sweep(deployment, "2026-07-01T13:00Z")
    sweep(deployment, "2026-07-01T14:00Z")

    assert [fire["status"] for fire in fires(deployment, schedule)] == statuses
    states = [task["state"] for task in submitted(deployment)]
    assert states == (["cancelled", "ready"] if overlap == "cancel" else ["ready"])
    assert_invariants(deployment)


def test_a_run_is_not_cancelled_for_one_that_cannot_be_submitted(
    deployment: Deployment, user: UserId, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="overnight")
    schedule = add(deployment, user, "every hour", overlap="cancel")
    sweep(deployment, "2026-07-01T13:00Z")
    deployment.run(
        "UPDATE schedules SET task = jsonb_set(task, '{title}', '7') WHERE id = :id", id=schedule
    )

    sweep(deployment, "2026-07-01T14:00Z")

    assert [fire["status"] for fire in fires(deployment, schedule)] == ["queued", "failed"]
    assert [task["state"] for task in submitted(deployment)] == ["ready"]
    assert LogEvent.TASK_CANCELLED.log_name not in caplog.text
    assert_invariants(deployment)


def test_a_fire_time_that_waits_is_submitted_when_the_run_before_is_over(
    deployment: Deployment, user: UserId
) -> None:
    schedule = add(deployment, user, "every hour", overlap="queue")
    for hour in (13, 14, 15):
        sweep(deployment, f"2026-07-01T{hour}:00Z")
    assert [fire["status"] for fire in fires(deployment, schedule)][1:] == ["waiting", "waiting"]

    finish_all(deployment)
    sweep(deployment, "2026-07-01T15:01Z")

    statuses = [fire["status"] for fire in fires(deployment, schedule)]
    assert statuses == ["queued", "queued", "waiting"]
    assert [task["title"] for task in submitted(deployment)] == ["report 2026-07-01"] * 2


def test_a_run_that_is_over_does_not_hold_the_next_one(
    deployment: Deployment, user: UserId
) -> None:
    schedule = add(deployment, user, "every hour")
    sweep(deployment, "2026-07-01T13:00Z")
    finish_all(deployment)

    sweep(deployment, "2026-07-01T14:00Z")

    assert [fire["status"] for fire in fires(deployment, schedule)] == ["queued", "queued"]


@pytest.mark.parametrize(
    ("catch_up", "runs"),
    [
        ("none", []),
        ("last", ["07-01 17:00"]),
        ("all", ["07-01 15:00", "07-01 16:00", "07-01 17:00"]),
    ],
)
def test_the_catch_up_policy_decides_what_runs_after_a_downtime(
    deployment: Deployment, user: UserId, catch_up: str, runs: list[str]
) -> None:
    schedule = add(deployment, user, "every hour", catch_up=catch_up, catch_up_limit=3)
    add_channel(deployment, user, "schedule.skipped")

    sweep(deployment, "2026-07-01T17:30Z")
    for _ in range(3):
        finish_all(deployment)
        sweep(deployment, "2026-07-01T17:31Z")

    found = outcomes(deployment, schedule)
    assert [name for name, status in found if status == "queued"] == runs
    assert [name for name, _ in found] == [f"07-01 {hour}:00" for hour in range(13, 18)]
    assert {status for _, status in found} <= {"queued", "skipped_missed"}
    [told] = outbox(deployment)
    assert told["detail"]["status"] == "skipped_missed"


def test_a_long_downtime_is_handled_in_parts(deployment: Deployment, user: UserId) -> None:
    schedule = add(deployment, user, "* * * * *", catch_up="last")

    sweep(deployment, NOON + timedelta(days=1))

    statuses = [fire["status"] for fire in fires(deployment, schedule)]
    on_time = ["queued"] + ["skipped_overlap"] * 5
    assert statuses == ["skipped_missed"] * 1434 + on_time


def test_a_paused_schedule_records_that_it_was_paused(deployment: Deployment, user: UserId) -> None:
    schedule = add(deployment, user, "every hour")
    acts.pause_schedule(deployment.app, user, schedule, SETTINGS, actor=ME)
    sweep(deployment, "2026-07-01T13:00Z")
    deployment.set_clock(at("2026-07-01T14:30Z"))
    acts.resume_schedule(deployment.app, user, schedule, SETTINGS, actor=ME)

    sweep(deployment, "2026-07-01T15:00Z")

    assert outcomes(deployment, schedule) == [
        ("07-01 13:00", "skipped_paused"),
        ("07-01 14:00", "skipped_paused"),
        ("07-01 15:00", "queued"),
    ]
    assert get_schedule(deployment.app, user, schedule).state == "active"


def test_a_full_queue_skips_the_fire_time_and_tells_the_user(
    deployment: Deployment, user: UserId
) -> None:
    schedule = add(deployment, user)
    add_channel(deployment, user, "schedule.skipped")
    deployment.run("UPDATE users SET max_pending = 1 WHERE id = :id", id=user)
    deployment.task(user)

    sweep(deployment, "2026-07-01T22:00Z")

    [fire] = fires(deployment, schedule)
    assert (fire["status"], fire["dag_id"]) == ("skipped_queue_full", None)
    [told] = outbox(deployment)
    assert (told["user_id"], told["kind"]) == (user, "schedule.skipped")
    assert told["detail"]["title"] == "nightly"


def test_one_failing_schedule_does_not_stop_the_others(
    deployment: Deployment, user: UserId
) -> None:
    """The template of the first became invalid: another release, say, had accepted it."""
    broken = add(deployment, user, name="broken", when="every day at 21:59")
    add_channel(deployment, user, "schedule.failed")
    deployment.run(
        "UPDATE schedules SET task = jsonb_set(task, '{title}', '7') WHERE id = :id", id=broken
    )
    sound = add(deployment, user, name="sound")

    sweep(deployment, "2026-07-01T22:00Z")

    [failed] = fires(deployment, broken)
    assert failed["status"] == "failed"
    assert "task.title" in failed["reason"]
    assert outcomes(deployment, sound) == [("07-01 22:00", "queued")]
    [told] = outbox(deployment)
    assert (told["kind"], told["detail"]["title"]) == ("schedule.failed", "broken")


def test_an_unexpected_error_delays_its_schedule_and_loses_no_fire_time(
    deployment: Deployment, user: UserId
) -> None:
    schedules = [add(deployment, user, name=name) for name in ("a", "b")]
    arm("schedules.before_commit=raise")

    sweep(deployment, "2026-07-01T22:00Z")

    assert sum(len(fires(deployment, schedule)) for schedule in schedules) == 1
    errors = [view.error for view in list_schedules(deployment.app, user)]
    assert sorted(map(bool, errors)) == [False, True]
    sweep(deployment, at("2026-07-01T22:00Z") + timedelta(seconds=RETRY_AFTER_SECONDS))
    assert [outcomes(deployment, each) for each in schedules] == [[("07-01 22:00", "queued")]] * 2
    assert all(view.error is None for view in list_schedules(deployment.app, user))


def test_an_error_of_a_fire_time_that_waits_is_gone_when_it_is_submitted(
    deployment: Deployment, user: UserId
) -> None:
    schedule = add(deployment, user)
    body = BackfillRequest(since=at("2026-06-30T00:00Z"), until=NOON)
    acts.backfill(deployment.app, user, schedule, body, actor=ME)
    arm("schedules.before_commit=raise")
    sweep(deployment, NOON)
    assert get_schedule(deployment.app, user, schedule).error

    sweep(deployment, NOON + timedelta(seconds=RETRY_AFTER_SECONDS))

    assert get_schedule(deployment.app, user, schedule).error is None
    assert outcomes(deployment, schedule) == [("06-30 22:00", "queued")]


def test_two_sweeps_at_one_fire_time_submit_once(
    deployment: Deployment, user: UserId, connect: Callable[..., Db]
) -> None:
    schedule = add(deployment, user)
    deployment.set_clock(at("2026-07-01T22:00Z"))

    handled = meet_at_lane(
        connect,
        user,
        Rival(connect, "first", fire_schedules, SETTINGS),
        Rival(connect, "second", fire_schedules, SETTINGS),
    )

    assert sorted(handled) == [0, 1]
    assert outcomes(deployment, schedule) == [("07-01 22:00", "queued")]
    assert len(submitted(deployment)) == 1


DYING_SWEEP = """
import sys
from overnight_server.fault_points import arm
from overnight_server.maintenance.schedules import fire_schedules
from overnight_server.store.db import DISPATCHER, Db
from tests.support.schedules import SETTINGS
arm(sys.argv[1] + "=kill")
fire_schedules(Db.connect(sys.argv[2], role=DISPATCHER), SETTINGS)
"""


@pytest.mark.parametrize(
    ("point", "made"), [("schedules.before_commit", 0), ("schedules.after_commit", 1)]
)
def test_a_killed_sweep_neither_loses_nor_repeats_a_fire_time(
    deployment: Deployment, user: UserId, database_url: str, point: str, made: int
) -> None:
    add(deployment, user)
    deployment.set_clock(at("2026-07-01T22:00Z"))

    died = subprocess.run(
        [sys.executable, "-c", DYING_SWEEP, point, database_url],
        cwd=ROOT,
        capture_output=True,
        check=False,
        timeout=60,
    )

    assert died.returncode == -signal.SIGKILL, died.stderr
    assert len(submitted(deployment)) == made
    assert fire_schedules(deployment.dispatcher, SETTINGS) == 1 - made
    assert len(submitted(deployment)) == 1


def test_a_disabled_user_gets_nothing_until_enabled(deployment: Deployment, user: UserId) -> None:
    schedule = add(deployment, user, "every hour")
    deployment.run("UPDATE users SET disabled_at = clock() WHERE id = :id", id=user)
    assert sweep(deployment, "2026-07-01T13:00Z") == 0

    deployment.run("UPDATE users SET disabled_at = NULL WHERE id = :id", id=user)
    sweep(deployment, "2026-07-01T13:30Z")

    assert outcomes(deployment, schedule) == [("07-01 13:00", "queued")]


def test_a_run_by_hand_goes_beside_the_schedule(deployment: Deployment, user: UserId) -> None:
    schedule = add(deployment, user, "every hour", paused=True)
    first = acts.run_now(deployment.app, user, schedule, SETTINGS, actor=ME, key="one")
    again = acts.run_now(deployment.app, user, schedule, SETTINGS, actor=ME, key="one")

    assert first == (NOON, True)
    assert again == (NOON, False)
    [fire] = list_fires(deployment.app, user, schedule)
    assert (fire.kind, fire.status) == ("manual", "queued")
    assert len(submitted(deployment)) == 1


def test_a_run_by_hand_that_is_refused_leaves_no_trace(
    deployment: Deployment, user: UserId
) -> None:
    schedule = add(deployment, user)
    deployment.run("UPDATE users SET max_pending = 1 WHERE id = :id", id=user)
    deployment.task(user)

    with pytest.raises(TooManyPending):
        acts.run_now(deployment.app, user, schedule, SETTINGS, actor=ME)

    assert fires(deployment, schedule) == []


def test_a_backfill_runs_past_fire_times_one_after_the_other(
    deployment: Deployment, user: UserId
) -> None:
    schedule = add(deployment, user, "every day at 22:00", paused=True)
    body = BackfillRequest(since=at("2026-06-28T00:00Z"), until=NOON)

    preview = acts.backfill(
        deployment.app, user, schedule, body.model_copy(update={"preview": True}), actor=ME
    )
    assert (preview.total, preview.added) == (3, 3)
    assert fires(deployment, schedule) == []
    done = acts.backfill(deployment.app, user, schedule, body, actor=ME)
    assert [time.at for time in done.fire_times] == [
        at(f"2026-06-{day}T22:00Z") for day in (28, 29, 30)
    ]
    for _ in range(4):
        sweep(deployment, NOON)
        assert len([task for task in submitted(deployment) if task["state"] == "ready"]) <= 1
        finish_all(deployment)

    titles = [task["title"] for task in submitted(deployment)]
    assert titles == [f"report 2026-06-{day}" for day in (28, 29, 30)]
    again = acts.backfill(deployment.app, user, schedule, body, actor=ME)
    assert (again.added, again.present) == (0, 3)


def test_a_backfill_waits_for_a_free_place_in_the_queue(
    deployment: Deployment, user: UserId
) -> None:
    schedule = add(deployment, user)
    deployment.run("UPDATE users SET max_pending = 1 WHERE id = :id", id=user)
    other = deployment.task(user)
    body = BackfillRequest(since=at("2026-06-30T00:00Z"), until=NOON)
    acts.backfill(deployment.app, user, schedule, body, actor=ME)

    sweep(deployment, NOON)
    [fire] = fires(deployment, schedule)
    assert fire["status"] == "waiting"
    end(deployment, other, Returned())
    sweep(deployment, NOON)

    [fire] = fires(deployment, schedule)
    assert fire["status"] == "queued"


def test_fire_times_that_a_limit_delays_do_not_hold_back_others(
    deployment: Deployment, user: UserId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overnight_server.maintenance.schedules.BATCH", 1)
    body = BackfillRequest(since=at("2026-06-30T00:00Z"), until=NOON)
    delayed = [add(deployment, user, name=f"n{number}") for number in range(6)]
    deployment.run("UPDATE users SET max_pending = 1 WHERE id = :id", id=user)
    deployment.task(user)
    other = deployment.user()
    schedules = [*((user, one) for one in delayed), (other, add(deployment, other))]
    for owner, schedule in schedules:
        acts.backfill(deployment.app, owner, schedule, body, actor=ME)

    for second in range(len(schedules)):
        sweep(deployment, NOON + timedelta(seconds=second))

    [fire] = fires(deployment, schedules[-1][1])
    assert fire["status"] == "queued"
    # Each of the others was tried once, and is tried again in this order.
    tried = [fires(deployment, schedule)[0]["decided_at"] for schedule in delayed]
    assert len(set(tried)) == len(delayed)


def test_a_deleted_schedule_fires_no_more(deployment: Deployment, user: UserId) -> None:
    schedule = add(deployment, user, "every hour", overlap="queue")
    sweep(deployment, "2026-07-01T13:00Z")
    sweep(deployment, "2026-07-01T14:00Z")

    acts.delete_schedule(deployment.app, user, schedule, actor=ME)
    finish_all(deployment)
    sweep(deployment, "2026-07-01T18:00Z")

    assert [fire["status"] for fire in fires(deployment, schedule)] == ["queued", "cancelled"]
    with pytest.raises(ScheduleNotFound):
        get_schedule(deployment.app, user, schedule)
    assert add(deployment, user) != schedule


def test_an_edit_finds_the_next_fire_time_anew(deployment: Deployment, user: UserId) -> None:
    schedule = add(deployment, user, "every day at 22:00")
    changes = ScheduleEdit(when="every day at 13:00", zone="Europe/Berlin")

    acts.edit_schedule(deployment.app, user, schedule, changes, SETTINGS, editions=["1"], actor=ME)

    view = get_schedule(deployment.app, user, schedule)
    assert (view.cron, view.zone, view.edition) == ("0 13 * * *", "Europe/Berlin", 2)
    assert view.next_fire_at == at("2026-07-02T11:00Z")
    assert view.task == {"title": "report {{ fire_date }}"}


def test_an_edit_keeps_a_fire_time_that_its_jitter_delays(
    deployment: Deployment, user: UserId
) -> None:
    schedule = add(deployment, user, "every hour", jitter_seconds=3600)
    deployment.set_clock(at("2026-07-01T13:00:00Z"))
    changes = ScheduleEdit(overlap="queue")

    acts.edit_schedule(deployment.app, user, schedule, changes, SETTINGS, editions=["*"], actor=ME)
    sweep(deployment, "2026-07-01T13:59:59Z")

    assert outcomes(deployment, schedule)[0] == ("07-01 13:00", "queued")


@pytest.mark.parametrize("when", ["every 90 minutes", "in 2 hours"])
def test_an_edit_to_the_same_time_moves_no_fire_time(
    deployment: Deployment, user: UserId, when: str
) -> None:
    schedule = add(deployment, user, when, zone="Europe/Berlin")
    before = deployment.one("SELECT * FROM schedules")
    deployment.set_clock(NOON + timedelta(minutes=40))
    changes = ScheduleEdit(when=when, zone="Europe/Berlin", task={"title": "another"})

    acts.edit_schedule(deployment.app, user, schedule, changes, SETTINGS, editions={"*"}, actor=ME)

    after = deployment.one("SELECT * FROM schedules")
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"task", "edition"}
    acts.edit_schedule(
        deployment.app, user, schedule, ScheduleEdit(zone="UTC"), SETTINGS, editions={"*"}, actor=ME
    )
    moved = deployment.one("SELECT * FROM schedules")
    assert moved["next_fire_at"] == before["next_fire_at"] + timedelta(minutes=40)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"when": "every blue moon"}, "when"),
        ({"when": "2026-06-30 22:00"}, "when"),
        ({"zone": "Mars/Olympus"}, "zone"),
        ({"ends_at": "2026-07-01T13:00:00Z"}, "when"),
        ({"task": {"title": "{{ nonsense }}"}}, "task.title"),
        ({"task": {"titel": "x"}}, "task.titel"),
        ({"task": {"title": "x", "idempotency_key": "k"}}, "task.idempotency_key"),
        ({"task": {"title": "x", "agent": "nobody"}}, "agent"),
    ],
)
def test_a_schedule_that_could_not_submit_is_refused_when_it_is_created(
    deployment: Deployment, user: UserId, fields: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        add(deployment, user, **fields)  # type: ignore[arg-type]

    assert field in {each.field for each in refused.value.fields}
    assert list_schedules(deployment.app, user) == []


def test_names_are_unique_among_the_schedules_of_a_user(
    deployment: Deployment, user: UserId
) -> None:
    add(deployment, user)
    add(deployment, deployment.user())

    with pytest.raises(InvalidRequest, match="is taken"):
        add(deployment, user)


def test_an_unknown_schedule_is_not_found(deployment: Deployment, user: UserId) -> None:
    others = add(deployment, deployment.user())

    for schedule in (new_schedule_id(), others):
        with pytest.raises(ScheduleNotFound):
            acts.delete_schedule(deployment.app, user, schedule, actor=ME)
        with pytest.raises(ScheduleNotFound):
            get_schedule(deployment.app, user, schedule)


def test_a_schedule_with_one_instant_ends_after_it(deployment: Deployment, user: UserId) -> None:
    schedule = add(deployment, user, "2026-07-01 13:00")

    sweep(deployment, "2026-07-01T13:00Z")

    view = get_schedule(deployment.app, user, schedule)
    assert (view.state, view.kind, view.next) == ("ended", "once", [])
    assert outcomes(deployment, schedule) == [("07-01 13:00", "queued")]
    assert show_schedule(schedule) == view.id


def test_a_preview_shows_what_would_be_submitted(deployment: Deployment, user: UserId) -> None:
    body = ScheduleCreate(name="a", when="every day at 22:00", task={"title": "of {{ fire_date }}"})

    definition = acts.preview_schedule(deployment.app, user, body, SETTINGS)

    assert definition.first_request == {"title": "of 2026-07-01"}
    assert list_schedules(deployment.app, user) == []


# The schedules of the tests over changes of clocks: when, in which zone, and their jitter. A fire
# cancels the run before, so that no fire time has a reason to wait or to be skipped.
KINDS = [
    ("0 * * * *", "Europe/Berlin", 0),
    ("30 2 * * *", "Europe/Berlin", 0),
    ("*/20 1-3 * * *", "America/New_York", 600),
    ("every 90 minutes", "UTC", 60),
    ("15 2 * * 0", "Europe/Berlin", 0),
]
LONGEST_JITTER = timedelta(minutes=10)
# The clock of these tests moves by less than the grace, as it does between two sweeps.
STEP = timedelta(minutes=36)
PATIENT = SETTINGS.model_copy(update={"schedule_grace": 3600})


def add_kinds(deployment: Deployment, user: UserId) -> list[ScheduleId]:
    return [
        add(
            deployment,
            user,
            when,
            name=f"s{number}",
            zone=zone,
            jitter_seconds=jitter,
            overlap="cancel",
            catch_up="none",
        )
        for number, (when, zone, jitter) in enumerate(KINDS)
    ]


def expected_times(when: str, zone: str, since: datetime, until: datetime) -> list[datetime]:
    """Return the fire times after an instant, found without the code that is tested."""
    if when == "every 90 minutes":
        return interval_times(timedelta(minutes=90), since, until)
    return cron_times(when, ZoneInfo(zone), since + MINUTE, until)


def assert_each_was_submitted_once(
    deployment: Deployment, schedules: list[ScheduleId], since: datetime, until: datetime
) -> None:
    """Fail unless each fire time of a range was submitted, as one task of its own, and no other."""
    # The last ones may be delayed by their jitter.
    certain = until - LONGEST_JITTER
    seen: list[UUID] = []
    for schedule, (when, zone, _) in zip(schedules, KINDS, strict=True):
        rows = fires(deployment, schedule)
        assert {row["status"] for row in rows} <= {"queued"}
        found = [row["fire_at"] for row in rows]
        assert [at for at in found if at < certain] == expected_times(when, zone, since, certain)
        assert all(at <= until for at in found)
        seen += [row["task_id"] for row in rows]
    assert seen
    assert sorted(seen) == sorted(task["id"] for task in submitted(deployment))


# The nights in which the clocks of Berlin change, and the days before and after them.
SPRING, AUTUMN = at("2026-03-28T12:00Z"), at("2026-10-24T12:00Z")


@pytest.mark.parametrize("start", [SPRING, AUTUMN])
def test_two_schedulers_lose_and_double_nothing_over_a_change_of_clocks(
    deployment: Deployment, user: UserId, connect: Callable[..., Db], start: datetime
) -> None:
    """At every second tick a scheduler loses its connection, before or after a commit."""
    deployment.set_clock(start)
    schedules = add_kinds(deployment, user)
    points = ("schedules.before_commit", "schedules.after_commit", "schedules.after_search")
    ticks, lost = 36, 0

    for tick in range(1, ticks + 1):
        deployment.set_clock(start + tick * STEP)
        if tick % 2:
            arm(f"{points[tick // 2 % 3]}=drop")
        rivals = [Rival(connect, name, fire_schedules, PATIENT) for name in ("one", "two")]
        for rival in rivals:
            rival.start()
        for rival in rivals:
            try:
                rival.answer()
            except DatabaseUnreachable:
                lost += 1
        while fire_schedules(deployment.dispatcher, PATIENT):
            pass

    assert lost > 5
    assert_each_was_submitted_once(deployment, schedules, start, start + ticks * STEP)
    assert_invariants(deployment)


SCHEDULER = """
import sys
import time
from overnight_server.maintenance.schedules import fire_schedules
from overnight_server.store.db import DATABASE_ERRORS, DISPATCHER, Db
from tests.support.schedules import SETTINGS
db = Db.connect(sys.argv[1], role=DISPATCHER, pool_size=1)
settings = SETTINGS.model_copy(update={"schedule_grace": int(sys.argv[2])})
print("ready", flush=True)
while True:
    try:
        fire_schedules(db, settings)
    except DATABASE_ERRORS:
        pass
    time.sleep(0.002)
"""


class Schedulers:
    """Two processes that fire schedules; one of them is killed every few seconds."""

    def __init__(self, url: str, kill_every: float) -> None:
        self._command = [sys.executable, "-c", SCHEDULER, url, str(PATIENT.schedule_grace)]
        self._kill_every = kill_every
        self._running = [self._start() for _ in range(2)]
        self._next_kill = time.monotonic() + kill_every
        self._random = Random(7)
        self.kills = 0

    def kill_one_if_due(self) -> None:
        """Kill the older one, while it works on what has just become due, and start another.

        The younger one has started by then: a busy machine needs seconds for it.
        """
        if time.monotonic() < self._next_kill or not self._is_ready(self._running[1]):
            return
        time.sleep(self._random.uniform(0, 0.02))
        self._end(self._running.pop(0))
        self._running.append(self._start())
        self._next_kill = time.monotonic() + self._kill_every
        self.kills += 1

    def stop(self) -> None:
        """Kill both."""
        for process in self._running:
            self._end(process)

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, cwd=ROOT, stdout=subprocess.PIPE)

    def _is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        """Return whether a process has said that it is connected."""
        return bool(select.select([process.stdout], [], [], 0)[0])

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.communicate()


@pytest.fixture
def kill_every() -> float:
    return 2.0


@pytest.fixture
def schedulers(database_url: str, kill_every: float) -> Iterator[Schedulers]:
    two = Schedulers(database_url, kill_every)
    yield two
    two.stop()


def tick_through(
    deployment: Deployment, schedulers: Schedulers, start: datetime, ticks: int
) -> None:
    """Move the clock; each time, wait until the schedulers have decided about all that is due."""
    due = (
        "SELECT (SELECT count(*) FROM schedules WHERE next_due_at <= clock())"
        " + (SELECT count(*) FROM schedule_fires WHERE status = 'waiting') AS n"
    )
    for tick in range(1, ticks + 1):
        deployment.set_clock(start + tick * STEP)
        schedulers.kill_one_if_due()
        deadline = time.monotonic() + 60
        while deployment.one(due)["n"]:
            assert time.monotonic() < deadline, f"nothing fires at tick {tick}"
            time.sleep(0.002)


@pytest.mark.parametrize("kill_every", [0.2])
@pytest.mark.parametrize("start", [SPRING, AUTUMN])
def test_killed_schedulers_lose_and_double_nothing_over_a_change_of_clocks(
    deployment: Deployment, user: UserId, schedulers: Schedulers, start: datetime
) -> None:
    ticks = 40
    deployment.set_clock(start)
    schedules = add_kinds(deployment, user)

    tick_through(deployment, schedulers, start, ticks)

    assert schedulers.kills
    assert_each_was_submitted_once(deployment, schedules, start, start + ticks * STEP)


@pytest.mark.proof
def test_ten_thousand_ticks_with_schedulers_that_are_killed(
    deployment: Deployment, user: UserId, schedulers: Schedulers
) -> None:
    """From March to November, with both changes of clocks in Berlin and in New York."""
    start, ticks = at("2026-03-01T00:00Z"), 10_000
    deployment.set_clock(start)
    schedules = add_kinds(deployment, user)

    tick_through(deployment, schedulers, start, ticks)

    assert schedulers.kills > 20
    assert_each_was_submitted_once(deployment, schedules, start, start + ticks * STEP)
