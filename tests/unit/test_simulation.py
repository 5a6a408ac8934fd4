"""The simulation alone: small nights with known results."""

from collections.abc import Mapping, Sequence
from math import inf
from random import Random
from typing import Any
from uuid import UUID

import pytest

from overnight_server.forecast.distribution import FEWEST_NIGHTS, NIGHTS, quantile, simulate_nights
from overnight_server.forecast.durations import ObservedDurations
from overnight_server.forecast.simulation import (
    HORIZON,
    LaneState,
    PoolState,
    RunningTask,
    Simulation,
    Snapshot,
    WaitingTask,
    _Replay,
)

ADA, BOB = UUID(int=1), UUID(int=2)
HOUR = 3600.0
GPU = frozenset({"gpu"})


class FixedDurations:
    """A night in which every run takes the seconds of its type."""

    def duration(self, type_: str, granted: float) -> float:
        return min(granted, float(type_))

    def remaining(self, type_: str, granted: float, elapsed: float) -> float:
        return max(0.0, self.duration(type_, granted) - elapsed)


def task(number: int, user: UUID = ADA, seconds: float = 10, **fields: Any) -> WaitingTask:
    told = {"sort_key": float(number), "granted": HOUR, **fields}
    return WaitingTask(UUID(int=number), user, str(seconds), **told)


def lane(user: UUID = ADA, max_active: int = 10, **fields: Any) -> LaneState:
    return LaneState(user, max_active, **fields)


def starts(
    waiting: Sequence[WaitingTask],
    lanes: Sequence[LaneState] = (lane(),),
    *,
    slots: int = 1,
    pools: Sequence[PoolState] | None = None,
    **fields: Any,
) -> Mapping[int, float]:
    """Simulate one night and return when each task started, by its number."""
    pools = pools if pools is not None else [PoolState("default", slots)]
    played = Simulation(Snapshot(pools, lanes, waiting=waiting, **fields)).simulate_night(
        FixedDurations()
    )
    return {name.int: span.start for name, span in played.intervals.items()}


def test_tasks_start_in_their_users_order_as_slots_become_free() -> None:
    assert starts([task(3), task(1), task(2)], slots=2) == {1: 0, 2: 0, 3: 10}


def test_the_user_with_fewest_running_goes_first() -> None:
    crowd = [*(task(number) for number in range(10, 20)), task(99, BOB)]

    begun = starts(crowd, [lane(ADA), lane(BOB)], slots=2)

    assert begun[99] == 0
    assert sorted(begun.values())[:2] == [0, 0]


def test_a_task_past_its_deadline_never_starts_and_blocks_nothing() -> None:
    late = task(2, start_by=10.0, locks=("project:red",))

    assert starts([task(1), late, task(3, locks=("project:red",))]) == {1: 0, 3: 10}
    assert starts([task(1), task(2, start_by=10.5)]) == {1: 0, 2: 10}


def test_among_equals_the_one_served_longest_ago_goes_first() -> None:
    lanes = [lane(ADA, served=-1), lane(BOB, served=-2)]

    assert starts([task(11), task(12, BOB)], lanes) == {12: 0, 11: 10}


def test_among_users_never_served_the_larger_plan_goes_first() -> None:
    assert starts([task(11), task(12, BOB)], [lane(ADA), lane(BOB, weight=2)]) == {12: 0, 11: 10}


def test_a_user_gets_no_more_at_once_than_the_plan_allows() -> None:
    assert starts([task(1), task(2), task(3)], [lane(max_active=2)], slots=9) == {1: 0, 2: 0, 3: 10}


def test_a_lock_is_held_by_one_task_at_a_time() -> None:
    red = [task(number, locks=("red",)) for number in (1, 2, 3)]

    assert starts([*red, task(4)], slots=9) == {1: 0, 4: 0, 2: 10, 3: 20}


def test_a_task_that_waits_for_two_locks_blocks_nothing() -> None:
    jobs = [
        task(1, seconds=30, locks=("red",)),
        task(2, seconds=5, locks=("blue",)),
        task(3, locks=("blue", "red")),
        task(4, locks=("blue",)),
    ]

    assert starts(jobs, slots=9) == {1: 0, 2: 0, 4: 5, 3: 30}


def test_a_path_lock_includes_paths_below_it_only() -> None:
    jobs = [
        task(1, locks=("path:src",)),
        task(2, locks=("path:src/a",)),
        task(3, locks=("path:src/b",)),
        task(4, locks=("path:srcs",)),
        task(5, locks=("path:.",)),
        task(6, locks=("path:src/a/deep",)),
    ]

    assert starts(jobs, slots=9) == {1: 0, 4: 0, 2: 10, 3: 10, 5: 20, 6: 30}


