"""Memory: a run that uses too much is ended, and a child that has leaked too much is replaced."""

import subprocess
from collections.abc import Iterator

import pytest

from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis
from tests.support.wait import wait_until
from tests.support.workers import (
    ROOT,
    Worker,
    WorkerHarness,
    environment,
    running_worker,
    shared_harness,
    worker_command,
)

CHILD_MB = 400
RUN_MB = 600
LEAK_MB = 60


@pytest.fixture(scope="module")
def harness(
    postgres: EmbeddedPostgres, template: str, redis: EmbeddedRedis
) -> Iterator[WorkerHarness]:
    """A lease longer than every test: an excess is recorded because the guard reports it."""
    changes = {
        "lease_seconds": 60,
        "handlers": "tests.support.program_handler",
        "max_memory_per_child_mb": CHILD_MB,
        "run_memory_mb": RUN_MB,
        "refill_seconds": 60,
    }
    with shared_harness(postgres, template, redis, **changes) as harness:
        yield harness


@pytest.fixture(scope="module")
def worker(harness: WorkerHarness) -> Iterator[Worker]:
    with running_worker(harness.settings) as worker:
        yield worker


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("where", ["process", "program"])
def test_a_run_that_uses_too_much_memory_ends_as_out_of_memory(
    harness: WorkerHarness, where: str
) -> None:
    task_id = harness.send("allocate", {"mb": RUN_MB + 100, "where": where, "then": "stay"})

    row = harness.reaches(task_id, "dead_lettered", timeout=30)

    assert (row["failure_reason"], harness.outcomes(task_id)) == (
        "out_of_memory",
        ["out_of_memory"],
    )
    sql = "SELECT seconds FROM usage_ledger WHERE task_id = :id"
    assert harness.deployment.one(sql, id=task_id)["seconds"] > 0, "billed as a crash is"


@pytest.mark.usefixtures("worker")
def test_a_sandbox_has_its_own_limit_and_not_that_of_its_run(harness: WorkerHarness) -> None:
    """Longer than the guard needs to look twice, and with more than a run of a handler may use."""
    hog = f"import time; block = b'x' * ({RUN_MB + 200} << 20); time.sleep(2); print('done')"
    execution = {
        "agent": None,
        "argv": ["python3", "-c", hog],
        "env": {},
        "network": None,
        "limits": {"memory_mb": 2 * RUN_MB},
    }

    task_id = harness.send(
        "command",
        execution=execution,
        required_capabilities=("runner:command",),
        max_attempts=1,
    )

    wait_until(
        lambda: harness.deployment.state(task_id) in {"completed", "dead_lettered"},
        timeout=60,
        what="the command to end",
    )
    row = harness.deployment.row(task_id)
    assert (row["state"], row["error"]) == ("completed", None)
    assert row["output"]["text"] == "done"


@pytest.mark.usefixtures("worker")
def test_a_child_that_leaks_is_replaced_although_its_slot_claims_for_itself(
    harness: WorkerHarness,
) -> None:
    leaks = [
        harness.deployment.task(harness.user, type="allocate", payload={"mb": LEAK_MB})
        for _ in range(2 * CHILD_MB // LEAK_MB)
    ]

    def are_completed() -> bool:
        harness.publish(*harness.deployment.claim().claims)
        return all(harness.deployment.state(task_id) == "completed" for task_id in leaks)

    wait_until(are_completed, timeout=60, what="the leaking runs to end")

    pids = {harness.deployment.row(task_id)["output"] for task_id in leaks}
    assert len(pids) > 1
    assert {outcome for one in leaks for outcome in harness.outcomes(one)} == {"completed"}


def test_a_worker_whose_handlers_use_up_the_memory_of_a_child_does_not_start(
    harness: WorkerHarness,
) -> None:
    small = environment(harness.settings) | {"OVERNIGHT_MAX_MEMORY_PER_CHILD_MB": "64"}

    answer = subprocess.run(
        worker_command(harness.settings),
        cwd=ROOT,
        env=small,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert answer.returncode == 1
    assert "set OVERNIGHT_MAX_MEMORY_PER_CHILD_MB above" in answer.stderr
