"""A worker validates outputs: its heartbeats go on, and every stop ends a validation too."""

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from overnight_server.control.cancel import cancel
from overnight_server.domain.ids import TaskId
from overnight_server.domain.retry import RetryRules, Strategy
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.maintenance.promote import promote
from overnight_server.maintenance.reap import reap
from tests.support.wait import wait_until
from tests.support.workers import (
    Worker,
    WorkerHarness,
    marked_processes,
    processes_with_argument,
    running_worker,
    shared_harness,
)

SOON = 15.0
AT_ONCE = RetryRules(strategy=Strategy.IMMEDIATE)
BOMB = {"method": "regex", "pattern": "(a+)+$"}


@pytest.fixture(scope="module")
def harness(
    postgres: EmbeddedPostgres, template: str, redis: EmbeddedRedis
) -> Iterator[WorkerHarness]:
    with shared_harness(postgres, template, redis, lease_seconds=4, cancel_grace=3) as harness:
        yield harness


@pytest.fixture(scope="module")
def worker(harness: WorkerHarness) -> Iterator[Worker]:
    """One worker with one slot for all tests here: each also proves that the last one freed it."""
    with running_worker(harness.settings) as worker:
        yield worker
        harness.reaches(harness.send("echo"), "completed")
        assert worker.process.poll() is None


@pytest.fixture
def number() -> Iterator[int]:
    """A number that marks the processes of one test; none is left at its end."""
    with marked_processes() as number:
        yield number


def shell(harness: WorkerHarness, script: str, tests: list[str], **fields: Any) -> TaskId:
    """Send a shell script whose workspace is tested by a command."""
    spec = {"output_validation": [{"method": "test-pass", "argv": tests}], **fields.pop("spec", {})}
    asked = {"agent": None, "argv": ["sh", "-c", script], "env": {}, "network": None}
    return harness.send(
        "command",
        execution={**asked, "limits": None},
        required_capabilities=("runner:command",),
        spec=spec,
        **{"max_attempts": 1, **fields},
    )


def validating(harness: WorkerHarness, number: int, **fields: Any) -> TaskId:
    """Send a command whose tests never end, and wait until they run."""
    tests = ["sh", "-c", f"trap '' TERM; setsid sleep {number} & sleep {number}; wait"]
    task_id = shell(harness, "echo done", tests, **fields)
    wait_until(lambda: processes_with_argument(number), timeout=SOON, what="the tests to run")
    assert harness.deployment.state(task_id) == "validating"
    return task_id


def attempt_of(harness: WorkerHarness, task_id: TaskId) -> Any:
    row = "SELECT * FROM attempts WHERE task_id = :id ORDER BY epoch DESC LIMIT 1"
    return harness.deployment.one(row, id=task_id)


@pytest.mark.usefixtures("worker")
def test_a_regex_bomb_delays_no_heartbeat_and_rejects_the_output(harness: WorkerHarness) -> None:
    """It takes longer than the lease, which would end without heartbeats."""
    spec = {"output_validation": [BOMB]}
    payload = {"text": "a" * 60 + "b"}
    task_id = harness.send("echo", payload, spec=spec, max_attempts=1)

    def has_ended() -> bool:
        reap(harness.deployment.dispatcher)
        return harness.deployment.state(task_id) == "dead_lettered"

    wait_until(has_ended, timeout=120, what="the bomb to be ended")
    row = harness.deployment.row(task_id)
    assert row["failure_reason"] == "invalid_output"
    assert row["error"] == "regex: the check took more than 10 s of CPU time"
    assert harness.outcomes(task_id) == ["failed"]


@pytest.mark.usefixtures("worker")
def test_the_tests_of_a_task_see_its_workspace_and_its_output(harness: WorkerHarness) -> None:
    tests = "grep -q built app && grep -q done && ! ls out/more"
    task_id = shell(
        harness, "echo built > app; mkdir out; echo a > out/a; echo done", ["sh", "-c", tests]
    )

    row = harness.reaches(task_id, "completed")

    assert row["output"] == {"text": "done", "summary": "done"}


@pytest.mark.usefixtures("worker")
def test_what_the_tests_write_is_not_collected(harness: WorkerHarness) -> None:
    tests = ["sh", "-c", "echo b > out/b"]
    task_id = shell(harness, "mkdir out; echo a > out/a", tests)

    harness.reaches(task_id, "completed")

    kept = harness.deployment.rows("SELECT name FROM artifacts WHERE task_id = :id", id=task_id)
    assert [each["name"] for each in kept] == ["a"]


