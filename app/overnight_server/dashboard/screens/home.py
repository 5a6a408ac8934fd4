"""The home page knows what time it is: the evening before, the night itself, the morning after."""

from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import Any

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from overnight.models.nights import NightReport
from overnight_server.dashboard.clocks import lasting
from overnight_server.dashboard.life_lines import meter
from overnight_server.dashboard.night_chart import draw_night, slot_names, worked_share
from overnight_server.dashboard.screen import Screen
from overnight_server.dashboard.visit import Visit
from overnight_server.forecast.forecast import forecast_next
from overnight_server.insight.queue_status import queue_status
from overnight_server.insight.report import night_report

screen = Screen("morning")
#: From so long before the window opens on, the page is about the night to come.
EVENING = timedelta(hours=6)
MOST_FORECAST = 30
#: The sign of what needs a person.
MARKS = {"dead": ("bad", "s-dead_lettered"), "budget": ("warn", "s-asks")}
OTHER_MARK = ("warn", "i-hours")


class Face(StrEnum):
    """What the home page is about."""

    EVENING = "evening"
    NIGHT = "night"
    MORNING = "morning"


@screen.page("/")
def show_home(visit: Visit) -> Response:
    """Show the last night, the night that is open, or lead to the one to come."""
    if not visit.caller.may("tasks:read"):
        return RedirectResponse("/me", status_code=303)
    return _page(visit, None)


@screen.page("/nights/{day}")
def show_night(visit: Visit, day: str) -> Response:
    """Show the night that began on a local day."""
    try:
        return _page(visit, date.fromisoformat(day))
    except ValueError:
        raise HTTPException(404) from None


@screen.page("/evening", is_expensive=True)
def show_evening(visit: Visit) -> Response:
    """Show what is queued for the night, what will be done by its end, and what will not fit."""
    forecasts = forecast_next(
        visit.db,
        visit.user_id,
        visit.claim_settings,
        limit=MOST_FORECAST,
        simulate=visit.deps.simulation_process.simulate,
    )
    report = _read(visit, None)
    end = _next_end(visit, report)
    fitting = [one for one in forecasts if one.finish.p50_at and one.finish.p50_at <= end]
    status = queue_status(visit.db, visit.user_id, visit.claim_settings, visit.audience)
    return visit.page(
        "evening.html",
        title="Evening",
        place="morning",
        forecasts=forecasts,
        fitting=fitting,
        end=end,
        report=report,
        held_by=status.held_by,
        marks=MARKS,
        other_mark=OTHER_MARK,
    )


@screen.part("night")
def show_part(visit: Visit, key: str) -> Markup | None:
    """Return all of a night that can change."""
    try:
        day = date.fromisoformat(key) if key else None
    except ValueError:
        return None
    return visit.fragment("parts/night.html", **read_view(visit, day))


def read_view(visit: Visit, day: date | None) -> dict[str, Any]:
    """Return everything that the page of a night shows."""
    report = _read(visit, day)
    night, figures = report.night, report.figures
    tally = night.tally
    whole = max(tally.total, 1)
    shares = [
        ("ok", tally.done / whole),
        ("run", tally.running / whole),
        ("warn", tally.waiting / whole),
        ("bad", tally.dead / whole),
        ("idle", tally.cancelled / whole),
    ]
    label = (
        f"{tally.done} done, {tally.running} running, {tally.waiting} waiting, {tally.dead} dead,"
        f" {tally.cancelled} cancelled"
    )
    month, used = figures.month_limit_seconds, figures.month_used_seconds
    budget = figures.night_budget_usd
    return {
        "key": "" if day is None else day.isoformat(),
        "report": report,
        "night": night,
        "figures": figures,
        "face": face_of(report, visit),
        "tally_meter": meter(shares, label),
        "chart": draw_night(night, visit.clock),
        "names": slot_names(night),
        "month_meter": meter([("used", used / month)] if month else [], "hours of the month used"),
        "budget_meter": meter(
            [("used", figures.night_cost_usd / budget)] if budget else [], "money of the night"
        ),
        "slots_meter": meter([("used", worked_share(night))], "share of the slots that worked"),
        "busy": worked_share(night),
        "idle": idle_words(report),
        "marks": MARKS,
        "other_mark": OTHER_MARK,
        "day_before": (night.date - timedelta(days=1)).isoformat(),
        "day_after": (night.date + timedelta(days=1)).isoformat(),
        "has_next": night.date < visit.clock.local(visit.clock.now).date(),
        "causes_here": sorted({code for one in night.waiting for code in one.by_code}),
    }


def face_of(report: NightReport, visit: Visit) -> Face:
    """Return what the page is about, by the user's night."""
    night = report.night
    if not night.is_over:
        return Face.NIGHT
    next_opening = night.opens_at + timedelta(days=1)
    is_near = next_opening - visit.clock.now < EVENING
    return Face.EVENING if night.has_window and is_near and visit.frame.waiting else Face.MORNING


def idle_words(report: NightReport) -> str:
    """Return what the slots were idle for, the longest first."""
    night = report.night
    if night.idle_seconds < 1:
        return "No slot was idle while the window was open."
    causes = ", ".join(f"{one.label} {lasting(one.seconds)}" for one in night.idle_by_cause[:3])
    return f"Idle {lasting(night.idle_seconds)}: {causes}."


def _page(visit: Visit, day: date | None) -> Response:
    view = read_view(visit, day)
    return visit.page("morning.html", title=view["report"].headline, place="morning", **view)


def _read(visit: Visit, day: date | None) -> NightReport:
    liveness = timedelta(seconds=visit.settings.worker_liveness)
    return night_report(visit.db, visit.user_id, day, liveness=liveness)


def _next_end(visit: Visit, report: NightReport) -> datetime:
    night = report.night
    end = night.closes_at
    while end <= visit.clock.now:
        end += timedelta(days=1)
    return end
