"""A simulation of the gate: which task starts when, if nobody submits anything more.

The simulation follows the rules of `fair_order.sql` and `claim.sql` without a database. Among users
with free room and hours, the one with the fewest active tasks comes first, then the one served
longest ago, then the one with the larger plan; within a user the stored order applies. A lock has
one holder, and a path lock includes all paths below it. A task's whole timeout must fit into what
is left of the month, and its estimated cost into what is left of the night's budget. Nothing starts
after its deadline or outside its user's window, and a pool takes only tasks whose capabilities and
type its workers have. Slots that become free at the same moment are filled one after the other.
Every run costs its estimate.

Not simulated: tasks submitted later, failures and retries, runs that are stopped when a window
closes, the priority that a deadline adds as it approaches, the budgets of tasks, graphs and agents,
bundles (short tasks start one by one, which occupies the slots equally long), and tasks that a pass
leaves to the next pass when it fills many slots at once.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from uuid import UUID

from overnight_server.domain.lock_keys import conflicting_keys
from overnight_server.forecast.durations import DurationSample

# The simulation ends here: after a whole billing month, in seconds from now.
HORIZON = 31 * 24 * 3600.0
# How many entries a pool's queue may have besides two for each lane.
QUEUE_SPACE = 64

User = Hashable
# What the gate distinguishes among one user's tasks: the required capabilities, the granted time,
# the estimated cost, and the type if not every pool has a handler for it.
TaskKind = tuple[frozenset[str], float, float, str]


@dataclass(frozen=True, slots=True)
class WaitingTask:
    """A task that has not started; it may start from `ready_in` until `start_by`, in seconds."""

    id: UUID
    user: User
    type: str
    sort_key: float
    granted: float
    locks: tuple[str, ...] = ()
    needs: frozenset[str] = frozenset()
    ready_in: float = 0.0
    start_by: float = inf
    usd: float = 0.0


@dataclass(frozen=True, slots=True)
class RunningTask:
    """A task that holds a claim; the members of a bundle share one slot."""

    id: UUID
    user: User
    type: str
    pool: str
    granted: float
    elapsed: float = 0.0
    locks: tuple[str, ...] = ()
    holds_slot: bool = True
    usd: float = 0.0


@dataclass(frozen=True, slots=True)
class PoolState:
    """A pool that is not paused: all its slots, and the capabilities that all its workers have.

    `types` are the only types that it accepts; None accepts all.
    """

    name: str
    slots: int
    capabilities: frozenset[str] = frozenset()
    types: frozenset[str] | None = None
    # The only user whose tasks it runs; None means all users.
    serves: User | None = None


@dataclass(frozen=True, slots=True)
class LaneState:
    """A user's lane as the gate sees it.

    `seconds_left` is what is left of the month's hours besides reserved ones, None without a limit;
    after `resets_in` seconds it is `month_seconds` again. `unread` is how many tasks wait behind
    those of the snapshot; they are simulated as copies of these. `weight` decides a tie, larger
    first. `opens` takes a moment and returns the first moment from then on at which the user's
    tasks may start. `usd_left` is what is left of the night's budget besides reserved amounts, None
    without a budget; after `night_ends_in` seconds each night has `night_usd`, and `next_night`
    takes a moment and returns when the next night after it begins.
    """

    user: User
    max_active: int
    served: float = 0.0
    weight: float = 0.0
    seconds_left: float | None = None
    month_seconds: float = 0.0
    resets_in: float = inf
    paused: bool = False
    unread: int = 0
    opens: Callable[[float], float] | None = None
    usd_left: float | None = None
    night_usd: float = 0.0
    night_ends_in: float = inf
    next_night: Callable[[float], float] | None = None


@dataclass(frozen=True)
class Snapshot:
    """The deployment at one instant; `edges` are the unsatisfied (parent, child) pairs."""

    pools: Sequence[PoolState]
    lanes: Sequence[LaneState]
    running: Sequence[RunningTask] = ()
    waiting: Sequence[WaitingTask] = ()
    edges: Sequence[tuple[UUID, UUID]] = ()
    slots_max: int | None = None


@dataclass(frozen=True, slots=True)
class RunInterval:
    """When a run starts and ends, in seconds from now."""

    start: float
    finish: float


@dataclass(frozen=True, slots=True)
class SimulatedNight:
    """The runs of one simulated night, the number of starts, and whether the night was cut off."""

    intervals: Mapping[UUID, RunInterval]
    starts: int
    is_cut: bool


class Simulation:
    """A snapshot prepared for the simulation of many nights."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        # Sorted so that the smaller number wins a tie, as the gate decides it by weight and id.
        self.lanes = sorted(snapshot.lanes, key=lambda lane: (-lane.weight, str(lane.user)))
        self.lane_of = {lane.user: number for number, lane in enumerate(self.lanes)}
        pools_of_user: dict[User | None, list[int]] = defaultdict(list)
        for index, pool in enumerate(snapshot.pools):
            pools_of_user[pool.serves].append(index)
        # The pools that serve each lane, in their order.
        self.lane_pools = [
            sorted({*pools_of_user.get(None, ()), *pools_of_user.get(lane.user, ())})
            for lane in self.lanes
        ]
        self.distinguished_types = frozenset[str]().union(
            *(pool.types or () for pool in snapshot.pools)
        )
        # In the order in which a user's tasks start, so that a task's number is its rank.
        self.tasks = sorted(
            (task for task in snapshot.waiting if task.user in self.lane_of),
            key=lambda task: (task.sort_key, str(task.id)),
        )
        self.task_lane = [self.lane_of[task.user] for task in self.tasks]
        self.number = {task.id: number for number, task in enumerate(self.tasks)}
        self.children: dict[UUID, list[int]] = defaultdict(list)
        self.unmet = [0] * len(self.tasks)
        for parent, child in snapshot.edges:
            if child in self.number:
                # A parent outside the snapshot never ends, so its child never starts.
                self.children[parent].append(self.number[child])
                self.unmet[self.number[child]] += 1

        self.ready: list[dict[TaskKind, list[int]]] = [{} for _ in self.lanes]
        self.later: list[int] = []
        for number, task in enumerate(self.tasks):
            if self.unmet[number] == 0 and task.ready_in <= 0:
                lane = self.task_lane[number]
                # Appended in ascending order, so that each list is already a heap.
                self.ready[lane].setdefault(self.kind(self.lanes[lane], task), []).append(number)
            elif self.unmet[number] == 0:
                self.later.append(number)

    def simulate_night(
        self,
        durations: DurationSample,
        tasks: Collection[UUID] | None = None,
        *,
        max_starts: float = inf,
    ) -> SimulatedNight:
        """Simulate one night until these tasks have started; without `tasks`, all of them.

        A task that is missing in the result did not start within HORIZON, or not among the first
        `max_starts` starts.
        """
        task_ids = self.number.keys() if tasks is None else tasks
        replay = _Replay(self, durations, max_starts)
        replay.run({self.number[task_id] for task_id in task_ids if task_id in self.number})
        return SimulatedNight(replay.intervals, replay.starts, is_cut=replay.starts >= max_starts)

    def kind(self, lane: LaneState, task: WaitingTask) -> TaskKind:
        """Return what the gate distinguishes about a task; tasks of one kind share a queue."""
        return (
            task.needs,
            # Without a limit on hours the granted time does not matter.
            0.0 if lane.seconds_left is None else task.granted,
            # Nor does the cost without a budget.
            0.0 if lane.usd_left is None else task.usd,
            task.type if task.type in self.distinguished_types else "",
        )


