"""The picture of a night: a row for each slot of the plan, and below it what waited and for what.

Thick is work, hatched is an empty slot; a tooltip on each says what it was.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

from markupsafe import Markup

from overnight.models.nights import SlotPiece, UserNight, WaitingCount
from overnight_server.dashboard.clocks import Clock
from overnight_server.dashboard.life_lines import Axis
from overnight_server.dashboard.render import safe_text
from overnight_server.dashboard.words import CAUSES

TOP, ROW, BAR = 26, 31, 25
AREA = 62
#: How long a number of waiting tasks is drawn if there is only one.
SHORT = timedelta(minutes=15)
#: The widest label of a bar, in letters per percent of the width.
LETTERS_PER_PERCENT = 1.3
LEAST_LETTERS = 4
MOST_SLOTS = 16
HOURS = (1, 2, 3, 4, 6)
MOST_TICKS = 12
#: The colour of a run by its outcome; what has another outcome has failed.
KINDS = {
    "completed": "ok",
    "running": "run",
    "suspended": "warn",
    "released": "warn",
    "rate_limited": "warn",
    "expired": "warn",
    "deferred": "warn",
    "cancelled": "warn",
    "retrying": "warn",
}


def draw_night(night: UserNight, clock: Clock) -> Markup:
    """Return the picture of a night; the results beside it say the same in words."""
    axis = Axis(night.opens_at, max(night.closes_at, night.opens_at + timedelta(minutes=1)))
    slots = night.slots[:MOST_SLOTS]
    end = TOP + ROW * max(len(slots), 1)
    area_top = end + 30
    height = area_top + AREA + 4
    parts = [_rect(axis, axis.begin, axis.end, TOP - 4, height - TOP + 4, "sky", 4)]
    parts.append(_hours(axis, clock, height))
    for place, slot in enumerate(slots):
        top = TOP + place * ROW
        parts += [_piece(axis, piece, top, clock) for piece in slot.pieces]
    parts.append(_waiting(night, axis, area_top))
    for marker in night.markers[:6]:
        x = axis.place(marker.at)
        words = f"{clock.text(marker.at)} {safe_text(marker.text, 60)}"
        anchor, shift = ("end", -5) if x > 50 else ("start", 5)  # noqa: PLR2004 - the middle
        parts.append(
            Markup(
                '<line class="mark-line" x1="{x}%" x2="{x}%" y1="{top}" y2="{low}"/>'
                '<svg x="{x}%" overflow="visible"><text class="mark-text opt" x="{shift}"'
                ' y="{text}" text-anchor="{anchor}">{words}</text></svg>'
            ).format(
                x=x,
                top=TOP - 4,
                low=end + 18,
                shift=shift,
                text=end + 15,
                anchor=anchor,
                words=words,
            )
        )
    if not night.is_over:
        x = axis.place(clock.now)
        parts.append(
            Markup('<line class="now-line" x1="{0}%" x2="{0}%" y1="{1}" y2="{2}"/>').format(
                x, TOP - 8, height
            )
        )
    tally = night.tally
    label = f"{tally.done} of {tally.total} tasks done in {len(night.slots)} slots"
    return Markup('<svg class="chart" role="group" aria-label="{}" height="{}">{}</svg>').format(
        label, height, Markup().join(parts)
    )


def slot_names(night: UserNight) -> Markup:
    """Return the names of the rows, beside the picture."""
    number = min(len(night.slots), MOST_SLOTS)
    names = [
        Markup('<text class="tick" x="0" y="{}">Slot {}</text>').format(
            TOP + 17 + place * ROW, place + 1
        )
        for place in range(number)
    ]
    waiting = TOP + ROW * max(number, 1) + 30 + AREA // 2
    names.append(Markup('<text class="tick" x="0" y="{}">Waiting</text>').format(waiting))
    height = waiting + AREA // 2 + 4
    return Markup('<svg height="{}" aria-hidden="true">{}</svg>').format(
        height, Markup().join(names)
    )


def _piece(axis: Axis, piece: SlotPiece, top: int, clock: Clock) -> Markup:
    span = f"{clock.text(piece.since)} to {clock.text(piece.until)}"
    if piece.is_idle:
        words = f"{span}: slot free, {safe_text(piece.text, 120)}"
        return _rect(axis, piece.since, piece.until, top + 3, BAR - 6, "gap", 3, words)
    kind = KINDS.get(piece.code, "bad")
    title = safe_text(piece.title, 120)
    words = f"{title}: {span}, {safe_text(piece.text, 120)}"
    bar = _rect(axis, piece.since, piece.until, top, BAR, f"b q q-{kind}", 3, words)
    left = axis.place(piece.since)
    room = int((axis.place(piece.until) - left) * LETTERS_PER_PERCENT)
    label = Markup()
    if room >= LEAST_LETTERS:
        text = title if len(title) <= room else f"{title[: room - 1]}…"
        label = Markup(
            '<svg x="{}%" overflow="visible"><text class="bar-label on-{}" x="7" y="{}">'
            "{}</text></svg>"
        ).format(left, kind, top + 17, text)
    address = f"/tasks/{piece.task_id}" if piece.task_id else "/tasks"
    return Markup('<a href="{}" aria-label="{}">{}{}</a>').format(address, words, bar, label)


def _waiting(night: UserNight, axis: Axis, top: int) -> Markup:
    """Draw how many tasks waited, stacked by cause."""
    counts = night.waiting
    most = max((sum(one.by_code.values()) for one in counts), default=0)
    if not most:
        return Markup()
    parts = [_pile(axis, pile) for pile in _piles(counts, top, AREA / most)]
    parts.append(Markup('<text class="tick" x="0" y="{}">{} waiting</text>').format(top - 8, most))
    return Markup().join(parts)


class Pile(NamedTuple):
    """How many tasks waited for one cause, during a time in which that did not change."""

    code: str
    since: datetime
    until: datetime
    top: float
    height: float


def _piles(counts: Sequence[WaitingCount], top: int, scale: float) -> list[Pile]:
    """Return the area below the picture: equal neighbours are one, because a night has hundreds."""
    steps = [after.at - before.at for before, after in pairwise(counts)]
    ends = [*(one.at for one in counts[1:]), counts[-1].at + min(steps, default=SHORT)]
    done: list[Pile] = []
    last: dict[str, Pile] = {}
    for one, end in zip(counts, ends, strict=True):
        y = float(top + AREA)
        current: dict[str, Pile] = {}
        for code, number in one.by_code.items():
            y -= number * scale
            pile = Pile(code, one.at, end, y, number * scale)
            before = last.pop(code, None)
            if before is not None and before.until == one.at and before[3:] == pile[3:]:
                pile = pile._replace(since=before.since)
            elif before is not None:
                done.append(before)
            current[code] = pile
        done += last.values()
        last = current
    return [*done, *last.values()]


def _pile(axis: Axis, pile: Pile) -> Markup:
    kind = CAUSES[pile.code].kind if pile.code in CAUSES else "queue"
    return _rect(axis, pile.since, pile.until, pile.top, pile.height, f"pile w-{kind}", 0)


def _hours(axis: Axis, clock: Clock, height: int) -> Markup:
    span = (axis.end - axis.begin).total_seconds() / 3600
    step = next((hours for hours in HOURS if span / hours <= MOST_TICKS), HOURS[-1])
    at = clock.local(axis.begin).replace(minute=0, second=0, microsecond=0)
    marks: list[Markup] = []
    while at <= axis.end:
        if at >= axis.begin:
            x = axis.place(at)
            marks.append(
                Markup(
                    '<line class="grid" x1="{x}%" x2="{x}%" y1="{top}" y2="{height}"/>'
                    '<svg x="{x}%" overflow="visible"><text class="tick{odd}" x="0" y="13"'
                    ' text-anchor="middle">{text}</text></svg>'
                ).format(
                    x=x,
                    top=TOP - 4,
                    height=height,
                    text=f"{at:%H:%M}",
                    odd=" odd" if len(marks) % 3 else "",
                )
            )
        at += timedelta(hours=step)
    return Markup().join(marks)


def _rect(  # noqa: PLR0917 - a rectangle with its tooltip
    axis: Axis,
    begin: datetime,
    end: datetime,
    top: float,
    height: float,
    kind: str,
    radius: int,
    words: str = "",
) -> Markup:
    left = axis.place(begin)
    width = max(round(axis.place(end) - left, 3), 0.15)
    title = Markup("<title>{}</title>").format(words) if words else Markup()
    corners = Markup(' rx="{}"').format(radius) if radius else Markup()
    return Markup(
        '<rect class="{}" x="{}%" y="{:.1f}" width="{}%" height="{:.1f}"{}>{}</rect>'
    ).format(kind, left, top, width, height, corners, title)


def worked_share(night: UserNight) -> float:
    """Return how much of the plan's time was worked, from 0 to 1."""
    return night.work_seconds / night.plan_seconds if night.plan_seconds else 0.0
