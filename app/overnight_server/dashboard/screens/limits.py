"""Limits and usage: whether more can be queued tonight, and where the hours went."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from markupsafe import Markup
from starlette.responses import Response

from overnight.models.account import DayUsage
from overnight.models.admin import UserLimitsDetail
from overnight_server.dashboard.clocks import Clock, lasting
from overnight_server.dashboard.life_lines import meter
from overnight_server.dashboard.screen import Screen
from overnight_server.dashboard.visit import Visit
from overnight_server.insight.limits import user_limits
from overnight_server.insight.neighbours import titles_of
from overnight_server.insight.usage import list_ledger, usage, usage_breakdown
from overnight_server.outcome.artifacts import ArtifactCaps

screen = Screen("limits")
LINES, PAGE = 8, 50
MOST_TYPES = 10
#: Hours by day and by type that are older are made anew: every entry of the month is read.
FRESH = timedelta(minutes=1)
HEIGHT, BASE = 150, 128
MAX_DIGITS = 19
HOURS_OF_A_DAY = 24


@screen.page("/limits", is_expensive=True)
def show_limits(visit: Visit) -> Response:
    """Show the limits of the plan, how much of each is used, and the hours of the month."""
    db, user_id = visit.db, visit.user_id
    ledger = list_ledger(db, user_id, limit=LINES)
    return visit.page(
        "limits.html",
        title="Limits and usage",
        place="limits",
        ledger=ledger,
        titles=titles_of(db, user_id, {line.task_id for line in ledger if line.task_id}),
        **read_cards(visit),
        **read_hours(visit),
    )


@screen.page("/limits/ledger")
def show_ledger(visit: Visit) -> Response:
    """Show what was charged to this month and refunded, the latest first."""
    before = visit.query("before")
    lines = list_ledger(
        visit.db,
        visit.user_id,
        before=int(before) if before.isdecimal() and len(before) < MAX_DIGITS else None,
        limit=PAGE + 1,
    )
    older = f"/limits/ledger?before={lines[PAGE - 1].id}" if len(lines) > PAGE else ""
    ids = {line.task_id for line in lines if line.task_id}
    return visit.page(
        "ledger.html",
        title="Ledger",
        place="limits",
        ledger=lines[:PAGE],
        titles=titles_of(visit.db, visit.user_id, ids),
        older=older,
    )


@screen.part("limits", tokens=5)
def show_cards(visit: Visit, _key: str) -> Markup:
    """Return the headline and the cards."""
    return visit.fragment("parts/limits.html", **read_cards(visit))


@screen.part("hours", is_expensive=True)
def show_hours(visit: Visit, _key: str) -> Markup:
    """Return the hours of the month by day and by type; newer ones may have been made."""
    return visit.fragment("parts/hours.html", **read_hours(visit))


def read_hours(visit: Visit) -> dict[str, Any]:
    """Return the hours of the month by day and by type, as they were made last."""
    used = usage(visit.db, visit.user_id)
    # The first time they are made within the request, because most users have few entries.
    last = visit.last_or_made("hours", lambda: usage_breakdown(visit.db, visit.user_id), FRESH)
    chart = hours_chart(
        last.value.days, used.period_started_at, used.resets_at, used.hours_limit, visit.clock
    )
    return {"used": used, "last": last, "types": last.value.types[:MOST_TYPES], "chart": chart}


def read_cards(visit: Visit) -> dict[str, Any]:
    """Return the figures of the headline and the cards."""
    limits = user_limits(
        visit.db,
        visit.user_id,
        default_max_pending=visit.settings.max_pending_per_user,
        artifact_caps=ArtifactCaps.of(visit.settings),
    )
    frame = visit.frame
    return {
        "limits": limits,
        "headline": headline(limits),
        "hours_left": hours_left(limits),
        "hours_meter": _hours_meter(limits),
        "running_meter": meter(
            [("used", frame.running / max(limits.max_concurrent_agents, 1))],
            f"{frame.running} of {limits.max_concurrent_agents} tasks run",
        ),
        "waiting_meter": meter(
            [("used", limits.pending / max(limits.pending_limit or 0, 1))],
            f"{limits.pending} tasks wait",
        ),
        "money_meter": _money_meter(limits),
    }


def hours_left(limits: UserLimitsDetail) -> float | None:
    """Return how many hours can still be promised this month; None without a limit."""
    if limits.monthly_agent_hours_limit is None:
        return None
    taken = limits.monthly_agent_hours_used + limits.monthly_agent_hours_promised
    return max(0.0, limits.monthly_agent_hours_limit - taken)


def headline(limits: UserLimitsDetail) -> str:
    """Return whether more can be queued, and how much work that may be."""
    room = None if limits.pending_limit is None else limits.pending_limit - limits.pending
    left = hours_left(limits)
    tasks = "as many tasks as you like" if room is None else f"{max(room, 0):,} more tasks"
    if room is not None and room <= 0:
        return f"You can queue no more tasks: {limits.pending:,} wait already."
    if left is None:
        return f"You can queue {tasks}; your hours have no limit."
    if left <= 0:
        return f"You can queue {tasks}, but the hours of this month are used up."
    return f"You can queue {tasks}, and {_hours(left)} of work are left this month."


def _hours(hours: float) -> str:
    """Write hours, also many, as hours."""
    return f"{hours:.0f} h" if hours >= HOURS_OF_A_DAY else lasting(hours * 3600)


def _hours_meter(limits: UserLimitsDetail) -> Markup:
    most = limits.monthly_agent_hours_limit
    if not most:
        return meter([], "no limit")
    used, held = limits.monthly_agent_hours_used, limits.monthly_agent_hours_promised
    label = f"{used:.1f} hours used, {held:.1f} promised, of {most}"
    return meter([("used", used / most), ("held", held / most)], label)


def _money_meter(limits: UserLimitsDetail) -> Markup:
    most = limits.night_budget_usd
    if not most:
        return meter([], "no limit")
    return meter([("used", limits.night_spent_usd / most)], "spent of the night's budget")


def hours_chart(
    days: Sequence[DayUsage], begin: datetime, end: datetime, most: float | None, clock: Clock
) -> Markup:
    """Draw the hours of a month as they add up, with the limit; the ledger has the figures."""
    first = begin.astimezone(UTC).date()
    number = max((end.astimezone(UTC).date() - first).days, 1)
    today = min((clock.now.astimezone(UTC).date() - first).days, number)
    by_day = {one.day: one.hours for one in days}
    sums: list[float] = []
    for day in range(today + 1):
        hours = by_day.get(first + timedelta(days=day), 0.0)
        sums.append((sums[-1] if sums else 0.0) + hours)
    top = max(most or 0.0, max(sums, default=0.0), 1.0) * 1.08
    points = [
        (round(100 * (day + 1) / number, 2), round(BASE - BASE * hours / top, 1))
        for day, hours in enumerate(sums)
    ]
    path = "M" + _joined([(0.0, BASE), *points])
    area = f"{path}L{points[-1][0]},{BASE}Z"
    limit = ""
    if most:
        y = round(BASE - BASE * most / top, 1)
        limit = Markup(
            '<line class="limit-line" x1="0" x2="100%" y1="{0}" y2="{0}"/>'
            '<text class="limit-text" x="0" y="{1}">{2} h</text>'
        ).format(y, y - 5, f"{most:g}")
    label = f"{sums[-1] if sums else 0:.1f} hours used since {first.day} {first:%B}"
    return Markup(
        '<svg class="hours" height="{h}" role="img" aria-label="{label}">'
        '<svg viewBox="0 0 100 {base}" height="{base}" width="100%" preserveAspectRatio="none">'
        '<path class="chart-area" d="{area}"/><path class="chart-line" d="{path}"/></svg>{limit}'
        '<text class="chart-text" x="0" y="{foot}">{first}</text>'
        '<text class="chart-text" x="100%" y="{foot}" text-anchor="end">{last}</text></svg>'
    ).format(
        h=HEIGHT,
        label=label,
        base=BASE,
        area=area,
        path=path,
        limit=limit,
        foot=HEIGHT - 4,
        first=_day(first),
        last=_day(end.astimezone(UTC).date()),
    )


def _joined(points: Sequence[tuple[float, float]]) -> str:
    return "L".join(f"{x},{y}" for x, y in points)


def _day(day: date) -> str:
    return f"{day.day} {day:%b}"
