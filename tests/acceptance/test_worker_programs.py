"""Programs that a handler started end with its run, whatever ends the run or its processes."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from overnight_server.control.cancel import cancel
from overnight_server.domain.ids import TaskId
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.maintenance.reap import reap
from tests.support.program_handler import WAYS
from tests.support.wait import wait_until
from tests.support.workers import (
    Worker,
    WorkerHarness,
    is_gone,
    running_worker,
    shared_harness,
)

SOON = 15.0


@pytest.fixture(scope="module")
def harness(
    postgres: EmbeddedPostgres, template: str, redis: EmbeddedRedis
) -> Iterator[WorkerHarness]:
    """Leases longer than every test: only the guards end programs, and only they are waited for."""
    changes = {"lease_seconds": 60, "handlers": "tests.support.program_handler"}
    with shared_harness(postgres, template, redis, **changes) as harness:
        yield harness


@pytest.fixture(scope="module")
def other_harness(
    postgres: EmbeddedPostgres, template: str, redis: EmbeddedRedis
) -> Iterator[WorkerHarness]:
    """The same for tests that end their worker, so that the other worker takes none of its runs."""
    changes = {"lease_seconds": 60, "handlers": "tests.support.program_handler"}
    with shared_harness(postgres, template, redis, **changes) as harness:
        yield harness


@pytest.fixture(scope="module")
def worker(harness: WorkerHarness) -> Iterator[Worker]:
    with running_worker(harness.settings) as worker:
        yield worker


@pytest.fixture
def programs(tmp_path: Path) -> Iterator["Programs"]:
    programs = Programs(tmp_path)
    yield programs
    for process in programs.left():
        process.kill()


class Programs:
    """The programs of one run, which write their pids into a directory."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._processes: list[psutil.Process] = []

    def send(self, harness: WorkerHarness, then: str, **fields: object) -> TaskId:
        """Start a run; return its task when all its programs run."""
        payload = {"place": str(self.place), "then": then}
        task_id = harness.send("programs", payload, max_attempts=1, **fields)
        wait_until((self.place / "run").exists, timeout=SOON, what="the programs")
        for how in WAYS:
            with suppress(psutil.NoSuchProcess):
                self._processes.append(psutil.Process(self.pid_of(how)))
        return task_id

    def pid_of(self, name: str) -> int:
        return int((self.place / name).read_text())

    def left(self) -> list[psutil.Process]:
        return [process for process in self._processes if not is_gone(process)]

    def have_ended(self) -> bool:
        return not self.left()

    def all_end(self) -> None:
        wait_until(self.have_ended, timeout=SOON, what=f"the end of {self.left()}")


def retire(harness: WorkerHarness, task_id: TaskId) -> None:
    """Take a task out of the queue that nobody runs, so that no other worker gets it."""
    harness.deployment.run("UPDATE tasks SET expires_at = clock() WHERE id = :id", id=task_id)
    cancel(harness.deployment.app, harness.user, task_id, actor="human:test")
    reap(harness.deployment.dispatcher)


def guards_of(worker: Worker) -> list[psutil.Process]:
    """Return the processes that Celery knows, which are guards."""
    return worker.children()


@pytest.mark.parametrize("then", ["return", "raise", "crash"])
def test_programs_end_before_the_result_of_their_run_is_recorded(
    harness: WorkerHarness, worker: Worker, programs: Programs, then: str
) -> None:
    task_id = programs.send(harness, then)
    harness.reaches(task_id, "completed" if then == "return" else "dead_lettered")

    assert programs.left() == []


def test_a_child_that_started_programs_goes_on_with_the_next_run(
    harness: WorkerHarness, worker: Worker, programs: Programs
) -> None:
    before = guards_of(worker)

    harness.reaches(programs.send(harness, "return"), "completed")
    harness.reaches(harness.send("echo"), "completed")

    assert guards_of(worker) == before


@pytest.mark.parametrize("stop", ["cancel", "timeout"])
def test_programs_of_a_stopped_run_have_ended_when_that_is_recorded(
    harness: WorkerHarness, worker: Worker, programs: Programs, stop: str
) -> None:
    limit = {"timeout_seconds": 5} if stop == "timeout" else {}
    task_id = programs.send(harness, "stay", **limit)
    if stop == "cancel":
        cancel(harness.deployment.app, harness.user, task_id, actor="human:test")

    harness.reaches(task_id, "cancelled" if stop == "cancel" else "dead_lettered", timeout=30)

    assert programs.left() == []


@pytest.mark.parametrize("killed", ["run process", "guard", "guard and run process"])
def test_a_task_is_given_on_only_when_its_programs_have_ended(
    harness: WorkerHarness, worker: Worker, programs: Programs, killed: str
) -> None:
    task_id = programs.send(harness, "stay")
    [guard] = guards_of(worker)
    run_process = programs.pid_of("run")
    assert psutil.Process(run_process).parent() == guard

    if killed != "run process":
        guard.kill()
    if killed != "guard":
        with suppress(ProcessLookupError):
            os.kill(run_process, signal.SIGKILL)

    harness.reaches(task_id, "dead_lettered", timeout=SOON)
    assert programs.left() == []
    assert harness.outcomes(task_id) == ["crash"]
    harness.reaches(harness.send("echo"), "completed", timeout=SOON)
    assert guards_of(worker) != [guard]


def test_a_guard_is_small_and_holds_no_connection_and_no_log(
    harness: WorkerHarness, worker: Worker
) -> None:
    harness.reaches(harness.send("echo"), "completed")
    [guard] = guards_of(worker)

    descriptors = {
        link.name: str(link.readlink()) for link in Path(f"/proc/{guard.pid}/fd").iterdir()
    }

    assert guard.net_connections() == []
    assert worker.output.name not in descriptors.values()
    assert {descriptors[name] for name in "012"} == {"/dev/null"}
    assert guard.memory_full_info().uss < 10_000_000


@pytest.mark.parametrize("killed", ["main", "main and run process at once"])
def test_programs_end_with_the_main_process_of_their_worker(
    other_harness: WorkerHarness, programs: Programs, killed: str
) -> None:
    with running_worker(other_harness.settings) as worker:
        task_id = programs.send(other_harness, "stay")
        family = psutil.Process(worker.process.pid).children(recursive=True)
        assert {process.pid for process in family} > {process.pid for process in programs.left()}

        if killed == "main":
            worker.signal(signal.SIGKILL)
        else:
            # Their process group; the guard has one of its own.
            os.killpg(worker.process.pid, signal.SIGKILL)

        programs.all_end()
        wait_until(lambda: all(map(is_gone, family)), timeout=SOON, what="the guard to end too")
    retire(other_harness, task_id)


def test_an_orderly_shutdown_ends_programs(
    other_harness: WorkerHarness, programs: Programs
) -> None:
    with running_worker(other_harness.settings) as worker:
        task_id = programs.send(other_harness, "stay")
        worker.signal(signal.SIGTERM)
        worker.ended(within=SOON)

    assert programs.left() == []
    assert other_harness.deployment.state(task_id) == "ready"
    cancel(other_harness.deployment.app, other_harness.user, task_id, actor="human:test")
