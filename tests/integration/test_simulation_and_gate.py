"""The simulation compared with the gate: the same tasks start in the same order."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from heapq import heappop, heappush
from uuid import UUID

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overnight.models.enums import PlanTier
from overnight_server.domain.claims import Claimed
from overnight_server.domain.ids import UserId
from overnight_server.domain.results import Returned
from overnight_server.forecast.simulation import Simulation
from overnight_server.forecast.snapshot import read_forecast_input
from overnight_server.intake.new_graph import Edge, NewTask
from overnight_server.intake.submit import submit_graph
from tests.support.deployment import CLAIM_SETTINGS, LOOSE, POOL, Deployment
from tests.support.profiles import examples

# Deleting is much quicker than truncating tables that hold a few rows.
DELETE_ALL = "; ".join(
    f"DELETE FROM {table}"
    for table in (
        *("events", "usage_ledger", "attempts", "task_edges", "spending", "tasks", "dags", "lanes"),
        *("users", "agents", "pools"),
    )
)
GPU_POOL = "gpu"
MINUTE = 60
DAY = 24 * 60 * MINUTE


@dataclass(frozen=True)
class Job:
    """A task of a small deployment; its type gives its duration in minutes."""

    minutes: int
    priority: int
    project: str | None
    locks: Sequence[str]
    timeout: int
    needs_gpu: bool
    after: bool
    start_within: float | None
    usd: float | None

    def new(self, now: datetime) -> NewTask:
        within = self.start_within
        return NewTask(
            title="job",
            type=str(self.minutes),
            priority=self.priority,
            project_id=self.project,
            locks=self.locks,
            timeout_seconds=self.timeout * MINUTE,
            required_capabilities=["gpu"] if self.needs_gpu else [],
            deadline_at=None if within is None else now + timedelta(minutes=within),
            max_cost_usd=self.usd,
        )


@dataclass(frozen=True)
class Person:
    """A user of a small deployment; each job marked `after` waits for the one before it."""

    plan: PlanTier
    at_once: int
    hours: int | None
    night_usd: float | None
    jobs: Sequence[Job]

    def edges(self) -> list[Edge]:
        return [
            Edge(place - 1, place) for place, job in enumerate(self.jobs) if job.after and place > 0
        ]


jobs = st.builds(
    Job,
    minutes=st.integers(1, 40),
    priority=st.sampled_from([5, 20, 50, 70]),
    project=st.sampled_from([None, None, "red", "blue"]),
    locks=st.sampled_from(
        [
            *[()] * 5,
            *[("project:red",), ("project:red", "project:blue"), ("path:src", "project:blue")],
            *[("path:src",), ("path:src/a",), ("path:src/b", "path:docs"), ("path:.",)],
        ]
    ),
    timeout=st.sampled_from([45, 60, 90]),
    needs_gpu=st.sampled_from([False, False, False, True]),
    after=st.sampled_from([False, False, True]),
    # Nothing ends on a half minute, so no start falls on a deadline.
    start_within=st.sampled_from([None, None, None, 10.5, 60.5]),
    usd=st.sampled_from([None, None, 0.5, 1.0, 3.0]),
)
people = st.builds(
    Person,
    plan=st.sampled_from(PlanTier),
    at_once=st.integers(1, 3),
    hours=st.sampled_from([None, None, 3]),
    night_usd=st.sampled_from([None, None, 2.0]),
    jobs=st.lists(jobs, min_size=1, max_size=7),
)


class FixedDurations:
    """A night in which every run takes the minutes of its type."""

    def duration(self, type_: str, granted: float) -> float:
        return min(granted, float(type_) * MINUTE)

    def remaining(self, type_: str, granted: float, elapsed: float) -> float:
        return max(0.0, self.duration(type_, granted) - elapsed)


@dataclass
class GateNight:
    """The real gate on a night in which every run takes the minutes of its type."""

    deployment: Deployment
    clock: float = 0.0
    order: list[tuple[float, UUID]] = field(default_factory=list)
    ends: list[tuple[float, int, Claimed]] = field(default_factory=list)

    def play(self, pools: Sequence[str], *, next_night: float) -> list[tuple[float, UUID]]:
        """Let a day pass; a night that begins in it brings new money."""
        self._fill(pools)
        moments = [next_night]
        while self.ends or moments:
            self._pass_until(min([*moments, *(end for end, _, _ in self.ends[:1])]))
            moments = [moment for moment in moments if moment > self.clock]
            while self.ends and self.ends[0][0] == self.clock:
                self._end(heappop(self.ends)[2])
            self._fill(pools)
        return self.order

    def _fill(self, pools: Sequence[str]) -> None:
        for pool in pools:
            while taken := self.deployment.claim(pool=pool, limit=1).claims:
                [claimed] = taken
                self.order.append((self.clock, claimed.claim.task_id))
                end = self.clock + float(claimed.type) * MINUTE
                heappush(self.ends, (end, len(self.order), claimed))

    def _pass_until(self, moment: float) -> None:
        self.deployment.move_clock(timedelta(seconds=moment - self.clock))
        self.clock = moment

    def _end(self, claimed: Claimed) -> None:
        """Start and settle a run at its end, with the duration of its type."""
        seconds = float(claimed.type) * MINUTE
        self.deployment.run(
            "UPDATE tasks SET expires_at = clock() + interval '1 minute' WHERE id = :id",
            id=claimed.claim.task_id,
        )
        run = self.deployment.start(claimed)
        assert run is not None
        self.deployment.run(
            "UPDATE tasks SET started_at = clock() - make_interval(secs => :s) WHERE id = :id",
            s=seconds,
            id=claimed.claim.task_id,
        )
        cost = float(self.deployment.row(claimed.claim.task_id)["max_cost_usd"] or 0)
        assert self.deployment.settle(run, Returned(ran_seconds=seconds, cost_usd=cost))


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    crowd=st.lists(people, min_size=1, max_size=4),
    slots=st.integers(1, 4),
    gpu_slots=st.integers(0, 1),
    # The types whose minutes the workers of each pool know.
    types_of_pools=st.sampled_from(
        [(range(0), range(0)), (range(15), range(41)), (range(41), range(15))]
    ),
)
def test_the_simulation_starts_the_same_tasks_in_the_same_order_as_the_gate(
    deployment: Deployment,
    crowd: list[Person],
    slots: int,
    gpu_slots: int,
    types_of_pools: tuple[range, range],
) -> None:
    deployment.run(DELETE_ALL)
    pools = _pools(deployment, slots, gpu_slots, types_of_pools)
    users = [_move_in(deployment, person) for person in crowd]
    data = deployment.app.atomically(lambda tx: read_forecast_input(tx, users[0], CLAIM_SETTINGS))

    simulated = Simulation(data.snapshot).simulate_night(FixedDurations()).intervals
    [next_night] = {lane.night_ends_in for lane in data.snapshot.lanes}
    actual = GateNight(deployment).play(pools, next_night=next_night)

    # The simulation continues into further nights and the next month, with new budgets and hours.
    end = next_night + DAY
    tonight = [(span.start, task) for task, span in simulated.items() if span.start < end]
    assert tonight == [(start, task) for start, task in actual if start < end]


def _pools(
    deployment: Deployment, slots: int, gpu_slots: int, types_of_pools: tuple[range, range]
) -> list[str]:
    here, there = ([str(minutes) for minutes in types] for types in types_of_pools)
    deployment.agent(slots=slots, types=here)
    if not gpu_slots:
        return [POOL]
    deployment.agent(
        slots=gpu_slots, agent_id="gpu-host", pool=GPU_POOL, capabilities=["gpu"], types=there
    )
    return [POOL, GPU_POOL]


def _move_in(deployment: Deployment, person: Person) -> UserId:
    user = deployment.user(
        person.plan,
        max_concurrent_agents=person.at_once,
        max_task_duration_minutes=90,
        monthly_agent_hours_limit=person.hours,
        night_budget_usd=person.night_usd,
    )
    now = deployment.one("SELECT clock() AS now")["now"]
    tasks = [job.new(now) for job in person.jobs]
    submit_graph(deployment.app, user, tasks, LOOSE, edges=person.edges())
    return user