@pytest.mark.usefixtures("worker")
def test_the_next_attempt_of_a_command_learns_why_its_tests_failed(harness: WorkerHarness) -> None:
    script = (
        'case "$OVERNIGHT_FEEDBACK" in'
        ' *\'"validator":"test-pass"\'*"exit code 3: it is bad"*) echo good > app;;'
        " *) echo bad > app;; esac; echo done"
    )
    tests = ["sh", "-c", "grep good app || { echo it is bad >&2; exit 3; }"]
    task_id = shell(harness, script, tests, max_attempts=3, retry=AT_ONCE)

    wait_until(
        lambda: harness.outcomes(task_id)[:1] == ["failed"], timeout=SOON, what="the first attempt"
    )
    first = attempt_of(harness, task_id)
    assert (first["validator"], first["detail"]) == ("test-pass", "it is bad\n")
    assert first["rejected"]["output"] == {"text": "done", "summary": "done"}

    def is_completed() -> bool:
        promote(harness.deployment.dispatcher)
        harness.publish(*harness.deployment.claim().claims)
        return harness.deployment.state(task_id) == "completed"

    wait_until(is_completed, timeout=SOON, what="the second attempt")
    assert harness.outcomes(task_id) == ["failed", "completed"]


@pytest.mark.usefixtures("worker")
def test_the_tests_of_a_task_have_no_network(harness: WorkerHarness) -> None:
    tests = ["sh", "-c", "test \"$(ls /sys/class/net 2>/dev/null | grep -v lo)\" = ''"]

    harness.reaches(shell(harness, "true", tests), "completed")


@pytest.mark.usefixtures("worker")
def test_tests_that_take_too_long_reject_the_output(harness: WorkerHarness, number: int) -> None:
    validator = {"method": "test-pass", "argv": ["sleep", str(number)], "timeout_seconds": 1}
    task_id = shell(harness, "true", [], spec={"output_validation": [validator]})

    row = harness.reaches(task_id, "dead_lettered")

    assert row["error"] == "test-pass: it did not end within 1 s"


@pytest.mark.usefixtures("worker")
def test_a_timeout_ends_a_validation(harness: WorkerHarness, number: int) -> None:
    task_id = validating(harness, number, timeout_seconds=3)

    harness.reaches(task_id, "dead_lettered", timeout=SOON)

    assert harness.outcomes(task_id) == ["timeout"]


def test_a_cancel_ends_a_validation(harness: WorkerHarness, worker: Worker, number: int) -> None:
    task_id = validating(harness, number)
    [child] = worker.children()

    cancel(harness.deployment.app, harness.user, task_id, actor="human:test")

    harness.reaches(task_id, "cancelled", timeout=SOON)
    assert processes_with_argument(number) == [], "they are gone when the end is recorded"
    assert worker.children() == [child], "the process of the run was not ended by force"


@pytest.mark.usefixtures("worker")
def test_a_validation_that_lost_its_task_ends_and_changes_nothing(
    harness: WorkerHarness, number: int
) -> None:
    task_id = validating(harness, number)

    def is_taken_away() -> bool:
        harness.deployment.run("UPDATE tasks SET expires_at = clock() WHERE id = :id", id=task_id)
        reap(harness.deployment.dispatcher)
        return harness.deployment.state(task_id) != "validating"

    wait_until(is_taken_away, what="the reaper to take the task away")
    before = harness.deployment.row(task_id)

    wait_until(lambda: not processes_with_argument(number), timeout=SOON, what="the tests to end")
    assert harness.deployment.row(task_id) == before


class TestWorkersThatEnd:
    """Each test has a worker of its own, which it ends."""

    @pytest.fixture
    def own(
        self, postgres: EmbeddedPostgres, template: str, redis: EmbeddedRedis
    ) -> Iterator[WorkerHarness]:
        with shared_harness(postgres, template, redis, lease_seconds=60) as harness:
            yield harness

    def test_a_shutdown_ends_a_validation_and_hands_its_task_back(
        self, own: WorkerHarness, number: int
    ) -> None:
        with running_worker(own.settings) as worker:
            task_id = validating(own, number)
            worker.signal(signal.SIGTERM)
            worker.ended(within=SOON)

        wait_until(lambda: not processes_with_argument(number), timeout=5, what="the tests to end")
        row = own.deployment.row(task_id)
        assert (row["state"], row["attempts"], own.outcomes(task_id)) == (
            "ready",
            0,
            ["interrupted"],
        )

    def test_kill_9_of_the_process_of_the_run_ends_the_validation(
        self, own: WorkerHarness, number: int
    ) -> None:
        with running_worker(own.settings) as worker:
            task_id = validating(own, number)
            [guard] = worker.children()
            for process in guard.children():
                process.kill()

            own.reaches(task_id, "dead_lettered", timeout=SOON)

            assert processes_with_argument(number) == []
            assert own.outcomes(task_id) == ["crash"]
