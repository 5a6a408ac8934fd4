from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from redis import Redis
from sqlalchemy.engine import make_url

from overnight_server.control.cancel import cancel
from overnight_server.domain.ids import TaskId, show_task
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.maintenance.reap import reap
from overnight_server.wakeups.idle_slot_listener import has_idle_listener
from overnight_server.wakeups.wake import SLOTS_CHANNEL
from tests.support.rivals import lane_held_for_long, task_held_for_long
from tests.support.waiting import wait_until
from tests.support.workers import (
    Shift,
    Worker,
    is_gone,
    listening_on,
    running_worker,
    shared_shift,
)


@pytest.fixture(scope="module")
def shift(postgres: EmbeddedPostgres, template: str, redis: EmbeddedRedis) -> Iterator[Shift]:
    with shared_shift(postgres, template, redis, lease_seconds=8) as shift:
        yield shift


@pytest.fixture(scope="module")
def worker(shift: Shift) -> Iterator[Worker]:
    """One worker with one slot for all tests here: each also proves that the last one freed it."""
    with running_worker(shift.settings) as worker:
        yield worker
        shift.reaches(shift.send("echo"), "completed")
        assert worker.process.poll() is None


@contextmanager
def hung(postgres: EmbeddedPostgres) -> Iterator[None]:
    """Let every process of Postgres stand still: it keeps its connections and answers nothing."""
    main = listening_on(make_url(postgres.url()).port)
    stopped = [main, *main.children(recursive=True)]
    for process in stopped:
        process.suspend()
    try:
        yield
    finally:
        for process in stopped:
            process.resume()


def lease_is_over(shift: Shift, task_id: TaskId) -> bool:
    """Tell whether a run's lease has ended, and the moment with it in which all must be dead."""
    over = "SELECT expires_at + interval '1 second' < clock() AS over FROM tasks WHERE id = :id"
    return bool(shift.deployment.one(over, id=task_id)["over"])


def reaped(shift: Shift, task_id: TaskId) -> bool:
    """Sweep, and tell whether the task has been taken back."""
    reap(shift.deployment.dispatcher)
    return shift.deployment.state(task_id) != "running"


def test_a_run_that_ignores_its_cancel_is_killed(shift: Shift, worker: Worker) -> None:
    task_id = shift.send("sleep", {"seconds": 300, "stubborn": True})
    shift.reaches(task_id, "running")
    [child] = worker.children()

    cancel(shift.deployment.app, shift.user, task_id, actor="human:test")

    shift.reaches(task_id, "cancelled", timeout=6)
    wait_until(lambda: is_gone(child), timeout=5, what="the run's process to end")
    assert shift.outcomes(task_id) == ["cancelled"]


@pytest.mark.parametrize("kind", ["spin", "sleep"])
def test_a_run_is_killed_soon_after_its_timeout(shift: Shift, worker: Worker, kind: str) -> None:
    task_id = shift.send(kind, {"seconds": 300}, timeout_seconds=1, max_attempts=1)

    row = shift.reaches(task_id, "dead_lettered", timeout=8)

    assert (row["failure_reason"], shift.outcomes(task_id)) == ("timeout", ["timeout"])


def test_a_run_that_holds_the_interpreter_lock_is_killed_soon_after_its_timeout(
    shift: Shift, worker: Worker
) -> None:
    task_id = shift.send("spin", {"gil": True}, timeout_seconds=1, max_attempts=1)
    shift.reaches(task_id, "running")
    [child] = worker.children()

    wait_until(lambda: is_gone(child), timeout=6, what="the watchdog to end the process")
    wait_until(lambda: reaped(shift, task_id), timeout=6)

    assert shift.outcomes(task_id) == ["timeout"]
    assert "in spin" in worker.said(), "the watchdog should show what the run was doing"


def test_a_cancelled_run_that_holds_the_interpreter_lock_is_killed_within_its_lease(
    shift: Shift, worker: Worker
) -> None:
    task_id = shift.send("spin", {"gil": True})
    shift.reaches(task_id, "running")
    [child] = worker.children()

    cancel(shift.deployment.app, shift.user, task_id, actor="human:test")

    wait_until(lambda: is_gone(child), timeout=shift.settings.lease_seconds)
    wait_until(lambda: reaped(shift, task_id), timeout=3, what="the lease to end with the run")
    assert shift.outcomes(task_id) == ["cancelled"]


def test_a_run_that_kills_its_process_is_recorded_long_before_its_lease_ends(
    shift: Shift, worker: Worker
) -> None:
    task_id = shift.send("crash", {"how": "kill"}, max_attempts=1)

    shift.reaches(task_id, "dead_lettered", timeout=5)

    assert shift.outcomes(task_id) == ["crash"]


