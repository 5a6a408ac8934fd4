"""In a night of 2,000 tasks of 50 users, most start within their forecast band."""

from dataclasses import dataclass
from random import Random
from uuid import UUID

import pytest

from overnight_server.forecast import distribution
from overnight_server.forecast.distribution import simulate_nights
from overnight_server.forecast.durations import ObservedDurations
from overnight_server.forecast.simulation import (
    LaneState,
    PoolState,
    RunningTask,
    Simulation,
    Snapshot,
    WaitingTask,
)

TASKS, USERS, SLOTS, SEEN = 2_000, 50, 40, 100
TIMEOUT = 7_200.0


@dataclass(frozen=True)
class TrueDurations:
    """The true durations of each type, unknown to the forecast."""

    random: Random
    spread: dict[str, tuple[float, float]]

    def duration(self, type_: str, granted: float) -> float:
        return min(granted, self.random.lognormvariate(*self.spread[type_]))

    def remaining(self, type_: str, granted: float, elapsed: float) -> float:
        while (seconds := self.duration(type_, granted)) <= elapsed:
            pass
        return seconds - elapsed


def make_true_durations(random: Random) -> TrueDurations:
    """Eight types, from half a minute to ten minutes at the median, some nearly steady."""
    return TrueDurations(
        random, {f"t{n}": (random.uniform(3.4, 6.4), random.uniform(0.3, 1)) for n in range(8)}
    )


def make_snapshot(random: Random, truth: TrueDurations) -> Snapshot:
    """Users on different plans, some with long queues; a third of the tasks share projects."""
    users = [UUID(int=random.getrandbits(128)) for _ in range(USERS)]
    weights = [random.paretovariate(1.2) for _ in users]
    waiting = [
        WaitingTask(
            id=UUID(int=random.getrandbits(128)),
            user=random.choices(users, weights)[0],
            type=random.choice(list(truth.spread)),
            sort_key=random.random(),
            granted=TIMEOUT,
            locks=(f"project:{random.randrange(5)}",) if random.random() < 0.33 else (),
        )
        for _ in range(TASKS)
    ]
    running = [
        RunningTask(UUID(int=n), random.choice(users), "t0", "default", TIMEOUT, elapsed=20.0)
        for n in range(10)
    ]
    lanes = [LaneState(user, random.choice([3, 10, 50]), served=-random.random()) for user in users]
    return Snapshot([PoolState("default", SLOTS)], lanes, running, waiting)


# These seeds are for this test only: NIGHTLY_DRIFT was chosen with other seeds, from 0 on.
@pytest.mark.parametrize("seed", [100, 101, 102])
def test_four_of_five_tasks_start_within_their_band(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distribution, "ENOUGH_STARTS", TASKS * distribution.NIGHTS)
    random = Random(seed)
    truth = make_true_durations(random)
    simulation = Simulation(make_snapshot(random, truth))
    observed = ObservedDurations(
        {type_: [truth.duration(type_, TIMEOUT) for _ in range(SEEN)] for type_ in truth.spread}
    )
    tasks = [task.id for task in simulation.tasks]

    forecast = simulate_nights(simulation.snapshot, observed, tasks)
    night = simulation.simulate_night(truth).intervals

    inside = sum(
        (forecast.start(task, 0.1) or 0) <= night[task].start <= (forecast.start(task, 0.9) or 0)
        for task in tasks
    )
    assert forecast.nights == distribution.NIGHTS
    assert inside >= 0.8 * TASKS
