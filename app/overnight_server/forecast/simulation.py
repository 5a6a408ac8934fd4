"""The gate simulated: what would start when, if nobody submitted anything more.

The rules are those of `claim.sql`, replayed without a database: among users with room and hours
the fewest active first, then the longest since served, then the larger plan; inside a user the
stored order; one holder per lock, and per path with all below it; a task's whole timeout must fit
what is left of the month and its estimate what is left of the night's budget; nothing starts past
its deadline or outside of its user's window; a pool takes only what its workers can do and know.
Slots that fall free at the same moment are filled one after the other. Runs are taken to cost their
estimate. Not simulated: work that comes in later, failures and retries, runs that a window calls
back, the urgency that a deadline adds as it nears, the budgets of tasks, graphs and agents, bundles
(quick tasks pass one by one, which takes the slots as long), and what a pass that fills many slots
at once leaves to the next.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf
from uuid import UUID

from overnight_server.domain.locks import in_the_way
from overnight_server.forecast.durations import Night

# Nothing is foretold beyond this: a whole billing month, in seconds from now.
HORIZON = 31 * 24 * 3600.0

User = Hashable
# What the gate tells apart among one user's tasks: the capabilities needed, the time granted, the
# money thought to be needed, and a type that not every pool knows.
Kind = tuple[frozenset[str], float, float, str]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A task that has not started; it may between `ready_in`, for a retry, and its deadline."""

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
class Running:
    """A task that holds its claim; members of one bundle hold one slot between them."""

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
    """A pool that is open: its slots, free or not, and what all of its workers can do.

    `elsewhere` are the types it leaves to workers that know them.
    """

    name: str
    slots: int
    capabilities: frozenset[str] = frozenset()
    elsewhere: frozenset[str] = frozenset()
    # The only user it works for, if there is one.
    serves: User | None = None


@dataclass(frozen=True, slots=True)
class LaneState:
    """What the gate knows of a user.

    `seconds_left` is what the month still holds beyond what is reserved, None without limit;
    `month_seconds` comes back at `resets_in`. `unread` tasks wait behind those of the
    snapshot and are taken to be like them. `weight` settles a tie, the heavier first. `opens`
    returns the first moment, not before the one it is given, at which this user's tasks may start.
    `usd_left` is what the night's budget holds beyond what is promised, None without one; from
    `night_ends_in` on each night has `night_usd`, and `next_night` returns the first moment after
    the one it is given at which another begins.
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
    """The state at one instant; `edges` are (parent, child) pairs that are not satisfied yet."""

    pools: Sequence[PoolState]
    lanes: Sequence[LaneState]
    running: Sequence[Running] = ()
    waiting: Sequence[Waiting] = ()
    edges: Sequence[tuple[UUID, UUID]] = ()
    slots_max: int | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """When a task starts and when its run ends, in seconds from now."""

    start: float
    finish: float


@dataclass(frozen=True, slots=True)
class Played:
    """One night: what started in it, how many starts that took, and whether those were cut off."""

    spans: Mapping[UUID, Span]
    starts: int
    is_cut: bool


class Simulation:
    """A snapshot made ready to be replayed many times."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        # Numbered so that a lane's number settles the ties the gate settles by weight and id.
        self.lanes = sorted(snapshot.lanes, key=lambda lane: (-lane.weight, str(lane.user)))
        self.lane_of = {lane.user: number for number, lane in enumerate(self.lanes)}
        self.told_apart = frozenset[str]().union(*(pool.elsewhere for pool in snapshot.pools))
        # In the order a user's tasks are taken, so that a task's number is its rank.
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
                # A parent nobody knows of never ends here, and so its child never starts.
                self.children[parent].append(self.number[child])
                self.unmet[self.number[child]] += 1

        self.ready: list[dict[Kind, list[int]]] = [{} for _ in self.lanes]
        self.later: list[int] = []
        for number, task in enumerate(self.tasks):
            if self.unmet[number] == 0 and task.ready_in <= 0:
                lane = self.task_lane[number]
                # Appended in order, so that each list is a heap already.
                self.ready[lane].setdefault(self.kind(self.lanes[lane], task), []).append(number)
            elif self.unmet[number] == 0:
                self.later.append(number)

    def play(
        self, night: Night, asked: Collection[UUID] | None = None, *, most: float = inf
    ) -> Played:
        """Replay one night until the asked tasks (all, if none is named) have started.

        What is missing in the answer did not start within the horizon, or not among the first
        `most` starts.
        """
        names = self.number.keys() if asked is None else asked
        play = _Play(self, night, most)
        play.run({self.number[name] for name in names if name in self.number})
        return Played(play.spans, play.starts, is_cut=play.starts >= most)

    def kind(self, lane: LaneState, task: Waiting) -> Kind:
        """Return what the gate sees of a task; those it cannot tell apart share a queue."""
        return (
            task.needs,
            # Without a limit on hours no task is too long.
            0.0 if lane.seconds_left is None else task.granted,
            # Nor too dear without a budget.
            0.0 if lane.usd_left is None else task.usd,
            task.type if task.type in self.told_apart else "",
        )