def test_a_lock_goes_to_the_first_task_that_may_start() -> None:
    """Job 2 is next, but its worker has become busy meanwhile: job 3 need not wait for that."""
    jobs = [
        task(1, seconds=30, locks=("red",)),
        task(2, locks=("red",), needs=GPU),
        task(3, locks=("red",)),
        task(4, BOB, seconds=60, needs=GPU, ready_in=10),
    ]
    pools = [PoolState("default", 1), PoolState("gpu", 1, GPU)]

    begun = starts(jobs, [lane(ADA), lane(BOB)], pools=pools)

    assert begun == {1: 0, 4: 10, 3: 30, 2: 70}


def test_a_task_without_hours_waits_for_the_next_month() -> None:
    month = lane(seconds_left=HOUR, month_seconds=10 * HOUR, resets_in=1000)

    begun = starts([task(1), task(2), task(3, granted=HOUR / 2)], [month], slots=1)

    assert begun == {1: 0, 3: 10, 2: 1000}


def test_a_pool_takes_only_tasks_with_its_capabilities() -> None:
    jobs = [task(1, needs=GPU), task(2), task(3, needs=frozenset({"moon"}))]
    pools = [PoolState("default", 1), PoolState("gpu", 1, GPU)]

    assert starts(jobs, pools=pools) == {2: 0, 1: 0}


def test_a_task_without_budget_waits_for_the_next_night() -> None:
    rich = lane(
        usd_left=2.0, night_usd=2.0, night_ends_in=1000, next_night=lambda moment: moment + 500
    )
    jobs = [task(1, usd=1.5), task(2, usd=1.0), task(3, usd=0.5), task(4, usd=3.0), task(5)]

    begun = starts(jobs, [rich], slots=5)

    # The third task uses up the night budget, so even a free task waits for the next night.
    assert begun == {1: 0, 3: 0, 2: 1000, 5: 1000}


def test_a_pool_leaves_types_to_pools_with_a_handler() -> None:
    pools = [PoolState("default", 1, types=frozenset({"10"})), PoolState("studio", 1)]
    jobs = [task(1, seconds=60), task(2, seconds=60), task(3)]

    assert starts(jobs, pools=pools) == {3: 0, 1: 0, 2: 60}


def test_the_cap_on_all_slots_applies() -> None:
    assert starts([task(1), task(2)], slots=9, slots_max=1) == {1: 0, 2: 10}


def test_a_running_task_occupies_slot_lock_and_plan_room() -> None:
    run = RunningTask(UUID(int=7), ADA, "100", "default", HOUR, elapsed=60, locks=("red",))
    jobs = [task(1, locks=("red",)), task(2), task(3)]

    begun = starts(jobs, [lane(max_active=2)], slots=9, running=[run])

    assert begun == {7: -60, 2: 0, 3: 10, 1: 40}


def test_a_child_waits_for_its_last_parent_and_forever_for_an_unknown_one() -> None:
    edges = [(UUID(int=1), UUID(int=3)), (UUID(int=2), UUID(int=3)), (UUID(int=0), UUID(int=4))]
    jobs = [task(1), task(2, seconds=25), task(3), task(4)]

    assert starts(jobs, slots=9, edges=edges) == {1: 0, 2: 0, 3: 25}


def test_a_retry_waits_until_due_and_a_task_until_the_window_opens() -> None:
    night = lane(BOB, opens=lambda moment: max(moment, 500.0))

    assert starts([task(1, ready_in=90), task(2, BOB)], [lane(), night]) == {1: 90, 2: 500}


def test_a_paused_user_and_a_deployment_without_workers_start_nothing() -> None:
    assert starts([task(1)], [lane(paused=True)]) == {}
    assert starts([task(1)], pools=[]) == {}


def test_unread_tasks_are_simulated_as_copies() -> None:
    """Bob's nine unread tasks alternate with Ada's."""
    lanes = [lane(ADA), lane(BOB, unread=9)]
    jobs = [*(task(number) for number in range(10, 14)), task(99, BOB)]

    begun = starts(jobs, lanes)

    assert [begun[number] for number in (10, 11, 12, 13)] == [0, 20, 40, 60]
    assert begun[99] == 10


def test_a_night_is_cut_off_after_the_maximum_of_starts() -> None:
    snapshot = Snapshot([PoolState("default", 1)], [lane()], waiting=[task(n) for n in range(9)])

    played = Simulation(snapshot).simulate_night(FixedDurations(), max_starts=4)

    assert (len(played.intervals), played.starts, played.is_cut) == (4, 4, True)


def test_a_night_ends_when_all_requested_tasks_have_started() -> None:
    snapshot = Snapshot([PoolState("default", 1)], [lane()], waiting=[task(n) for n in range(9)])

    played = Simulation(snapshot).simulate_night(FixedDurations(), [UUID(int=2)])

    assert (played.starts, played.is_cut) == (3, False)


def test_nothing_is_simulated_beyond_the_horizon() -> None:
    jobs = [task(1, seconds=HORIZON, granted=HORIZON * 9), task(2), task(3)]

    assert starts(jobs) == {1: 0, 2: HORIZON}


