"""The life of a task as segments: what it was in each moment, and if it waited, for what.

The segments tile the life: the first begins when the task was created, each begins where the one
before ends, and the last ends when the task ended, or now. A segment has one cause. While the task
waited, that is the narrowest of the reasons that held it: what would still hold if everything
wider were lifted, in the order in which explain reports reasons.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property
from operator import attrgetter
from typing import Any

from overnight_server.domain.lifecycle import FINAL, WAITING, State
from overnight_server.domain.reasons import ReasonCode, ReasonScope

# A beginning and an end; None is an end that has not come.
Span = tuple[datetime, datetime | None]


class SegmentKind(StrEnum):
    """What happened to a task in a segment."""

    WAITING = "waiting"
    CLAIMED = "claimed"
    RUNNING = "running"
    CHECKING = "checking"
    ENDED = "ended"


# The order in which explain reports reasons, from the narrowest to the widest. A reason that may
# concern a task or a wider scope stands here once for each.
NARROWNESS = (
    (ReasonScope.TASK, ReasonCode.DEPENDENCY),
    (ReasonScope.TASK, ReasonCode.START_AT),
    (ReasonScope.TASK, ReasonCode.RETRY_AT),
    (ReasonScope.TASK, ReasonCode.APPROVAL),
    (ReasonScope.TASK, ReasonCode.STATE),
    (ReasonScope.TASK, ReasonCode.DEADLINE),
    (ReasonScope.TASK, ReasonCode.BUDGET),
    (ReasonScope.TASK, ReasonCode.LOCK),
    (ReasonScope.USER, ReasonCode.BUDGET),
    (ReasonScope.USER, ReasonCode.PLAN_CONCURRENCY),
    (ReasonScope.USER, ReasonCode.MONTHLY_HOURS),
    (ReasonScope.USER, ReasonCode.WINDOW),
    (ReasonScope.USER, ReasonCode.PAUSED),
    (ReasonScope.DEPLOYMENT, ReasonCode.BUDGET),
    (ReasonScope.DEPLOYMENT, ReasonCode.NO_WORKER),
    (ReasonScope.DEPLOYMENT, ReasonCode.NO_CAPABLE_AGENT),
    (ReasonScope.DEPLOYMENT, ReasonCode.HANDLER),
    (ReasonScope.DEPLOYMENT, ReasonCode.SLOTS),
    (ReasonScope.DEPLOYMENT, ReasonCode.SLOTS_MAX),
    (ReasonScope.DEPLOYMENT, ReasonCode.PAUSED),
    (ReasonScope.DEPLOYMENT, ReasonCode.BEHIND),
)
_RANK = {pair: rank for rank, pair in enumerate(NARROWNESS)}

_KINDS = {
    State.CLAIMED: SegmentKind.CLAIMED,
    State.RUNNING: SegmentKind.RUNNING,
    State.VALIDATING: SegmentKind.CHECKING,
}


@dataclass(frozen=True)
class Holder:
    """Who or what held a task, or ran it."""

    kind: str
    id: str
    title: str | None = None


@dataclass(frozen=True)
class Hold:
    """A time in which one reason held a task."""

    code: ReasonCode
    scope: ReasonScope
    since: datetime
    until: datetime | None = None
    holder: Holder | None = None
    clears_at: datetime | None = None
    details: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @cached_property
    def rank(self) -> int:
        """The place among reasons, from the narrowest to the widest."""
        return _RANK[self.scope, self.code]

    @property
    def is_narrower_than_slots(self) -> bool:
        """Whether it would be reported before the reason that no slot was free."""
        return self.rank < _RANK[ReasonScope.DEPLOYMENT, ReasonCode.SLOTS]


@dataclass(frozen=True)
class StateChange:
    """A change of a task's state."""

    at: datetime
    state: State
    epoch: int = 0
    reason: str | None = None


