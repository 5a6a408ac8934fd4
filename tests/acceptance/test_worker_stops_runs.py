"""One worker with one slot ends runs that must stop: by timeout, cancel, lost claim or crash."""

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
from tests.support.wait import wait_until
from tests.support.workers import (
    Worker,
    WorkerHarness,
    is_gone,
    listening_on,
    running_worker,
    shared_harness,
)


@pytest.fixture(scope="module")
def harness(
    postgres: EmbeddedPostgres, template: str, redis: EmbeddedRedis
) -> Iterator[WorkerHarness]:
    with shared_harness(postgres, template, redis, lease_seconds=8) as harness:
        yield harness


@pytest.fixture(scope="module")
def worker(harness: WorkerHarness) -> Iterator[Worker]:
    """One worker with one slot for all tests here: each also proves that the last one freed it."""
    with running_worker(harness.settings) as worker:
        yield worker
        harness.reaches(harness.send("echo"), "completed")
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


def lease_is_over(harness: WorkerHarness, task_id: TaskId) -> bool:
    """Tell whether a run's lease has ended, and the moment with it in which all must be dead."""
    over = "SELECT expires_at + interval '1 second' < clock() AS over FROM tasks WHERE id = :id"
    return bool(harness.deployment.one(over, id=task_id)["over"])


def reaped(harness: WorkerHarness, task_id: TaskId) -> bool:
    """Sweep, and tell whether the task has been taken back."""
    reap(harness.deployment.dispatcher)
    return harness.deployment.state(task_id) != "running"


@pytest.mark.parametrize("kind", ["spin", "sleep"])
def test_a_run_is_killed_soon_after_its_timeout(
    harness: WorkerHarness, worker: Worker, kind: str
) -> None:
    task_id = harness.send(kind, {"seconds": 300}, timeout_seconds=1, max_attempts=1)

    row = harness.reaches(task_id, "dead_lettered", timeout=8)

    assert (row["failure_reason"], harness.outcomes(task_id)) == ("timeout", ["timeout"])


def test_a_run_that_holds_the_interpreter_lock_is_killed_soon_after_its_timeout(
    harness: WorkerHarness, worker: Worker
) -> None:
    task_id = harness.send("spin", {"gil": True}, timeout_seconds=1, max_attempts=1)
    harness.reaches(task_id, "running")
    [child] = worker.children()

    wait_until(lambda: is_gone(child), timeout=6, what="the watchdog to end the process")
    wait_until(lambda: reaped(harness, task_id), timeout=6)

    assert harness.outcomes(task_id) == ["timeout"]
    assert "in spin" in worker.log_text(), "the watchdog should show what the run was doing"


def test_a_cancelled_run_that_holds_the_interpreter_lock_is_killed_within_its_lease(
    harness: WorkerHarness, worker: Worker
) -> None:
    task_id = harness.send("spin", {"gil": True})
    harness.reaches(task_id, "running")
    [child] = worker.children()

    cancel(harness.deployment.app, harness.user, task_id, actor="human:test")

    wait_until(lambda: is_gone(child), timeout=harness.settings.lease_seconds)
    wait_until(lambda: reaped(harness, task_id), timeout=3, what="the lease to end with the run")
    assert harness.outcomes(task_id) == ["cancelled"]


def test_a_run_that_kills_its_process_is_recorded_long_before_its_lease_ends(
    harness: WorkerHarness, worker: Worker
) -> None:
    task_id = harness.send("crash", {"how": "kill"}, max_attempts=1)

    harness.reaches(task_id, "dead_lettered", timeout=5)

    assert harness.outcomes(task_id) == ["crash"]


def test_a_crash_of_a_run_that_its_slot_claimed_itself_is_recorded_as_soon(
    harness: WorkerHarness, worker: Worker, redis: EmbeddedRedis
) -> None:
    prefix, pools = harness.settings.redis_key_prefix, [harness.settings.pool]
    harness.deployment.run("INSERT INTO type_durations (type, seconds) VALUES ('crash', 0.001)")
    harness.reaches(harness.send("echo"), "completed")
    with Redis.from_url(redis.url) as client:
        wait_until(lambda: has_idle_listener(client, prefix, pools), what="its slot to listen")
        how = {"how": "kill"}
        task_id = harness.deployment.task(harness.user, type="crash", payload=how, max_attempts=1)
        client.publish(prefix + SLOTS_CHANNEL, "")

    harness.reaches(task_id, "dead_lettered", timeout=5)

    assert harness.outcomes(task_id) == ["crash"]