def test_a_type_without_observed_runs_takes_its_whole_timeout() -> None:
    history = ObservedDurations({"known": [5.0, 6.0], "empty": []})
    night = history.sample(Random(1))

    assert night.duration("new", 600) == night.duration("empty", 600) == 600
    assert night.remaining("new", 600, 200) == 400
    assert [history.has_runs_of(type_) for type_ in ("known", "empty", "new")] == [
        True,
        False,
        False,
    ]


def test_a_run_never_takes_longer_than_its_timeout() -> None:
    night = ObservedDurations({"slow": [500.0]}).sample(Random(1))

    assert night.duration("slow", 60) == 60
    assert night.remaining("slow", 60, 50) <= 10


def test_a_running_task_takes_the_rest_of_a_longer_observed_run() -> None:
    night = ObservedDurations({"mixed": [10.0] * 20 + [1000.0] * 20}).sample(Random(1))

    rests = [night.remaining("mixed", HOUR, 100) for _ in range(20)]

    assert all(rest > 300 for rest in rests)


def test_a_run_longer_than_all_observed_may_take_as_long_again() -> None:
    night = ObservedDurations({"quick": [10.0]}).sample(Random(1))

    assert all(0 <= night.remaining("quick", HOUR, 100) <= 100 for _ in range(20))


def test_few_observed_runs_make_a_wide_band() -> None:
    def width(seen: Sequence[float]) -> float:
        jobs = [task(number) for number in range(1, 20)]
        jobs = [WaitingTask(job.id, ADA, "echo", job.sort_key, HOUR) for job in jobs]
        snapshot = Snapshot([PoolState("default", 1)], [lane()], waiting=jobs)
        distribution = simulate_nights(snapshot, ObservedDurations({"echo": seen}), [UUID(int=19)])
        low, high = (distribution.start(UUID(int=19), share) for share in (0.1, 0.9))
        assert low is not None
        assert high is not None
        return high - low

    assert width([60.0]) > 2 * width([60.0] * 100)


def test_the_same_snapshot_gives_the_same_forecast() -> None:
    jobs = [WaitingTask(UUID(int=n), ADA, "echo", n, HOUR) for n in range(5)]
    snapshot = Snapshot([PoolState("default", 1)], [lane()], waiting=jobs)
    history = ObservedDurations({"echo": [1.0, 9.0, 30.0]})
    job_ids = [job.id for job in jobs]

    assert simulate_nights(snapshot, history, job_ids) == simulate_nights(
        snapshot, history, job_ids
    )


def test_a_large_queue_is_simulated_in_fewer_nights() -> None:
    def nights(many: int) -> int:
        jobs = [WaitingTask(UUID(int=n), ADA, "echo", n, HOUR) for n in range(many)]
        lanes = [lane(max_active=many)]
        snapshot = Snapshot([PoolState("default", many)], lanes, waiting=jobs)
        return simulate_nights(snapshot, ObservedDurations({}), [jobs[-1].id]).nights

    assert nights(5) == NIGHTS
    assert nights(6_000) == FEWEST_NIGHTS


def test_how_many_finish_in_time_is_counted_night_by_night() -> None:
    jobs = [WaitingTask(UUID(int=n), ADA, "echo", n, HOUR) for n in range(4)]
    snapshot = Snapshot([PoolState("default", 1)], [lane()], waiting=jobs)
    distribution = simulate_nights(snapshot, ObservedDurations({}), [job.id for job in jobs])

    assert distribution.finished_by(3 * HOUR, 0.9) == 3
    assert distribution.finished_by(HOUR / 2, 0.5) == 0


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([1.0, 2.0, 3.0], 0.5, 2.0),
        ([1.0, 3.0], 0.5, 2.0),
        ([1.0], 0.9, 1.0),
        ([1.0, inf], 0.5, None),
        ([1.0, 2.0, inf], 0.5, 2.0),
        ([1.0, 2.0, 3.0, 4.0], 0.25, 1.25),
        ([inf, inf], 0.1, None),
    ],
)
def test_a_quantile_beyond_all_nights_is_unknown(
    values: list[float], share: float, expected: float | None
) -> None:
    assert quantile(values, share) == expected


def test_a_pool_without_a_free_slot_keeps_its_queue_short() -> None:
    pools = [PoolState("default", 1), PoolState("never free", 0)]
    waiting = [task(number, seconds=1) for number in range(1, 500)]
    simulation = Simulation(Snapshot(pools, [lane()], waiting=waiting))
    replay = _Replay(simulation, FixedDurations(), inf)

    replay.run(set(range(len(waiting))))

    assert replay.starts == len(waiting)
    assert max(map(len, replay.queues)) <= replay.longest_queue


def test_a_pool_is_queued_only_for_the_lanes_that_it_serves() -> None:
    pools = [PoolState("shared", 1), *(PoolState(f"of bob {n}", 1, serves=BOB) for n in range(9))]
    simulation = Simulation(Snapshot(pools, [lane(ADA), lane(BOB)]))

    assert [len(pools) for pools in simulation.lane_pools] == [1, 10]