class _Lane:
    """A lane during one night: its startable tasks in heaps, one for each kind."""

    __slots__ = (
        "active",
        "heaps",
        "held",
        "left",
        "reserved",
        "reserved_usd",
        "reset_at",
        "served",
        "state",
        "unread",
        "usd_left",
        "version",
        "waiters",
    )

    def __init__(self, state: LaneState, ready: Mapping[TaskKind, list[int]]) -> None:
        self.state = state
        self.active = 0
        self.served = state.served
        self.left = inf if state.seconds_left is None else state.seconds_left
        self.reserved = 0.0
        self.usd_left = inf if state.usd_left is None else state.usd_left
        self.reserved_usd = 0.0
        self.reset_at = 0.0
        self.unread = state.unread
        self.version = 0
        # One queue for each kind of task: if the first task of a kind may not start now, no task of
        # that kind may.
        self.heaps = {kind: queue.copy() for kind, queue in ready.items()}
        self.held: set[str] = set()
        # The tasks that wait for a lock, separately for each kind: the first of one kind may have
        # to wait for something else while the first of another kind can start.
        self.waiters: dict[str, dict[TaskKind, list[int]]] = {}

    @property
    def has_room(self) -> bool:
        return self.active < self.state.max_active and self.left > 0 and self.usd_left > 0


