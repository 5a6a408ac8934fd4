"""Small pictures for tables: the life of a task on the common time axis of its page, and meters.

Lengths are attributes in percent, because the policy of the pages forbids styles in elements.
Thin is waiting, thick is work; the colour of work is how it ended.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from markupsafe import Markup

from overnight.models.tasks import TaskResponse
from overnight_server.dashboard.clocks import Clock, lasting
from overnight_server.dashboard.render import safe_text
from overnight_server.insight.task_rows import RowFacts

LONGEST = timedelta(hours=24)
SHORTEST = timedelta(minutes=10)
HEIGHT, THIN, THICK = 18, 4, 12
#: The narrowest mark that can still be seen, in percent.
NARROWEST = 0.8
#: How long apart ticks may be; the first that leaves at most five is taken.
STEPS = tuple(timedelta(minutes=minutes) for minutes in (2, 5, 15, 30, 60, 120, 180, 360))
MOST_TICKS = 5
#: The colour of a run by its outcome.
RUN_KINDS = {
    None: "run",
    "completed": "ok",
    "retrying": "warn",
    "suspended": "warn",
    "deferred": "warn",
    "expired": "idle",
    "released": "idle",
    "cancelled": "idle",
}


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


def life_line(task: TaskResponse, facts: RowFacts | None, axis: Axis, now: datetime) -> Markup:
    """Return the life of a task as a picture; the table says the same in words."""
    end = task.completed_at or now
    marks = [_mark("w-queue", axis, task.created_at, end, THIN)]
    runs = facts.runs if facts is not None else ()
    for run in runs:
        kind = RUN_KINDS.get(run.outcome, "bad")
        marks.append(_mark(f"b b-{kind}", axis, run.began, run.ended or now, THICK))
    label = f"{safe_text(task.title, 80)}: {_in_words(task, facts, now)}"
    return Markup('<svg class="life" height="{}" role="img" aria-label="{}">{}</svg>').format(
        HEIGHT, label, Markup().join(marks)
    )


def _in_words(task: TaskResponse, facts: RowFacts | None, now: datetime) -> str:
    whole = ((task.completed_at or now) - task.created_at).total_seconds()
    worked = min(facts.worked, whole) if facts is not None else 0.0
    return f"waited {lasting(whole - worked)}, worked {lasting(worked)}"


def _mark(kind: str, axis: Axis, begin: datetime, end: datetime, height: int) -> Markup:
    if end < axis.begin or begin > axis.end:
        return Markup()
    left = axis.place(begin)
    width = max(axis.place(end) - left, NARROWEST)
    return Markup('<rect class="{}" x="{}%" y="{}" width="{}%" height="{}" rx="{}"/>').format(
        kind, left, (HEIGHT - height) // 2, round(width, 2), height, 2 if height > THIN else 0
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