class _Lane:
    """A lane during a replay: its tasks in heaps, one for each kind the gate tells apart."""

    __slots__ = (
        "active",
        "heaps",
        "held",
        "left",
        "promised_usd",
        "reserved",
        "reset_at",
        "served",
        "state",
        "unread",
        "usd_left",
        "version",
        "waiters",
    )

    def __init__(self, state: LaneState, ready: Mapping[Kind, list[int]]) -> None:
        self.state = state
        self.active = 0
        self.served = state.served
        self.left = inf if state.seconds_left is None else state.seconds_left
        self.reserved = 0.0
        self.usd_left = inf if state.usd_left is None else state.usd_left
        self.promised_usd = 0.0
        self.reset_at = 0.0
        self.unread = state.unread
        self.version = 0
        # A whole kind that does not fit is passed over at once, however long its queue.
        self.heaps = {kind: queue.copy() for kind, queue in ready.items()}
        self.held: set[str] = set()
        # Who waits for a key, apart for each kind: the first of one kind may have to stay while
        # the first of another may go.
        self.waiters: dict[str, dict[Kind, list[int]]] = {}

    @property
    def has_room(self) -> bool:
        return self.active < self.state.max_active and self.left > 0 and self.usd_left > 0


class _Play:
    """One replay: a heap of what happens next, and for each pool a heap of lanes in fair order."""

    def __init__(self, rehearsal: Simulation, night: Night, most: float) -> None:
        self.stage = rehearsal
        self.night = night
        self.most = most
        self.starts = 0
        self.tasks = rehearsal.tasks
        self.many = len(rehearsal.tasks)
        self.lanes = [
            _Lane(state, ready)
            for state, ready in zip(rehearsal.lanes, rehearsal.ready, strict=True)
        ]
        self.unmet = rehearsal.unmet.copy()
        self.pools = rehearsal.snapshot.pools
        self.free = {pool.name: pool.slots for pool in self.pools}
        limit = rehearsal.snapshot.slots_max
        self.free_in_all_pools = inf if limit is None else limit
        self.queues: list[list[tuple[int, float, int, int]]] = [[] for _ in self.pools]
        self.serial = count()
        self.turn = count(1)
        self.clock = 0.0
        self.ahead: list[tuple[float, int, Callable[[], None]]] = []
        self.spans: dict[UUID, Span] = {}

    def run(self, asked: set[int]) -> None:
        """Let the night pass."""
        self._set_the_scene()
        self._fill(asked)
        while asked and self.starts < self.most and self.ahead and self.ahead[0][0] <= HORIZON:
            self.clock = self.ahead[0][0]
            while self.ahead and self.ahead[0][0] == self.clock:
                heappop(self.ahead)[2]()
            self._fill(asked)

    def _set_the_scene(self) -> None:
        for run in self.stage.snapshot.running:
            self._resume(run)
        for number in self.stage.later:
            self._later(self.tasks[number].ready_in, partial(self._ready, number))
        for number, lane in enumerate(self.lanes):
            if lane.state.resets_in < inf and lane.state.seconds_left is not None:
                self._later(lane.state.resets_in, partial(self._new_month, number))
            if lane.state.night_ends_in < inf and lane.state.usd_left is not None:
                self._later(lane.state.night_ends_in, partial(self._new_night, number))
            self._queue(number)

    def _resume(self, run: Running) -> None:
        """Take up a run that is under way."""
        rest = self.night.rest(run.type, run.granted, run.elapsed)
        if run.holds_slot:
            self.free[run.pool] = self.free.get(run.pool, 0) - 1
            self.free_in_all_pools -= 1
        number = self.stage.lane_of.get(run.user)
        if number is not None:
            lane = self.lanes[number]
            lane.active += 1
            lane.reserved += run.granted
            lane.promised_usd += run.usd
            lane.held.update(run.locks)
        self.spans[run.id] = Span(-run.elapsed, rest)
        pool = run.pool if run.holds_slot else None
        self._later(rest, partial(self._end, run, number, pool, -run.elapsed))

    def _later(self, at: float, happens: Callable[[], None]) -> None:
        heappush(self.ahead, (at, next(self.serial), happens))

    def _offer(self, lane_number: int, entry: int) -> None:
        """Put a task where the gate will find it."""
        lane = self.lanes[lane_number]
        task = self.tasks[entry % self.many]
        heappush(lane.heaps.setdefault(self.stage.kind(lane.state, task), []), entry)

    def _queue(self, number: int) -> None:
        """Something about a lane has changed: every pool may look into it again."""
        lane = self.lanes[number]
        lane.version += 1
        if lane.has_room and not lane.state.paused:
            place = (lane.active, lane.served, number, lane.version)
            for pool, queue in zip(self.pools, self.queues, strict=True):
                if pool.serves is None or pool.serves == lane.state.user:
                    heappush(queue, place)

    def _fill(self, asked: set[int]) -> None:
        """Fill the free slots of every pool in turn."""
        for pool, queue in zip(self.pools, self.queues, strict=True):
            while queue and self.free[pool.name] > 0 and self.free_in_all_pools > 0:
                _, _, number, version = heappop(queue)
                lane = self.lanes[number]
                if version != lane.version or self._is_shut(number):
                    continue
                heap = self._first(number, pool)
                # A lane with nothing for this pool steps aside until something changes.
                if heap is not None:
                    self._start(number, heappop(heap), pool.name, asked)
                    if not asked or self.starts >= self.most:
                        return

    def _is_shut(self, number: int) -> bool:
        """Whether a user's window is closed; the lane comes back when it opens."""
        opens = self.lanes[number].state.opens
        at = self.clock if opens is None else opens(self.clock)
        if at <= self.clock:
            return False
        if at < inf:
            self._later(at, partial(self._queue, number))
        return True

    def _first(self, number: int, pool: PoolState) -> list[int] | None:
        """Return the heap on whose top stands the first task that may start now."""
        lane = self.lanes[number]
        fit = [
            heap
            for (needs, granted, usd, type_), heap in lane.heaps.items()
            if granted <= lane.left
            and usd <= lane.usd_left
            and needs <= pool.capabilities
            and type_ not in pool.elsewhere
        ]
        # Whoever steps aside may let another in, on top of any of the heaps.
        while any(heap and self._steps_aside(lane, number, heap) for heap in fit):
            pass
        return min((heap for heap in fit if heap), key=lambda heap: heap[0], default=None)

    def _steps_aside(self, lane: _Lane, number: int, heap: list[int]) -> bool:
        """Whether the top may not go: it waits for a lock, out of the way, or came too late."""
        task = self.tasks[heap[0] % self.many]
        taken = [lock for lock in task.locks if in_the_way(lock, lane.held)]
        if task.start_by <= self.clock:
            heappop(heap)
        elif taken:
            kinds = lane.waiters.setdefault(taken[0], {})
            heappush(kinds.setdefault(self.stage.kind(lane.state, task), []), heappop(heap))
        else:
            return False
        # It may have been woken for another lock, whose next waiter must not sleep on.
        for lock in task.locks:
            if lock not in taken:
                self._wake(number, lock)
        return True

    def _wake(self, number: int, lock: str) -> None:
        """Offer the first of each kind that wait for a lock; the others wait for those."""
        waiters = self.lanes[number].waiters
        for kind, queue in waiters.pop(lock, {}).items():
            self._offer(number, heappop(queue))
            if queue:
                waiters.setdefault(lock, {})[kind] = queue

    def _start(self, number: int, entry: int, pool: str, asked: set[int]) -> None:
        lane = self.lanes[number]
        task = self.tasks[entry % self.many]
        seconds = self.night.run(task.type, task.granted)
        self.starts += 1
        lane.active += 1
        lane.left -= task.granted
        lane.reserved += task.granted
        lane.usd_left -= task.usd
        lane.promised_usd += task.usd
        lane.served = next(self.turn)
        lane.held.update(task.locks)
        self.free[pool] -= 1
        self.free_in_all_pools -= 1
        if lane.unread > 0:
            lane.unread -= 1
            self._offer(number, entry + self.many)
        started = self.clock
        # Numbers from `many` on are stand-ins for tasks that were not read.
        is_real = entry < self.many
        if is_real:
            self.spans[task.id] = Span(started, started + seconds)
            asked.discard(entry)
        end = partial(self._end, task, number, pool, started, is_real=is_real)
        self._later(started + seconds, end)
        self._queue(number)

    def _end(
        self,
        task: Running | Waiting,
        number: int | None,
        pool: str | None,
        started: float,
        *,
        is_real: bool = True,
    ) -> None:
        if pool is not None:
            self.free[pool] += 1
            self.free_in_all_pools += 1
        if number is not None:
            lane = self.lanes[number]
            lane.active -= 1
            lane.reserved -= task.granted
            lane.promised_usd -= task.usd
            # The month pays for what was used of it, and gets the rest of the promise back.
            lane.left += task.granted - (self.clock - max(started, lane.reset_at))
            lane.held.difference_update(task.locks)
            for lock in task.locks:
                for wanted in in_the_way(lock, lane.waiters):
                    self._wake(number, wanted)
            self._queue(number)
        for child in self.stage.children.get(task.id, ()) if is_real else ():
            self.unmet[child] -= 1
            if self.unmet[child] == 0:
                at = max(self.clock, self.tasks[child].ready_in)
                self._later(at, partial(self._ready, child))

    def _ready(self, number: int) -> None:
        lane = self.stage.task_lane[number]
        self._offer(lane, number)
        self._queue(lane)

    def _new_month(self, number: int) -> None:
        lane = self.lanes[number]
        lane.left = lane.state.month_seconds - lane.reserved
        lane.reset_at = self.clock
        self._queue(number)

    def _new_night(self, number: int) -> None:
        lane = self.lanes[number]
        # What was promised to runs of the last night is spent in the new one.
        lane.usd_left = lane.state.night_usd - lane.promised_usd
        if lane.state.next_night is not None:
            self._later(lane.state.next_night(self.clock), partial(self._new_night, number))
        self._queue(number)
