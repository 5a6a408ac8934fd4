"""The home page knows what time it is: the evening before, the night itself, the morning after."""

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from overnight.models.nights import NightReport, UserNight
from overnight.models.tasks import Forecast, TaskResponse
from overnight_server.dashboard.forecasts import last_forecast
from overnight_server.dashboard.last_results import LastResult
from overnight_server.dashboard.life_lines import meter
from overnight_server.dashboard.night_chart import draw_night, slot_names, worked_share
from overnight_server.dashboard.screen import Screen
from overnight_server.dashboard.search import instant_text
from overnight_server.dashboard.visit import Visit
from overnight_server.domain.ids import parse_task
from overnight_server.domain.report_text import describe_idle
from overnight_server.insight.queue_status import queue_status
from overnight_server.insight.report import night_report
from overnight_server.insight.single_queue import list_entries
from overnight_server.insight.tasks import get_tasks

screen = Screen("morning")
#: From so long before the window opens on, the page is about the night to come.
EVENING = timedelta(hours=6)
#: Who asks for a forecast gets a new one, unless the last one is as young as this.
FORECAST_NOW = timedelta(seconds=10)
#: So many of the next tasks are shown while the night is open, behind those that run.
MOST_COMING, MOST_RUNNING = 5, 50
#: The tabs of the list of tasks whose tasks have ended.
ENDED_TABS = ("done", "dead", "cancelled")
#: The sign of what needs a person.
MARKS = {"dead": ("bad", "s-dead_lettered"), "budget": ("warn", "s-asks")}
OTHER_MARK = ("warn", "i-hours")


class Face(StrEnum):
    """What the home page is about."""

    EVENING = "evening"
    NIGHT = "night"
    MORNING = "morning"


@screen.page("/", is_expensive=True)
def show_home(visit: Visit) -> Response:
    """Show the coming night before it opens, the night that is open, or the last one."""
    if not visit.caller.may("tasks:read"):
        return RedirectResponse("/me", status_code=303)
    report = _read(visit, None)
    if face_of(report, visit) is not Face.EVENING:
        return _page(visit, report, None)
    view = evening_view(visit, report, last_forecast(visit))
    return visit.page("evening.html", title="Evening", place="morning", **view)


@screen.page("/nights/{day}", is_expensive=True)
def show_night(visit: Visit, day: str) -> Response:
    """Show the night that began on a local day."""
    try:
        chosen = date.fromisoformat(day)
    except ValueError:
        raise HTTPException(404) from None
    return _page(visit, _read(visit, chosen), chosen)


@screen.page("/evening", is_expensive=True)
def show_evening(visit: Visit) -> Response:
    """Show what is queued for the night, with the last forecast; a new one follows."""
    view = evening_view(visit, _read(visit, None), last_forecast(visit, FORECAST_NOW))
    return visit.page("evening.html", title="Evening", place="morning", **view)


@screen.part("evening", is_expensive=True)
def show_evening_part(visit: Visit, _key: str) -> Markup:
    """Return all of the page before a night, with the last forecast."""
    view = evening_view(visit, _read(visit, None), last_forecast(visit))
    return visit.fragment("parts/evening.html", **view)


@screen.part("night", is_expensive=True)
def show_part(visit: Visit, key: str) -> Markup | None:
    """Return all of a night that can change."""
    try:
        day = date.fromisoformat(key) if key else None
    except ValueError:
        return None
    return visit.fragment("parts/night.html", **night_view(visit, _read(visit, day), day))


def evening_view(
    visit: Visit, report: NightReport, last: LastResult[Sequence[Forecast]] | None
) -> dict[str, Any]:
    """Return what the page before a night shows: what will be done by its end, and what not."""
    end = _next_end(visit, report)
    forecasts = () if last is None else last.value
    status = queue_status(visit.db, visit.user_id, visit.claim_settings, visit.audience)
    return {
        "last": last,
        "forecasts": forecasts,
        "fitting": [one for one in forecasts if one.finish.p50_at and one.finish.p50_at <= end],
        "end": end,
        "report": report,
        "held_by": status.held_by,
        "marks": MARKS,
        "other_mark": OTHER_MARK,
    }


def night_view(visit: Visit, report: NightReport, day: date | None) -> dict[str, Any]:
    """Return everything that the page of a night shows."""
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
        "tally_meter": meter(shares, label),
        "chart": draw_night(night, visit.clock),
        "names": slot_names(night),
        "month_meter": meter([("used", used / month)] if month else [], "hours of the month used"),
        "budget_meter": meter(
            [("used", figures.night_cost_usd / budget)] if budget else [], "money of the night"
        ),
        "slots_meter": meter([("used", worked_share(night))], "share of the slots that worked"),
        "busy": worked_share(night),
        "idle": idle_words(night),
        "links": tally_links(night),
        "coming": [] if night.is_over else coming_tasks(visit),
        "marks": MARKS,
        "other_mark": OTHER_MARK,
        "day_before": (night.date - timedelta(days=1)).isoformat(),
        "day_after": (night.date + timedelta(days=1)).isoformat(),
        "has_next": night.date < visit.clock.local(visit.clock.now).date(),
        "causes_here": sorted({code for one in night.waiting for code in one.by_code}),
    }


def face_of(report: NightReport, visit: Visit) -> Face:
    """Return what the home page is about, by the user's night."""
    night = report.night
    if not night.is_over:
        return Face.NIGHT
    is_near = night.next_opens_at - visit.clock.now < EVENING
    return Face.EVENING if night.has_window and is_near and visit.frame.waiting else Face.MORNING


def idle_words(night: UserNight) -> str:
    """Return what the slots were empty for, in the words of the mail."""
    words = describe_idle(night)
    return f"{words[:1].upper()}{words[1:]}." if words else "No slot was empty."


def tally_links(night: UserNight) -> dict[str, str]:
    """Return the addresses of the lists that hold exactly what the tally counts.

    What ran or waited at the end of a past night is in no list any more.
    """
    bounds = [f"ended:>{instant_text(night.opens_at)}"]
    if night.is_past:
        bounds.append(f"ended:<{instant_text(night.next_opens_at)}")
    ended = " ".join(bounds)
    links = {tab: f"/tasks?{urlencode({'tab': tab, 'q': ended})}" for tab in ENDED_TABS}
    now = {"running": "/tasks?tab=active", "waiting": "/tasks?tab=waiting"}
    return links if night.is_past else {**links, **now}


def coming_tasks(visit: Visit) -> list[TaskResponse]:
    """Return the tasks that start next, in this order."""
    limit = min(visit.frame.running, MOST_RUNNING) + MOST_COMING
    max_size = visit.settings.queue_max_size
    _, entries = list_entries(visit.db, visit.user_id, limit=limit, max_size=max_size)
    ids = [parse_task(entry.queue_id) for entry in entries if entry.position is not None]
    tasks = get_tasks(visit.db, visit.user_id, ids[:MOST_COMING])
    return sorted(tasks.values(), key=lambda task: task.position or 0)


def _page(visit: Visit, report: NightReport, day: date | None) -> Response:
    view = night_view(visit, report, day)
    return visit.page("morning.html", title=report.headline, place="morning", **view)


def _read(visit: Visit, day: date | None) -> NightReport:
    liveness = timedelta(seconds=visit.settings.worker_liveness)
    return night_report(visit.db, visit.user_id, day, liveness=liveness)


def _next_end(visit: Visit, report: NightReport) -> datetime:
    night = report.night
    end = night.closes_at
    while end <= visit.clock.now:
        end += timedelta(days=1)
    return end
