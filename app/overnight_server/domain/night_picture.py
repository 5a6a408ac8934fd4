"""A night as an SVG file: one row for each slot of the plan.

The file stands alone: it has no style sheet, no script and no reference, so that a mail program,
a browser and an image viewer show the same. Outcomes differ in colour and in texture.
"""

from datetime import timedelta
from html import escape
from zoneinfo import ZoneInfo

from overnight.models.nights import SlotPiece, UserNight
from overnight_server.domain.report_text import one_line

LEFT, TOP, ROW, BAR = 64, 34, 30, 22
_HOUR = timedelta(hours=1)
_COLOURS = {"completed": "#2b7d5b", "running": "#2f6fd0"}
_STOPPED = frozenset({"suspended", "released", "cancelled", "rate_limited", "expired"})
_FONT = 'font-family="system-ui,sans-serif" font-size="11" fill="#55514a"'
# Failed and stopped runs and empty slots have textures, because colours alone are not enough.
_TEXTURES = (
    '<defs><pattern id="failed" width="6" height="6" patternUnits="userSpaceOnUse">'
    '<rect width="6" height="6" fill="#c4452f"/><path d="M0 6L6 0" stroke="#ffffff"/></pattern>'
    '<pattern id="stopped" width="6" height="6" patternUnits="userSpaceOnUse">'
    '<rect width="6" height="6" fill="#96620f"/><path d="M0 3H6" stroke="#ffffff"/></pattern>'
    '<pattern id="empty" width="8" height="8" patternUnits="userSpaceOnUse">'
    '<rect width="8" height="8" fill="#f3f1ec"/><path d="M0 8L8 0" stroke="#d6d0c5"/></pattern>'
    "</defs>"
)


def night_picture(night: UserNight, width: int = 960) -> str:
    """Return a night as an SVG file of this width."""
    height = TOP + ROW * max(1, len(night.slots)) + 10
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" role="img" aria-label="{escape(picture_label(night))}">'
    )
    parts = [
        head,
        _TEXTURES,
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    whole = (night.closes_at - night.opens_at).total_seconds()
    if whole > 0:
        parts += _hours(night, width, height)
        for slot in night.slots:
            y = TOP + ROW * (slot.number - 1)
            parts.append(f'<text x="8" y="{y + 15}" {_FONT}>slot {slot.number}</text>')
            parts += [_bar(night, piece, width, y) for piece in slot.pieces]
    return "".join(parts) + "</svg>\n"


def picture_label(night: UserNight) -> str:
    """Return in words what a picture of a night shows."""
    tally = night.tally
    return (
        f"The night of {night.date}: {tally.done} of {tally.total} tasks done, {tally.dead} failed,"
        f" in {len(night.slots)} slots"
    )


def _x(night: UserNight, seconds: float, width: int) -> float:
    whole = (night.closes_at - night.opens_at).total_seconds()
    return LEFT + (width - LEFT - 8) * seconds / whole


def _hours(night: UserNight, width: int, height: int) -> list[str]:
    zone = ZoneInfo(night.zone)
    local = night.opens_at.astimezone(zone)
    at = night.opens_at + (_HOUR - timedelta(minutes=local.minute) if local.minute else timedelta())
    parts = []
    while at <= night.closes_at:
        x = _x(night, (at - night.opens_at).total_seconds(), width)
        parts.append(
            f'<path d="M{x:.1f} {TOP - 8}V{height - 6}" stroke="#e7e3db"/>'
            f'<text x="{x:.1f}" y="{TOP - 14}" text-anchor="middle" {_FONT}>'
            f"{at.astimezone(zone):%H:%M}</text>"
        )
        at += _HOUR
    return parts


def _bar(night: UserNight, piece: SlotPiece, width: int, y: int) -> str:
    begin = _x(night, (piece.since - night.opens_at).total_seconds(), width)
    end = _x(night, (piece.until - night.opens_at).total_seconds(), width)
    if piece.is_idle:
        fill = "url(#empty)"
    elif piece.code in _STOPPED:
        fill = "url(#stopped)"
    else:
        fill = _COLOURS.get(piece.code, "url(#failed)")
    tip = escape(one_line(piece.text))
    return (
        f'<rect x="{begin:.1f}" y="{y}" width="{max(0.5, end - begin):.1f}" height="{BAR}" rx="2"'
        f' fill="{fill}"><title>{tip}</title></rect>'
    )