@dataclass(frozen=True)
class Segment:
    """A part of a task's life with one cause.

    `hold` is None if the task did not wait, or if nothing but its turn was missing.
    """

    kind: SegmentKind
    code: ReasonCode
    since: datetime
    until: datetime
    epoch: int
    state: State
    hold: Hold | None = None
    also: tuple[ReasonCode, ...] = ()
    reason: str | None = None

    @property
    def length(self) -> timedelta:
        """How long it is."""
        return self.until - self.since


def kind_of(state: State) -> SegmentKind:
    """Return what happens to a task in a state."""
    if state in FINAL:
        return SegmentKind.ENDED
    return SegmentKind.WAITING if state in WAITING else _KINDS[state]


def tile_life(
    created_at: datetime, until: datetime, moves: Sequence[StateChange], holds: Iterable[Hold]
) -> list[Segment]:
    """Return the segments from `created_at` to `until`, without gap or overlap.

    `moves` are in order; instants that were recorded a moment too early or too late are moved to
    the nearest legal one.
    """
    return cut_life(state_segments(created_at, until, moves), holds)


def cut_life(states: Sequence[Segment], holds: Iterable[Hold]) -> list[Segment]:
    """Return a life that is known by state, with the cause of each wait."""
    known = sorted(holds, key=lambda hold: (hold.since, hold.rank))
    return list(_joined(_cut(states, known)))


def state_segments(
    created_at: datetime, until: datetime, moves: Sequence[StateChange]
) -> list[Segment]:
    """Return one segment for each state that the task was in, as yet without causes."""
    return list(_stretches(created_at, until, moves))


def clip(
    spans: Iterable[Span], since: datetime, until: datetime
) -> list[tuple[datetime, datetime]]:
    """Return the parts of the spans between two instants, without empty ones.

    >>> noon = datetime(2026, 11, 16, 12)
    >>> hour = timedelta(hours=1)
    >>> clip([(noon - hour, None)], noon, noon + hour) == [(noon, noon + hour)]
    True
    """
    # A night clips tens of thousands of spans, and comparing is faster than calling max and min.
    parts = []
    for span_begin, span_end in spans:
        begin = max(since, span_begin)
        end = until if span_end is None or span_end > until else span_end
        if begin < end:
            parts.append((begin, end))
    return parts


def times_at_least(
    spans: Iterable[tuple[datetime, datetime]], limits: Sequence[tuple[datetime, datetime, int]]
) -> list[tuple[datetime, datetime]]:
    """Return when at least as many spans overlap as the limit of that time allows.

    `limits` are consecutive periods with the limit of each.

    >>> t = [datetime(2026, 11, 16, hour) for hour in range(6)]
    >>> times_at_least([(t[0], t[3]), (t[2], t[5])], [(t[0], t[5], 2)]) == [(t[2], t[3])]
    True
    """
    full = (
        (begin, end)
        for begin, end, weight, limit in weigh_times([(*span, 1) for span in spans], limits)
        if weight >= limit
    )
    return bridge(full)


def bridge(
    periods: Iterable[tuple[datetime, datetime]], gap: timedelta = timedelta(seconds=1)
) -> list[tuple[datetime, datetime]]:
    """Return ordered periods as few longer ones; gaps shorter than `gap` are passed over.

    Between the end of one run and the start of the next there are some milliseconds, in which
    nobody could say that a slot was free.
    """
    found: list[tuple[datetime, datetime]] = []
    for begin, end in periods:
        if found and begin - found[-1][1] < gap:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def without(
    periods: Iterable[tuple[datetime, datetime]], taken: Iterable[Span]
) -> list[tuple[datetime, datetime]]:
    """Return the parts of the periods that no taken span covers."""
    free: list[tuple[datetime, datetime]] = []
    blocks = sorted(taken, key=lambda span: span[0])
    for begin, end in periods:
        at = begin
        for since, until in blocks:
            if since >= end or at >= end:
                break
            if since > at:
                free.append((at, since))
            at = end if until is None else max(at, until)
        if at < end:
            free.append((at, end))
    return free