class _Replay:
    """One simulated night: a heap of coming events, and per pool a heap of lanes in fair order."""

    def __init__(
        self, simulation: Simulation, durations: DurationSample, max_starts: float
    ) -> None:
        self.simulation = simulation
        self.durations = durations
        self.max_starts = max_starts
        self.starts = 0
        self.tasks = simulation.tasks
        self.task_count = len(simulation.tasks)
        self.lanes = [
            _Lane(state, ready)
            for state, ready in zip(simulation.lanes, simulation.ready, strict=True)
        ]
        self.unmet = simulation.unmet.copy()
        self.pools = simulation.snapshot.pools
        self.free = {pool.name: pool.slots for pool in self.pools}
        limit = simulation.snapshot.slots_max
        self.free_in_all_pools = inf if limit is None else limit
        self.queues: list[list[tuple[int, float, int, int]]] = [[] for _ in self.pools]
        self.longest_queue = QUEUE_SPACE + 2 * len(self.lanes)
        self.pool_index = {pool.name: index for index, pool in enumerate(self.pools)}
        # The pools that may start something: a lane or a slot of theirs has changed.
        self.changed_pools = set(range(len(self.pools)))
        self.event_counter = count()
        self.serve_counter = count(1)
        self.clock = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.intervals: dict[UUID, RunInterval] = {}

    def run(self, requested: set[int]) -> None:
        """Process events in the order of time until the requested tasks have started."""
        self._schedule_initial_events()
        self._fill(requested)
        while (
            requested
            and self.starts < self.max_starts
            and self.events
            and self.events[0][0] <= HORIZON
        ):
            self.clock = self.events[0][0]
            while self.events and self.events[0][0] == self.clock:
                heappop(self.events)[2]()
            self._fill(requested)

    def _schedule_initial_events(self) -> None:
        for run in self.simulation.snapshot.running:
            self._resume(run)
        for number in self.simulation.later:
            self._schedule(self.tasks[number].ready_in, partial(self._ready, number))
        for number, lane in enumerate(self.lanes):
            if lane.state.resets_in < inf and lane.state.seconds_left is not None:
                self._schedule(lane.state.resets_in, partial(self._new_month, number))
            if lane.state.night_ends_in < inf and lane.state.usd_left is not None:
                self._schedule(lane.state.night_ends_in, partial(self._new_night, number))
            self._enqueue_lane(number)

    def _resume(self, run: RunningTask) -> None:
        """Schedule the end of a run that has already started."""
        remaining = self.durations.remaining(run.type, run.granted, run.elapsed)
        if run.holds_slot:
            self.free[run.pool] = self.free.get(run.pool, 0) - 1
            self.free_in_all_pools -= 1
        number = self.simulation.lane_of.get(run.user)
        if number is not None:
            lane = self.lanes[number]
            lane.active += 1
            lane.reserved += run.granted
            lane.reserved_usd += run.usd
            lane.held.update(run.locks)
        self.intervals[run.id] = RunInterval(-run.elapsed, remaining)
        pool = run.pool if run.holds_slot else None
        self._schedule(remaining, partial(self._end, run, number, pool, -run.elapsed))

    def _schedule(self, at: float, action: Callable[[], None]) -> None:
        heappush(self.events, (at, next(self.event_counter), action))

    def _enqueue_task(self, lane_number: int, entry: int) -> None:
        """Add a task to the startable tasks of its lane."""
        lane = self.lanes[lane_number]
        task = self.tasks[entry % self.task_count]
        heappush(lane.heaps.setdefault(self.simulation.kind(lane.state, task), []), entry)

    def _enqueue_lane(self, number: int) -> None:
        """Add a lane to the heap of every pool that serves it; older entries become invalid."""
        lane = self.lanes[number]
        lane.version += 1
        if lane.has_room and not lane.state.paused:
            entry = (lane.active, lane.served, number, lane.version)
            for index in self.simulation.lane_pools[number]:
                heappush(self.queues[index], entry)
                if len(self.queues[index]) > self.longest_queue:
                    self._drop_invalid_entries(index)
                self.changed_pools.add(index)

    def _drop_invalid_entries(self, index: int) -> None:
        """Keep a queue short whose pool has no free slot for long: only one entry of a lane counts.

        Changed in place, because the caller may be filling this pool.
        """
        queue = self.queues[index]
        queue[:] = [entry for entry in queue if entry[3] == self.lanes[entry[2]].version]
        heapify(queue)

    def _fill(self, requested: set[int]) -> None:
        """Start tasks in the free slots of every pool, one pool after the other."""
        last = -1
        while later := [index for index in self.changed_pools if index > last]:
            last = min(later)
            pool, queue = self.pools[last], self.queues[last]
            while queue and self.free[pool.name] > 0 and self.free_in_all_pools > 0:
                _, _, number, version = heappop(queue)
                lane = self.lanes[number]
                if version != lane.version or self._is_window_closed(number):
                    continue
                heap = self._first_startable(number, pool)
                # A lane without a startable task for this pool comes back when it changes.
                if heap is not None:
                    self._start(number, heappop(heap), pool.name, requested)
                    if not requested or self.starts >= self.max_starts:
                        return
            if not queue or self.free[pool.name] <= 0:
                self.changed_pools.discard(last)

    def _is_window_closed(self, number: int) -> bool:
        """Return whether a user's window is closed; if so, enqueue the lane when it opens."""
        opens = self.lanes[number].state.opens
        at = self.clock if opens is None else opens(self.clock)
        if at <= self.clock:
            return False
        if at < inf:
            self._schedule(at, partial(self._enqueue_lane, number))
        return True

    def _first_startable(self, number: int, pool: PoolState) -> list[int] | None:
        """Return the heap whose top is the first task that may start now, or None."""
        lane = self.lanes[number]
        fitting = [
            heap
            for (needs, granted, usd, type_), heap in lane.heaps.items()
            if granted <= lane.left
            and usd <= lane.usd_left
            and needs <= pool.capabilities
            and (pool.types is None or type_ in pool.types)
        ]
        # A task that is set aside may release another one onto the top of any heap.
        while any(heap and self._remove_if_blocked(lane, number, heap) for heap in fitting):
            pass
        return min((heap for heap in fitting if heap), key=lambda heap: heap[0], default=None)

    def _remove_if_blocked(self, lane: _Lane, number: int, heap: list[int]) -> bool:
        """Remove the top if it waits for a lock or is past its deadline; return whether it does."""
        task = self.tasks[heap[0] % self.task_count]
        taken = [lock for lock in task.locks if conflicting_keys(lock, lane.held)]
        if task.start_by <= self.clock:
            heappop(heap)
        elif taken:
            kinds = lane.waiters.setdefault(taken[0], {})
            heappush(kinds.setdefault(self.simulation.kind(lane.state, task), []), heappop(heap))
        else:
            return False
        # A lock that became free may have released this task. The task does not start, so the next
        # waiter of that lock is released instead.
        for lock in task.locks:
            if lock not in taken:
                self._release_waiters(number, lock)
        return True

    def _release_waiters(self, number: int, lock: str) -> None:
        """Make the first task of each kind that waits for a lock startable."""
        waiters = self.lanes[number].waiters
        for kind, queue in waiters.pop(lock, {}).items():
            self._enqueue_task(number, heappop(queue))
            if queue:
                waiters.setdefault(lock, {})[kind] = queue

    def _start(self, number: int, entry: int, pool: str, requested: set[int]) -> None:
        lane = self.lanes[number]
        task = self.tasks[entry % self.task_count]
        seconds = self.durations.duration(task.type, task.granted)
        self.starts += 1
        lane.active += 1
        lane.left -= task.granted
        lane.reserved += task.granted
        lane.usd_left -= task.usd
        lane.reserved_usd += task.usd
        lane.served = next(self.serve_counter)
        lane.held.update(task.locks)
        self.free[pool] -= 1
        self.free_in_all_pools -= 1
        if lane.unread > 0:
            lane.unread -= 1
            self._enqueue_task(number, entry + self.task_count)
        started = self.clock
        # Numbers from `task_count` on stand for tasks that were not read.
        is_real = entry < self.task_count
        if is_real:
            self.intervals[task.id] = RunInterval(started, started + seconds)
            requested.discard(entry)
        end = partial(self._end, task, number, pool, started, is_real=is_real)
        self._schedule(started + seconds, end)
        self._enqueue_lane(number)

    def _end(
        self,
        task: RunningTask | WaitingTask,
        number: int | None,
        pool: str | None,
        started: float,
        *,
        is_real: bool = True,
    ) -> None:
        if pool is not None:
            self.free[pool] += 1
            self.free_in_all_pools += 1
            if pool in self.pool_index:
                self.changed_pools.add(self.pool_index[pool])
        if number is not None:
            lane = self.lanes[number]
            lane.active -= 1
            lane.reserved -= task.granted
            lane.reserved_usd -= task.usd
            # What the run used of this month stays charged; the rest of its reservation is freed.
            lane.left += task.granted - (self.clock - max(started, lane.reset_at))
            lane.held.difference_update(task.locks)
            for lock in task.locks:
                for waiting_lock in conflicting_keys(lock, lane.waiters):
                    self._release_waiters(number, waiting_lock)
            self._enqueue_lane(number)
        for child in self.simulation.children.get(task.id, ()) if is_real else ():
            self.unmet[child] -= 1
            if self.unmet[child] == 0:
                at = max(self.clock, self.tasks[child].ready_in)
                self._schedule(at, partial(self._ready, child))

    def _ready(self, number: int) -> None:
        lane = self.simulation.task_lane[number]
        self._enqueue_task(lane, number)
        self._enqueue_lane(lane)

    def _new_month(self, number: int) -> None:
        lane = self.lanes[number]
        lane.left = lane.state.month_seconds - lane.reserved
        lane.reset_at = self.clock
        self._enqueue_lane(number)

    def _new_night(self, number: int) -> None:
        lane = self.lanes[number]
        # What is reserved for runs of the last night is spent in the new one.
        lane.usd_left = lane.state.night_usd - lane.reserved_usd
        if lane.state.next_night is not None:
            self._schedule(lane.state.next_night(self.clock), partial(self._new_night, number))
        self._enqueue_lane(number)
