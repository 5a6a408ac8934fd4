"""Simulations run in a process of their own, which may end at any time."""

import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, time
from uuid import UUID

import psutil
import pytest

from overnight.errors import Overloaded
from overnight_server.domain.windows import NightWindow, WindowOpenings
from overnight_server.forecast.distribution import simulate_nights
from overnight_server.forecast.durations import ObservedDurations
from overnight_server.forecast.simulation import LaneState, PoolState, Snapshot, WaitingTask
from overnight_server.forecast.simulation_process import SimulationProcess
from tests.support.wait import wait_until

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
TASKS = [WaitingTask(UUID(int=number), "ada", "echo", number, 3600) for number in range(5)]
TASK_IDS = [task.id for task in TASKS]
LANE = LaneState(
    "ada", max_active=2, opens=WindowOpenings(NightWindow("UTC", time(22), time(6)), NOON)
)
SNAPSHOT = Snapshot([PoolState("default", 1)], [LANE], waiting=TASKS)
OBSERVED = ObservedDurations({"echo": [1.0, 9.0, 30.0]})


@pytest.fixture
def process() -> Iterator[SimulationProcess]:
    process = SimulationProcess()
    yield process
    process.close()


def running_process() -> psutil.Process:
    """Return the process that simulates."""
    [found] = [
        child
        for child in psutil.Process().children()
        if "overnight_server.forecast.simulation_process" in child.cmdline()
    ]
    return found


def test_a_simulation_elsewhere_has_the_same_result(process: SimulationProcess) -> None:
    assert process.simulate(SNAPSHOT, OBSERVED, TASK_IDS) == simulate_nights(
        SNAPSHOT, OBSERVED, TASK_IDS
    )


def test_one_process_serves_many_simulations_and_knows_no_secret(
    process: SimulationProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_HANDLER", "a secret")
    process.simulate(SNAPSHOT, OBSERVED, TASK_IDS)
    first = running_process()
    process.simulate(SNAPSHOT, OBSERVED, TASK_IDS)

    assert running_process() == first
    assert "SECRET_HANDLER" not in first.environ()


def test_after_its_end_another_process_is_started(process: SimulationProcess) -> None:
    process.simulate(SNAPSHOT, OBSERVED, TASK_IDS)
    first = running_process()
    os.kill(first.pid, signal.SIGKILL)
    wait_until(lambda: first.status() == psutil.STATUS_ZOMBIE, what="the end of the process")

    assert process.simulate(SNAPSHOT, OBSERVED, TASK_IDS).nights > 0
    assert running_process() != first


@pytest.mark.parametrize("tasks", [5, 50_000], ids=["small request", "more than a pipe holds"])
def test_a_process_without_a_result_is_killed_and_the_call_refused(
    process: SimulationProcess, tasks: int
) -> None:
    waiting = [
        WaitingTask(UUID(int=number), "ada", "echo", number, 3600) for number in range(tasks)
    ]
    snapshot = Snapshot([PoolState("default", 1)], [LANE], waiting=waiting)
    process.simulate(SNAPSHOT, OBSERVED, TASK_IDS)
    stopped = running_process()
    stopped.suspend()
    process.max_seconds = 0.1

    with pytest.raises(Overloaded, match="could not be computed now"):
        process.simulate(snapshot, OBSERVED, TASK_IDS)

    assert not stopped.is_running()


def test_closing_ends_the_process(process: SimulationProcess) -> None:
    process.simulate(SNAPSHOT, OBSERVED, TASK_IDS)
    running = running_process()

    process.close()

    assert not running.is_running()
