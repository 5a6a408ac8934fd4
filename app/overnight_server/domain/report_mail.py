"""The morning report as a mail: a subject, a text, and HTML without scripts, images and styles.

Mail programs know no style sheets, so tables and inline styles are used, and every figure stands
in words. Nothing is loaded when the mail is opened. Links open pages that ask first.
"""

from collections.abc import Iterator
from html import escape

from overnight.models.nights import NightReport, NightSlot, ReportGroup, ReportNeed
from overnight_server.domain.reasons import format_duration
from overnight_server.domain.report_text import (
    describe_night,
    heading_of,
    money,
    more,
    one_line,
    report_text,
    tally_of,
    when,
)

_INK, _SOFT, _FAINT, _LINE, _PAPER = "#1c1b19", "#55514a", "#6d685f", "#e7e3db", "#faf9f6"
_FONT = "font-family:-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif;"
_COLOURS = {"completed": "#2b7d5b", "running": "#2f6fd0"}
_STOPPED, _FAILED, _EMPTY, _CLOSED = "#96620f", "#c4452f", "#ece9e2", "#ffffff"
_STOPPED_OUTCOMES = frozenset({"suspended", "released", "cancelled", "rate_limited", "expired"})
_MARKS = {"dead": ("✗", "#b02a1c"), "budget": ("?", "#845000")}
_OTHER_MARK = ("◷", "#845000")


def render_report_mail(report: NightReport, base_url: str = "") -> tuple[str, str, str]:
    """Return subject, text and HTML of the mail; without `base_url` it has commands, not links."""
    return report.headline.rstrip("."), report_text(report), _html(report, base_url.rstrip("/"))


def _html(report: NightReport, base: str) -> str:
    return "".join(_parts(report, base))


def _parts(report: NightReport, base: str) -> Iterator[str]:
    zone = report.night.zone
    yield (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        '<meta name="color-scheme" content="light">'
        f"<title>{_text(report.headline)}</title></head>\n"
        f'<body style="margin:0;padding:0;background:{_PAPER}">\n'
        '<table role="presentation" width="100%" cellpadding="0" cellspacing="0"'
        f' bgcolor="{_PAPER}">'
        '<tr><td align="center" style="padding:24px 12px">\n'
        '<table role="presentation" width="600" cellpadding="0" cellspacing="0" bgcolor="#ffffff"'
        f' style="width:100%;max-width:600px;border:1px solid {_LINE};border-radius:10px">\n'
    )
    head = (
        _p(
            f"Overnight · {_text(heading_of(report))} · {_text(when(report.made_at, zone))}",
            12,
            _FAINT,
        )
        + f'<h1 style="{_FONT}margin:0;font-size:22px;line-height:29px;color:{_INK}">'
        f"{_text(report.headline)}</h1>"
        + _p(_text(report.summary), 14, _SOFT)
        + _p(
            " &nbsp; ".join(
                f"{sign}&nbsp;{number}&nbsp;{word}" for sign, number, word in tally_of(report)
            ),
            14,
            _INK,
        )
    )
    yield _block(head)
    if report.needs:
        rows = "".join(_need(need, base) for need in report.needs)
        rest = _p(more(report.needs_more, "need"), 12, _FAINT)
        yield _block(_heading("Needs you") + _table(rows) + rest)
    slots = "".join(_slot(report, slot) for slot in report.night.slots[:20])
    facts = ". ".join(_text(line) for line in describe_night(report.night))
    yield _block(_heading("The night") + slots + _p(facts, 12, _FAINT))
    if report.groups:
        rows = "".join(_group(group, base) for group in report.groups)
        rest = _p(more(report.groups_more, "ended task"), 12, _FAINT)
        yield _block(_heading("Results") + _table(rows) + rest)
    if report.postponed:
        rows = "".join(
            f"<tr>{_cell(_text(task.title))}{_cell(_text(task.text), _FAINT)}</tr>"
            for task in report.postponed
        )
        rest = _p(more(report.postponed_more, "open task"), 12, _FAINT)
        yield _block(_heading("Still open") + _table(rows) + rest)
    foot = _link(f"{base}/nights/{report.night.date}", "Open the night") if base else ""
    note = "Nothing happens by opening this mail; links open pages that ask first."
    yield _block(foot + _p(note, 12, _FAINT))
    yield "</table></td></tr></table></body></html>\n"