def test_a_crash_of_a_run_that_its_slot_claimed_itself_is_recorded_as_soon(
    shift: Shift, worker: Worker, redis: EmbeddedRedis
) -> None:
    prefix, pools = shift.settings.redis_key_prefix, [shift.settings.pool]
    shift.deployment.run("INSERT INTO type_durations (type, seconds) VALUES ('crash', 0.001)")
    shift.reaches(shift.send("echo"), "completed")
    with Redis.from_url(redis.url) as client:
        wait_until(lambda: has_idle_listener(client, prefix, pools), what="its slot to linger")
        how = {"how": "kill"}
        task_id = shift.deployment.task(shift.user, type="crash", payload=how, max_attempts=1)
        client.publish(prefix + SLOTS_CHANNEL, "")

    shift.reaches(task_id, "dead_lettered", timeout=5)

    assert shift.outcomes(task_id) == ["crash"]


def test_a_result_is_recorded_although_its_lease_has_ended(shift: Shift, worker: Worker) -> None:
    """With the row held no heartbeat comes through either."""
    task_id = shift.send("sleep", {"seconds": 2})
    [child] = worker.children()
    with (
        lane_held_for_long(str(shift.settings.database_url), shift.user),
        task_held_for_long(str(shift.settings.database_url), task_id),
    ):
        wait_until(lambda: lease_is_over(shift, task_id), timeout=20, what="its lease to end")
        still_there = worker.children()

    shift.reaches(task_id, "completed")

    assert still_there == [child], "the watchdog is for handlers"
    assert shift.outcomes(task_id) == ["completed"]


def test_a_finished_run_is_not_reaped_while_its_result_waits_to_be_recorded(
    shift: Shift, worker: Worker
) -> None:
    task_id = shift.send("sleep", {"seconds": 1})
    age = "SELECT extract(epoch FROM clock() - started_at) AS seconds FROM tasks WHERE id = :id"

    def left_alone_for_long() -> bool:
        assert reap(shift.deployment.dispatcher) == 0
        seconds = shift.deployment.one(age, id=task_id)["seconds"]
        return bool(seconds > 1.5 * shift.settings.lease_seconds)

    with lane_held_for_long(str(shift.settings.database_url), shift.user):
        wait_until(left_alone_for_long, timeout=20, what="its first lease to be long over")

    shift.reaches(task_id, "completed")
    assert shift.outcomes(task_id) == ["completed"]


def test_a_run_that_lost_its_task_ends_and_changes_nothing(shift: Shift, worker: Worker) -> None:
    task_id = shift.send("sleep", {"seconds": 300, "stubborn": True}, max_attempts=1)
    shift.reaches(task_id, "running")
    [child] = worker.children()

    def taken_away() -> bool:
        shift.deployment.run("UPDATE tasks SET expires_at = clock() WHERE id = :id", id=task_id)
        return reaped(shift, task_id)

    # A heartbeat may come in between.
    wait_until(taken_away, what="the reaper to take the task away")
    before = shift.deployment.row(task_id)

    wait_until(lambda: is_gone(child), timeout=6, what="the run that lost its task to end")
    assert shift.deployment.row(task_id) == before
    assert shift.deployment.rows("SELECT * FROM stale_results") == []


def test_a_run_that_cannot_reach_postgres_is_killed_before_its_lease_ends(
    shift: Shift, worker: Worker, postgres: EmbeddedPostgres
) -> None:
    task_id = shift.send("sleep", {"seconds": 300, "stubborn": True}, max_attempts=1)
    shift.reaches(task_id, "running")
    [child] = worker.children()

    with hung(postgres):
        wait_until(lambda: is_gone(child), timeout=shift.settings.lease_seconds)

    wait_until(lambda: reaped(shift, task_id), what="the reaper to find the run")
    assert shift.outcomes(task_id) == ["worker_lost"], "it is not the run that was silent"


def test_a_message_delivered_many_times_starts_once(shift: Shift, worker: Worker) -> None:
    task_id = shift.deployment.task(shift.user, type="echo")
    claimed = shift.claimed(task_id)

    shift.publish(*[claimed] * 5)
    shift.reaches(task_id, "completed")
    # The queue is first in, first out: this one proves that all five were taken.
    shift.reaches(shift.send("echo"), "completed")

    assert worker.said().count(f"queue=task_started queue_id={show_task(task_id)} ") == 1
    assert shift.outcomes(task_id) == ["completed"]
    assert shift.deployment.rows("SELECT * FROM stale_results") == []


def test_forged_messages_are_dropped(shift: Shift, worker: Worker) -> None:
    task_id = shift.deployment.task(shift.user, type="echo")
    claimed = shift.claimed(task_id)
    claim = claimed.claim
    forged = [
        [show_task(task_id), claim.epoch, "00000000-0000-0000-0000-000000000000"],
        [show_task(task_id), claim.epoch + 1, str(claim.token)],
        [show_task(task_id), True, str(claim.token)],
        [str(task_id), claim.epoch, str(claim.token)],
        [{"a": 1}, None, []],
        [],
    ]

    for arguments in forged:
        shift.forge(arguments)
    shift.publish(claimed)

    shift.reaches(task_id, "completed")
    assert shift.outcomes(task_id) == ["completed"]
