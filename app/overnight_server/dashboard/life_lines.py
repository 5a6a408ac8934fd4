"""Small pictures for tables: the life of a task on the common time axis of its page, and meters.

Lengths are attributes in percent, because the policy of the pages forbids styles in elements.
Thin is waiting, thick is work; the colour of a wait is its cause, that of work how it ended.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from markupsafe import Markup

from overnight.models.nights import LifeSegment, TaskLife
from overnight.models.tasks import TaskResponse
from overnight_server.dashboard.clocks import Clock, lasting
from overnight_server.dashboard.render import safe_text
from overnight_server.dashboard.waterfall import WORK, kind_of
from overnight_server.dashboard.words import CAUSES
from overnight_server.domain.life import SegmentKind

LONGEST = timedelta(hours=24)
SHORTEST = timedelta(minutes=10)
HEIGHT, THIN, THICK = 18, 4, 12
#: The narrowest mark that can still be seen, in percent.
NARROWEST = 0.8
#: How long apart ticks may be; the first that leaves at most five is taken.
STEPS = tuple(timedelta(minutes=minutes) for minutes in (2, 5, 15, 30, 60, 120, 180, 360))
MOST_TICKS = 5
#: Causes that the label of a life line names.
MOST_CAUSES = 3


@dataclass(frozen=True)
class Axis:
    """The time that a column of life lines shows."""

    begin: datetime
    end: datetime

    def place(self, instant: datetime) -> float:
        """Return where an instant lies, in percent of the width."""
        share = (instant - self.begin) / (self.end - self.begin)
        return round(min(max(share, 0.0), 1.0) * 100, 2)

    @property
    def key(self) -> str:
        """The axis as text, so that a row can be drawn again on the same axis."""
        return f"{int(self.begin.timestamp())}.{int(self.end.timestamp())}"

    @classmethod
    def of_key(cls, text: str, now: datetime) -> "Axis":
        """Return the axis of such a text; for any other text, the last day."""
        begin, _, end = text.partition(".")
        if begin.isdecimal() and end.isdecimal() and len(text) < MAX_KEY and int(begin) < int(end):
            return cls(*(datetime.fromtimestamp(int(at), tz=now.tzinfo) for at in (begin, end)))
        return cls(now - LONGEST, now)


MAX_KEY = 30


def axis_of(tasks: Iterable[TaskResponse], now: datetime) -> Axis:
    """Return the axis of a page: from its first task to its last change, at most a day."""
    spans = [(task.created_at, task.completed_at or now) for task in tasks]
    end = max((until for _, until in spans), default=now)
    begin = min((since for since, _ in spans), default=end - LONGEST)
    begin = min(max(begin, end - LONGEST), end - SHORTEST)
    # A little room, so that the last mark can be seen whole.
    return Axis(begin, end + (end - begin) / 50)


def ticks(axis: Axis, clock: Clock) -> Markup:
    """Return the hours above a column of life lines."""
    span = axis.end - axis.begin
    step = next((step for step in STEPS if span / step <= MOST_TICKS), STEPS[-1])
    local = clock.local(axis.begin)
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
    at = midnight + ((local - midnight) // step + 1) * step
    words = []
    whole_hours = step >= timedelta(hours=1)
    while at < axis.end:
        text = f"{at:%H}" if whole_hours else f"{at:%H:%M}"
        words.append(
            Markup('<text class="tick" x="{}%" y="13">{}</text>').format(axis.place(at), text)
        )
        at += step
    return Markup('<svg class="life" height="18" aria-hidden="true">{}</svg>').format(
        Markup().join(words)
    )


def life_line(life: TaskLife | None, axis: Axis) -> Markup:
    """Return the life of a task as a picture, each wait in the colour of its cause.

    Its label says the same in words.
    """
    if life is None:
        return Markup()
    marks = [_rect(mark, axis) for mark in _marks(life.segments, axis)]
    whole = (life.until - life.created_at).total_seconds()
    worked = sum(segment.seconds for segment in life.segments if segment.kind in WORK)
    waited = lasting(max(0.0, whole - worked))
    words = f"waited {waited}{_causes(life.segments, axis)}, worked {lasting(worked)}"
    return Markup('<svg class="life" height="{}" role="img" aria-label="{}">{}</svg>').format(
        HEIGHT, f"{safe_text(life.title, 80)}: {words}", Markup().join(marks)
    )


def kinds_of_waits(life: TaskLife | None, axis: Axis) -> set[str]:
    """Return the kinds of the waits that are drawn, for the legend."""
    return {CAUSES[one.code].kind for one, _ in _waits(() if life is None else life.segments, axis)}


def _waits(segments: Sequence[LifeSegment], axis: Axis) -> Iterator[tuple[LifeSegment, timedelta]]:
    """Yield the waits that are drawn, with how long they are on the axis."""
    for segment in segments:
        since, until = max(segment.since, axis.begin), min(segment.until, axis.end)
        if segment.kind == SegmentKind.WAITING and since < until:
            yield segment, until - since


def _causes(segments: Sequence[LifeSegment], axis: Axis) -> str:
    """Return the causes of the waits that are drawn, the longest first."""
    seconds: dict[str, float] = defaultdict(float)
    for segment, length in _waits(segments, axis):
        seconds[CAUSES[segment.code].name] += length.total_seconds()
    names = sorted(seconds, key=lambda name: -seconds[name])[:MOST_CAUSES]
    words = [f"{name[0].lower()}{name[1:]} {lasting(seconds[name])}" for name in names]
    return f" ({', '.join(words)})" if words else ""


class _Mark(NamedTuple):
    """A part of a life line with one colour."""

    kind: str
    begin: datetime
    end: datetime
    is_wait: bool


def _marks(segments: Sequence[LifeSegment], axis: Axis) -> list[_Mark]:
    """Return what is drawn of a life: its runs, and its waits by the cause that took most of each.

    Causes can change many times within a width that can be seen; such waits become one mark.
    """
    marks: list[_Mark] = []
    waits: list[_Mark] = []
    shortest = (axis.end - axis.begin) * NARROWEST / 100
    for segment in segments:
        begin, end = max(segment.since, axis.begin), min(segment.until, axis.end)
        if begin > end:
            continue
        is_wait = segment.kind == SegmentKind.WAITING
        mark = _Mark(kind_of(segment), begin, end, is_wait)
        if is_wait:
            waits.append(mark)
            if end - waits[0].begin >= shortest:
                _add_wait(marks, waits, shortest)
        # A way to a worker is drawn only if it took a second.
        elif segment.kind != SegmentKind.CLAIMED or segment.seconds >= 1:
            _add_wait(marks, waits, shortest)
            marks.append(mark)
    _add_wait(marks, waits, shortest)
    return marks


def _add_wait(marks: list[_Mark], waits: list[_Mark], shortest: timedelta) -> None:
    """Add waits that follow each other as one mark, or to the wait before them; empty the list."""
    if not waits:
        return
    lengths: dict[str, timedelta] = defaultdict(timedelta)
    for wait in waits:
        lengths[wait.kind] += wait.end - wait.begin
    kind = max(lengths, key=lambda kind: lengths[kind])
    begin, end = waits[0].begin, waits[-1].end
    waits.clear()
    last = marks[-1] if marks else None
    is_joined = last is not None and last.is_wait and last.end == begin
    if last is not None and is_joined and (last.kind == kind or end - begin < shortest):
        marks[-1] = last._replace(end=end)
    else:
        marks.append(_Mark(kind, begin, end, is_wait=True))


def _rect(mark: _Mark, axis: Axis) -> Markup:
    left = axis.place(mark.begin)
    width = round(max(axis.place(mark.end) - left, NARROWEST), 2)
    height = THIN if mark.is_wait else THICK
    top, radius = (HEIGHT - height) // 2, 0 if mark.is_wait else 2
    return Markup(  # noqa: S704 - numbers and the name of a class
        f'<rect class="{mark.kind}" x="{left}%" y="{top}" width="{width}%"'
        f' height="{height}" rx="{radius}"/>'
    )


class Share(NamedTuple):
    """A part of a meter: its kind (`used`, `held`, `ok`, …) and its share of the whole, 0 to 1."""

    kind: str
    share: float


def meter(shares: Sequence[Share | tuple[str, float]], label: str, height: int = 8) -> Markup:
    """Return a bar of shares; the label says all of it."""
    marks, left = [], 0.0
    for kind, share in shares:
        width = min(max(share, 0.0) * 100, 100 - left)
        if width <= 0:
            continue
        marks.append(
            Markup('<rect class="s-{}" x="{}%" width="{}%" height="{}"/>').format(
                kind, round(left, 2), round(width, 2), height
            )
        )
        left += width
    return Markup(
        '<svg class="meter" height="{}" role="img" aria-label="{}">'
        '<rect class="track" width="100%" height="{}"/>{}</svg>'
    ).format(height, label, height, Markup().join(marks))