def weigh_times(
    weights: Iterable[tuple[datetime, datetime, float]],
    limits: Sequence[tuple[datetime, datetime, float]],
) -> Iterator[tuple[datetime, datetime, float, float]]:
    """Yield each period of the limits in parts with the sum of the weights in force."""
    changes: list[tuple[datetime, float]] = []
    for begin, end, weight in weights:
        changes += [(begin, weight), (end, -weight)]
    changes.sort(key=lambda change: change[0])
    position, total = 0, 0.0
    for begin, end, limit in limits:
        at = begin
        while True:
            while position < len(changes) and changes[position][0] <= at:
                total += changes[position][1]
                position += 1
            following = changes[position][0] if position < len(changes) else end
            stop = min(end, following)
            if at < stop:
                yield at, stop, total, limit
            if stop >= end:
                break
            at = stop


_rank_of = attrgetter("rank")


def _stretches(
    created_at: datetime, until: datetime, moves: Sequence[StateChange]
) -> Iterator[Segment]:
    """Yield one segment for each state the task was in."""
    begin = created_at
    for number, move in enumerate(moves):
        following = moves[number + 1].at if number + 1 < len(moves) else until
        end = min(max(following, begin), until)
        if number + 1 == len(moves):
            end = until
        if begin < end:
            kind = kind_of(move.state)
            yield Segment(
                kind, ReasonCode.STATE, begin, end, move.epoch, move.state, reason=move.reason
            )
        begin = max(begin, end)


def _cut(stretches: Sequence[Segment], holds: Sequence[Hold]) -> Iterator[Segment]:
    """Yield the stretches, those of waiting in parts with the narrowest reason of each."""
    position, active = 0, list[Hold]()
    for stretch in stretches:
        if stretch.kind is not SegmentKind.WAITING:
            yield stretch
            continue
        at = stretch.since
        while at < stretch.until:
            while position < len(holds) and holds[position].since <= at:
                active.append(holds[position])
                position += 1
            active = [hold for hold in active if hold.until is None or hold.until > at]
            ends = [hold.until for hold in active if hold.until is not None]
            begins = [holds[position].since] if position < len(holds) else []
            end = min([stretch.until, *ends, *begins])
            yield _with_cause(stretch, at, end, active)
            at = end


def _with_cause(
    stretch: Segment, since: datetime, until: datetime, active: Sequence[Hold]
) -> Segment:
    """Return a part of a stretch of waiting with its cause; it is built once, not in two steps."""
    kind, state, epoch = stretch.kind, stretch.state, stretch.epoch
    if not active:
        code = ReasonCode.BEHIND if state is State.READY else _CODE_OF_STATE[state]
        return Segment(kind, code, since, until, epoch, state, reason=stretch.reason)
    first, *others = sorted(active, key=_rank_of) if len(active) > 1 else active
    codes = dict.fromkeys(hold.code for hold in others if hold.code is not first.code)
    return Segment(
        kind, first.code, since, until, epoch, state, first, tuple(codes), stretch.reason
    )


# The reason of a waiting task of which nothing else is known.
_CODE_OF_STATE = {
    State.CREATED: ReasonCode.STATE,
    State.PENDING: ReasonCode.STATE,
    State.RETRYING: ReasonCode.RETRY_AT,
}


def _joined(segments: Iterable[Segment]) -> Iterator[Segment]:
    """Yield the segments; neighbours with one cause become one."""
    last: Segment | None = None
    for segment in segments:
        if last is not None and _is_same(last, segment):
            also = dict.fromkeys((*last.also, *segment.also))
            last = replace(last, until=segment.until, also=tuple(also))
            continue
        if last is not None:
            yield last
        last = segment
    if last is not None:
        yield last


def _is_same(one: Segment, other: Segment) -> bool:
    """Whether two neighbours have one cause; the last hold of a row of equal ones is shown."""
    if (one.kind, one.code, one.epoch) != (other.kind, other.code, other.epoch):
        return False
    if one.kind is not SegmentKind.WAITING:
        return one.state is other.state
    holders = [None if part.hold is None else part.hold.holder for part in (one, other)]
    return holders[0] == holders[1]
