"""A night and its morning report as text: for a terminal, for a mail without HTML, as Markdown."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from overnight.models.nights import NightReport, NightSlot, ReportNeed, UserNight
from overnight_server.domain.reasons import format_duration

WIDTH = 78
# A night is drawn with so many characters; each stands for the same time.
COLUMNS = 60
HOUR = timedelta(hours=1)
_SIGNS = {
    "completed": "█",
    "running": "▶",
    "suspended": "▓",
    "released": "▓",
    "cancelled": "▓",
    "rate_limited": "▓",
    "expired": "▓",
}
_FAILED, _EMPTY, _CLOSED = "▒", "·", " "
LEGEND = "█ done  ▒ failed  ▓ stopped  ▶ running  · empty"


def draw_night(night: UserNight) -> list[str]:
    """Return the slots of a night as lines of characters, with the hours above them."""
    if night.closes_at <= night.opens_at or not night.slots:
        return []
    step = (night.closes_at - night.opens_at) / COLUMNS
    return [
        f"         {_hours(night, step)}".rstrip(),
        *(f" slot {slot.number:<2} {_row(night, slot, step)}".rstrip() for slot in night.slots),
    ]


def describe_night(night: UserNight) -> Iterator[str]:
    """Yield what happened in a night besides its runs: markers, and idle time by cause."""
    zone = _zone(night.zone)
    for marker in night.markers:
        yield f"{_clock(marker.at, zone)} {marker.text}"
    if idle := describe_idle(night):
        yield idle


def describe_idle(night: UserNight) -> str:
    """Return how long slots were empty, by cause; nothing if none was."""
    if not night.idle_seconds:
        return ""
    causes = ", ".join(
        f"{total.label} {format_duration(total.seconds)}" for total in night.idle_by_cause
    )
    return f"empty slots {format_duration(night.idle_seconds)}, by cause: {causes}"


def report_text(report: NightReport) -> str:
    """Return the morning report as plain text."""
    return "\n".join(_report_lines(report)) + "\n"


def report_markdown(report: NightReport) -> str:
    """Return the morning report as Markdown."""
    return "\n".join(_markdown_lines(report)) + "\n"


def money(usd: float) -> str:
    """Write US dollars to the cent.

    >>> money(23.425), money(1234.5)
    ('$23.43', '$1,234.50')
    """
    return f"${usd + 1e-9:,.2f}"


def tally_of(report: NightReport) -> list[tuple[str, int, str]]:
    """Return sign, number and word of each state that occurs."""
    tally = report.night.tally
    counts = (
        ("✓", tally.done, "done"),
        ("▶", tally.running, "running"),
        ("○", tally.waiting, "waiting"),
        ("✗", tally.dead, "dead"),
        ("⊘", tally.cancelled, "cancelled"),
    )
    return [(sign, number, word) for sign, number, word in counts if number]


def heading_of(report: NightReport) -> str:
    """Return which night it is, in words."""
    zone = _zone(report.night.zone)
    return f"the night from {report.night.opens_at.astimezone(zone):%a %d %b %Y}"


def when(at: datetime, zone_name: str) -> str:
    """Write an instant as a day and a time in a zone."""
    return f"{at.astimezone(_zone(zone_name)):%a %d %b, %H:%M}"


def _report_lines(report: NightReport) -> Iterator[str]:
    made = f"OVERNIGHT  {when(report.made_at, report.night.zone)} {report.night.zone}"
    heading = heading_of(report)
    yield f"{made:<{WIDTH - len(heading)}}{heading}"
    yield ""
    yield report.headline
    yield report.summary
    if tally := tally_of(report):
        yield ""
        yield "  " + "   ".join(f"{sign} {number} {word}" for sign, number, word in tally)
    yield from _section("NEEDS YOU", list(_need_lines(report)))
    drawing = draw_night(report.night)
    facts = [f"         {line}" for line in describe_night(report.night)]
    title = f"THE NIGHT{LEGEND:>{WIDTH - 9}}" if drawing else "THE NIGHT"
    yield from _section(title, [*drawing, *facts])
    yield from _section("RESULTS", list(_result_lines(report)))
    yield from _section("STILL OPEN", list(_open_lines(report)))


def _section(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield ""
        yield title
        yield from lines


def _need_lines(report: NightReport) -> Iterator[str]:
    for number, need in enumerate(report.needs, start=1):
        yield f"{number:>2}  {one_line(need.title)}"
        yield f"    {one_line(need.detail)}"
        yield f"    if you do nothing: {one_line(need.if_ignored)}"
        yield f"    $ {need.act.command}"
    yield from _more_lines(report.needs_more, "need")


def _result_lines(report: NightReport) -> Iterator[str]:
    signs = {"completed": "✓", "dead_lettered": "✗", "cancelled": "⊘"}
    for group in report.groups:
        yield _with_sum(f" {one_line(group.title)}, {group.done} of {group.total}", group.cost_usd)
        for task in group.tasks:
            text = f": {one_line(task.text)}" if task.text else ""
            line = f"   {signs.get(task.state, '·')} {one_line(task.title)}{text}"
            yield _with_sum(line, task.cost_usd)
    yield from _more_lines(report.groups_more, "ended task")


def _open_lines(report: NightReport) -> Iterator[str]:
    for task in report.postponed:
        sign = "▶" if task.state in {"claimed", "running", "validating"} else "○"
        until = (
            "" if task.clears_at is None else f", until {when(task.clears_at, report.night.zone)}"
        )
        yield _cut(f"   {sign} {one_line(task.title)}: {one_line(task.text)}{until}", WIDTH)
    yield from _more_lines(report.postponed_more, "open task")


def more(number: int, noun: str) -> str:
    """Return how many things a list leaves out; nothing if it leaves out none.

    >>> more(1, "need"), more(1200, "open task"), more(0, "need")
    ('and 1 more need', 'and 1,200 more open tasks', '')
    """
    return f"and {number:,} more {noun}{'s' if number > 1 else ''}" if number else ""


def _more_lines(number: int, noun: str) -> Iterator[str]:
    if number:
        yield f"   {more(number, noun)}"


def _with_sum(line: str, usd: float) -> str:
    room = WIDTH - 10
    return f"{_cut(line, room):<{room}}{money(usd):>10}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1].rstrip()}…"


def one_line(text: str) -> str:
    r"""Return a text of a user as one line without control characters.

    >>> one_line("a\x1b[2J\n b")
    'a[2J b'
    """
    return " ".join("".join(each for each in text if each.isprintable() or each in "\n\t").split())


def _markdown_lines(report: NightReport) -> Iterator[str]:
    yield f"# {_md(report.headline)}"
    yield ""
    yield f"*{_md(heading_of(report))}, {report.night.zone}*"
    yield ""
    yield _md(report.summary)
    if tally := tally_of(report):
        yield ""
        yield " · ".join(f"{sign} {number} {word}" for sign, number, word in tally)
    if report.needs:
        yield ""
        yield "## Needs you"
        yield ""
        yield from (_markdown_need(need) for need in report.needs)
        yield from _markdown_more(report.needs_more, "need")
    if drawing := draw_night(report.night):
        yield from ("", "## The night", "", "```text", *drawing, "```", "")
    yield from (f"- {_md(line)}" for line in describe_night(report.night))
    if report.groups:
        yield from ("", "## Results")
    for group in report.groups:
        title = f"**{_md(group.title)}**, {group.done} of {group.total}, {money(group.cost_usd)}"
        yield from ("", title, "")
        for task in group.tasks:
            text = f": {_md(task.text)}" if task.text else ""
            yield f"- {_md(task.title)} ({task.state.replace('_', ' ')}){text}"
    if report.groups_more:
        yield ""
        yield more(report.groups_more, "ended task")
    if report.postponed:
        yield from ("", "## Still open", "")
        yield from (f"- {_md(task.title)}: {_md(task.text)}" for task in report.postponed)
        yield from _markdown_more(report.postponed_more, "open task")


def _markdown_more(number: int, noun: str) -> Iterator[str]:
    if number:
        yield f"- {more(number, noun)}"


def _markdown_need(need: ReportNeed) -> str:
    return (
        f"- **{_md(need.title)}** {_md(need.detail)}. If you do nothing: {_md(need.if_ignored)}."
        f" `{need.act.command}`"
    )


def _md(text: str) -> str:
    r"""Return a text of a user for Markdown, with its special characters escaped.

    >>> _md("<b> [x]")
    '\\<b\\> \\[x\\]'
    """
    return "".join(f"\\{each}" if each in "\\`*_{}[]<>#|!" else each for each in one_line(text))


def _row(night: UserNight, slot: NightSlot, step: timedelta) -> str:
    """Return a slot as characters: each shows what filled most of its time."""
    signs = []
    pieces, first = slot.pieces, 0
    for column in range(COLUMNS):
        begin = night.opens_at + step * column
        end = begin + step
        while first < len(pieces) and pieces[first].until <= begin:
            first += 1
        best, longest = _CLOSED, timedelta()
        for piece in pieces[first:]:
            if piece.since >= end:
                break
            shared = min(piece.until, end) - max(piece.since, begin)
            if shared > longest:
                longest = shared
                best = _EMPTY if piece.is_idle else _SIGNS.get(piece.code, _FAILED)
        signs.append(best)
    return "".join(signs)


def _hours(night: UserNight, step: timedelta) -> str:
    zone = _zone(night.zone)
    line = [" "] * (COLUMNS + 2)
    local = night.opens_at.astimezone(zone)
    at = night.opens_at + (
        (HOUR - timedelta(minutes=local.minute)) if local.minute else timedelta()
    )
    every = max(1, round((night.closes_at - night.opens_at) / HOUR / 10))
    while at < night.closes_at:
        column = int((at - night.opens_at) / step)
        line[column : column + 2] = f"{at.astimezone(zone):%H}"
        at += HOUR * every
    return "".join(line).rstrip()


def _clock(at: datetime, zone: ZoneInfo) -> str:
    return f"{at.astimezone(zone):%H:%M}"


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return ZoneInfo("UTC")