def _block(content: str) -> str:
    return f'<tr><td style="padding:14px 28px">{content}</td></tr>\n'


def _p(content: str, size: int, colour: str) -> str:
    style = f"{_FONT}margin:6px 0;font-size:{size}px;line-height:{size + 7}px;color:{colour}"
    return f'<p style="{style}">{content}</p>' if content else ""


def _heading(words: str) -> str:
    return f'<h2 style="{_FONT}margin:0 0 6px;font-size:13px;color:{_FAINT}">{words}</h2>'


def _table(rows: str) -> str:
    return f'<table role="presentation" width="100%" cellpadding="0" cellspacing="0">{rows}</table>'


def _cell(content: str, colour: str = _INK, extra: str = "") -> str:
    style = f"{_FONT}font-size:13px;line-height:19px;padding:5px 8px 5px 0;color:{colour}"
    return (
        f'<td style="{style};border-top:1px solid {_LINE};vertical-align:top"{extra}>{content}</td>'
    )


def _link(address: str, words: str) -> str:
    style = (
        f"{_FONT}display:inline-block;padding:7px 12px;border:1px solid #3f4dbb;border-radius:6px;"
        "color:#3743a8;text-decoration:none;font-size:13px"
    )
    return f'<a href="{escape(address)}" style="{style}">{_text(words)}</a>'


def _need(need: ReportNeed, base: str) -> str:
    mark, colour = _MARKS.get(need.kind, _OTHER_MARK)
    words = (
        f"<b>{_text(need.title)}</b><br>{_text(need.detail)}<br>"
        f'<span style="color:{_FAINT}">If you do nothing: {_text(need.if_ignored)}.</span><br>'
    )
    act = (
        _link(f"{base}{need.act.path}", need.act.label)
        if base
        else f"<code>{_text(need.act.command)}</code>"
    )
    return f"<tr>{_cell(mark, colour, chr(32) + 'width=24')}{_cell(words + act)}</tr>"


def _slot(report: NightReport, slot: NightSlot) -> str:
    """Return one slot as a row of coloured cells whose widths are its times."""
    night = report.night
    whole = (night.closes_at - night.opens_at).total_seconds()
    if whole <= 0:
        return ""
    cells, at = [], night.opens_at
    for piece in slot.pieces:
        if piece.since > at:
            cells.append((_CLOSED, (piece.since - at).total_seconds(), ""))
        colour = _COLOURS.get(piece.code, _STOPPED if piece.code in _STOPPED_OUTCOMES else _FAILED)
        cells.append((_EMPTY if piece.is_idle else colour, piece.seconds, piece.text))
        at = piece.until
    if at < night.closes_at:
        cells.append((_CLOSED, (night.closes_at - at).total_seconds(), ""))
    drawn = "".join(
        f'<td width="{100 * seconds / whole:.2f}%" bgcolor="{colour}" title="{_text(text)}"'
        ' style="height:14px;line-height:14px;font-size:1px">&nbsp;</td>'
        for colour, seconds, text in cells
    )
    return (
        '<table role="presentation" width="100%" cellpadding="0" cellspacing="0"'
        f' style="border-collapse:collapse;margin-bottom:3px"><tr>{drawn}</tr></table>'
    )


def _group(group: ReportGroup, base: str) -> str:
    head = f"<b>{_text(group.title)}</b> {group.done} of {group.total}"
    right = ' align="right"'
    rows = f"<tr>{_cell(head)}{_cell(money(group.cost_usd), _FAINT, right)}</tr>"
    for task in group.tasks:
        title = _text(task.title)
        if base:
            address = escape(f"{base}/tasks/{task.id}")
            title = f'<a href="{address}" style="color:{_INK}">{title}</a>'
        words = f'{title}<br><span style="color:{_SOFT}">{_text(task.text)}</span>'
        worked = format_duration(task.work_seconds)
        rows += f"<tr>{_cell(words)}{_cell(worked, _FAINT, right)}</tr>"
    return rows


def _text(text: str) -> str:
    return escape(one_line(text))