def test_a_result_is_recorded_although_its_lease_has_ended(
    harness: WorkerHarness, worker: Worker
) -> None:
    """With the row held no heartbeat comes through either."""
    task_id = harness.send("sleep", {"seconds": 2})
    [child] = worker.children()
    with (
        lane_held_for_long(str(harness.settings.database_url), harness.user),
        task_held_for_long(str(harness.settings.database_url), task_id),
    ):
        wait_until(lambda: lease_is_over(harness, task_id), timeout=20, what="its lease to end")
        still_there = worker.children()

    harness.reaches(task_id, "completed")

    assert still_there == [child], "the watchdog is for handlers"
    assert harness.outcomes(task_id) == ["completed"]


def test_a_finished_run_is_not_reaped_while_its_result_waits_to_be_recorded(
    harness: WorkerHarness, worker: Worker
) -> None:
    task_id = harness.send("sleep", {"seconds": 1})
    age = "SELECT extract(epoch FROM clock() - started_at) AS seconds FROM tasks WHERE id = :id"

    def left_alone_for_long() -> bool:
        assert reap(harness.deployment.dispatcher) == 0
        seconds = harness.deployment.one(age, id=task_id)["seconds"]
        return bool(seconds > 1.5 * harness.settings.lease_seconds)

    with lane_held_for_long(str(harness.settings.database_url), harness.user):
        wait_until(left_alone_for_long, timeout=20, what="its first lease to be long over")

    harness.reaches(task_id, "completed")
    assert harness.outcomes(task_id) == ["completed"]


def test_a_run_that_lost_its_task_ends_and_changes_nothing(
    harness: WorkerHarness, worker: Worker
) -> None:
    task_id = harness.send("sleep", {"seconds": 300, "stubborn": True}, max_attempts=1)
    harness.reaches(task_id, "running")
    [child] = worker.children()

    def taken_away() -> bool:
        harness.deployment.run("UPDATE tasks SET expires_at = clock() WHERE id = :id", id=task_id)
        return reaped(harness, task_id)

    # A heartbeat may come in between.
    wait_until(taken_away, what="the reaper to take the task away")
    before = harness.deployment.row(task_id)

    wait_until(lambda: is_gone(child), timeout=6, what="the run that lost its task to end")
    assert harness.deployment.row(task_id) == before
    assert harness.deployment.rows("SELECT * FROM stale_results") == []


def test_a_run_that_cannot_reach_postgres_is_killed_before_its_lease_ends(
    harness: WorkerHarness, worker: Worker, postgres: EmbeddedPostgres
) -> None:
    task_id = harness.send("sleep", {"seconds": 300, "stubborn": True}, max_attempts=1)
    harness.reaches(task_id, "running")
    [child] = worker.children()

    with hung(postgres):
        wait_until(lambda: is_gone(child), timeout=harness.settings.lease_seconds)

    wait_until(lambda: reaped(harness, task_id), what="the reaper to find the run")
    assert harness.outcomes(task_id) == ["worker_lost"], "it is not the run that was silent"


def test_a_message_delivered_many_times_starts_once(harness: WorkerHarness, worker: Worker) -> None:
    task_id = harness.deployment.task(harness.user, type="echo")
    claimed = harness.claimed(task_id)

    harness.publish(*[claimed] * 5)
    harness.reaches(task_id, "completed")
    # The queue is first in, first out: this one proves that all five were taken.
    harness.reaches(harness.send("echo"), "completed")

    assert worker.log_text().count(f"queue=task_started queue_id={show_task(task_id)} ") == 1
    assert harness.outcomes(task_id) == ["completed"]
    assert harness.deployment.rows("SELECT * FROM stale_results") == []


def test_forged_messages_are_dropped(harness: WorkerHarness, worker: Worker) -> None:
    task_id = harness.deployment.task(harness.user, type="echo")
    claimed = harness.claimed(task_id)
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
        harness.forge(arguments)
    harness.publish(claimed)

    harness.reaches(task_id, "completed")
    assert harness.outcomes(task_id) == ["completed"]
