"""The life of a task, row by row: thin is waiting, thick is work; long waits are folded.

The strip above the rows is to scale, so that nobody is misled by a fold.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from overnight.models.nights import CauseTotal, LifeSegment, TaskLife
from overnight_server.dashboard.clocks import Clock, lasting
from overnight_server.dashboard.render import safe_text
from overnight_server.dashboard.words import CAUSES
from overnight_server.domain.life import SegmentKind

#: No wait gets more of the width than that, as long as there is work to show.
MOST_OF_A_WAIT = 0.13
LEAST = 0.008
MOST_ROWS = 60
STRIP, ROW = 8, 26
THIN, THICK = 6, 18
WORK = {SegmentKind.RUNNING, SegmentKind.CHECKING}
#: The colour and the sign of a run by its outcome.
OUTCOMES = {
    "completed": ("ok", "completed"),
    "retrying": ("warn", "retrying"),
    "released": ("idle", "retrying"),
    "suspended": ("warn", "retrying"),
    "deferred": ("warn", "retrying"),
    "expired": ("idle", "retrying"),
    "cancelled": ("idle", "cancelled"),
    None: ("run", "running"),
}


@dataclass(frozen=True)
class Row:
    """One part of the life: its texts, its sign or swatch, and its bar."""

    is_work: bool
    sign: str
    label: str
    note: str
    begin: Markup
    lasted: str
    svg: Markup


@dataclass(frozen=True)
class CauseShare:
    """How much of the life one cause took."""

    label: str
    lasted: str
    svg: Markup


@dataclass(frozen=True)
class Waterfall:
    """The drawn life of a task."""

    whole: str
    begin: Markup
    end: Markup
    strip: Markup
    rows: Sequence[Row]
    left_out: int
    shares: Sequence[CauseShare]
    is_folded: bool


def draw_life(life: TaskLife, clock: Clock) -> Waterfall:
    """Return the picture of a life."""
    # A way to a worker is drawn only if it took a second.
    segments = [
        one
        for one in life.segments
        if one.seconds >= (1 if one.kind == SegmentKind.CLAIMED else 0.001)
    ]
    shown = segments[-MOST_ROWS:]
    widths, folded = _widths(shown)
    lefts = [sum(widths[:place]) for place in range(len(widths))]
    folds = Markup().join(
        Markup('<line class="foldline" x1="{0}%" x2="{0}%" y1="0" y2="{1}"/>').format(
            _percent(left + width / 2), ROW
        )
        for left, width, is_folded in zip(lefts, widths, folded, strict=True)
        if is_folded
    )
    rows = [
        _row(segment, left, width, folds, clock)
        for segment, left, width in zip(shown, lefts, widths, strict=True)
    ]
    whole = (life.until - life.created_at).total_seconds()
    return Waterfall(
        whole=lasting(whole),
        begin=clock.at(life.created_at),
        end=clock.at(life.until),
        strip=_strip(segments, whole),
        rows=rows,
        left_out=len(segments) - len(shown),
        shares=_shares(life.by_cause),
        is_folded=any(folded),
    )


def kind_of(segment: LifeSegment) -> str:
    """Return the class of a segment's bar: its cause, or how the run ended."""
    if segment.kind == SegmentKind.WAITING:
        return f"w-{CAUSES[segment.code].kind if segment.code in CAUSES else 'queue'}"
    if segment.kind in WORK:
        return f"b b-{OUTCOMES.get(segment.outcome, ('bad', ''))[0]}"
    return "b b-run" if segment.kind == SegmentKind.CLAIMED else "b b-idle"


def _widths(segments: Sequence[LifeSegment]) -> tuple[list[float], list[bool]]:
    """Return the share of the width that each segment gets, and whether it is folded."""
    whole = sum(one.seconds for one in segments) or 1.0
    natural = [one.seconds / whole for one in segments]
    work = sum(share for share, one in zip(natural, segments, strict=True) if one.kind in WORK)
    if not work:
        return _whole([max(share, LEAST) for share in natural]), [False] * len(segments)
    folded = [
        one.kind not in WORK and share > MOST_OF_A_WAIT
        for share, one in zip(natural, segments, strict=True)
    ]
    waits = [
        min(share, MOST_OF_A_WAIT)
        for share, one in zip(natural, segments, strict=True)
        if one.kind not in WORK
    ]
    room = max(1.0 - sum(waits), 0.2)
    widths = [
        max(share * room / work if one.kind in WORK else min(share, MOST_OF_A_WAIT), LEAST)
        for share, one in zip(natural, segments, strict=True)
    ]
    return _whole(widths), folded


def _whole(widths: list[float]) -> list[float]:
    total = sum(widths) or 1.0
    return [width / total for width in widths]


def _row(segment: LifeSegment, left: float, width: float, folds: Markup, clock: Clock) -> Row:
    is_work = segment.kind in WORK
    height = THICK if is_work else THIN
    bar = _rect(kind_of(segment), left, width, (ROW - height) / 2, height, 3 if is_work else 1)
    svg = Markup('<svg height="{}" aria-hidden="true">{}{}</svg>').format(ROW, folds, bar)
    text = safe_text(segment.text, 200)
    holder = segment.holder
    note = ""
    if holder is not None and holder.title and holder.title not in text:
        note = safe_text(holder.title, 120)
    if segment.is_open and segment.clears_at is not None:
        note += f" until {clock.text(segment.clears_at)}"
    sign = OUTCOMES.get(segment.outcome, ("", "failed"))[1]
    return Row(
        is_work=is_work,
        sign=sign if is_work else kind_of(segment).removeprefix("w-").removeprefix("b b-"),
        label=text[:1].upper() + text[1:],
        note=note.strip(),
        begin=clock.at(segment.since),
        lasted=lasting(segment.seconds),
        svg=svg,
    )


def _strip(segments: Sequence[LifeSegment], whole: float) -> Markup:
    marks, at = [], 0.0
    for segment in segments:
        share = segment.seconds / whole if whole else 0.0
        marks.append(_rect(kind_of(segment), at, share, 0, STRIP, 0))
        at += share
    return Markup('<svg height="{}" aria-hidden="true">{}</svg>').format(
        STRIP, Markup().join(marks)
    )


def _shares(totals: Sequence[CauseTotal]) -> list[CauseShare]:
    most = max((one.seconds for one in totals), default=0.0) or 1.0
    found = []
    for one in totals:
        cause = CAUSES.get(one.code) if one.kind == SegmentKind.WAITING else None
        kind = f"w-{cause.kind}" if cause else "b b-ok" if one.kind in WORK else "b b-idle"
        bar = _rect(kind, 0, max(one.seconds / most, LEAST), 2, 6, 1)
        svg = Markup('<svg height="10" aria-hidden="true">{}</svg>').format(bar)
        found.append(CauseShare(one.label[:1].upper() + one.label[1:], lasting(one.seconds), svg))
    return found


def _rect(kind: str, left: float, width: float, top: float, height: float, radius: int) -> Markup:  # noqa: PLR0917 - a rectangle
    return Markup('<rect class="{}" x="{}%" y="{:g}" width="{}%" height="{:g}" rx="{}"/>').format(
        kind, _percent(left), top, _percent(width), height, radius
    )


def _percent(share: float) -> float:
    return round(100 * share, 3)
