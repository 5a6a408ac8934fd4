"""Schedules: what will come by itself, and what became of it."""

from typing import Any

from markupsafe import Markup
from pydantic import ValidationError
from starlette.responses import Response

from overnight.errors import InvalidRequest, ScheduleNotFound
from overnight.models.schedules import Schedule, ScheduleCreate, ScheduleEdit
from overnight_server.control import schedules as acts
from overnight_server.dashboard.clocks import count
from overnight_server.dashboard.screen import Screen
from overnight_server.dashboard.visit import Visit
from overnight_server.domain.ids import MalformedId, ScheduleId, parse_schedule, show_schedule
from overnight_server.insight.schedules import get_schedule, list_fires, list_schedules

screen = Screen("schedules")
PAGE = 50
FIRES = 30
FIELDS = ("name", "when", "zone", "title", "type")
#: The sign of what became of a fire time.
SIGNS = {"queued": "completed", "failed": "failed", "pending": "pending", "waiting": "pending"}


@screen.page("/schedules")
def show_schedules(visit: Visit) -> Response:
    """Show the schedules by name, and a form for a new one."""
    return _list_page(visit, {"zone": visit.clock.zone, "when": "every day at 22:00"})


@screen.act("/schedules")
def add(visit: Visit) -> Response:
    """Create a schedule; a wrong value keeps the form as it was."""
    typed = {name: visit.value(name).strip() for name in FIELDS}
    try:
        body = ScheduleCreate(
            name=typed["name"],
            when=typed["when"],
            zone=typed["zone"] or "UTC",
            task={"title": typed["title"], **({"type": typed["type"]} if typed["type"] else {})},
        )
        made = acts.add_schedule(visit.db, visit.user_id, body, visit.settings, actor=visit.actor)
    except ValidationError as error:
        first = error.errors()[0]
        return _list_page(visit, typed, f"{first['loc'][0]}: {first['msg']}")
    except InvalidRequest as error:
        return _list_page(visit, typed, str(error.message))
    return visit.done("The schedule is made.", to=f"/schedules/{show_schedule(made)}")


@screen.page("/schedules/{schedule_id}")
def show_one(visit: Visit, schedule_id: str) -> Response:
    """Show one schedule with its fire times, those to come and those that have passed."""
    return visit.page(
        "schedule.html", title="Schedule", place="schedules", **_view(visit, schedule_id)
    )


@screen.part("schedule", tokens=5)
def show_part(visit: Visit, key: str) -> Markup:
    """Return one schedule as its page shows it."""
    return visit.fragment("parts/schedule.html", **_view(visit, key))


@screen.act("/schedules/{schedule_id}/run")
def run(visit: Visit, schedule_id: str) -> Response:
    """Submit now what a schedule submits."""
    acts.run_now(visit.db, visit.user_id, _parse(schedule_id), visit.settings, actor=visit.actor)
    return visit.done("Submitted now, beside its fire times.", to=f"/schedules/{schedule_id}")


@screen.act("/schedules/{schedule_id}/pause")
def pause(visit: Visit, schedule_id: str) -> Response:
    """Let the fire times pass without a submit."""
    acts.pause_schedule(
        visit.db, visit.user_id, _parse(schedule_id), visit.settings, actor=visit.actor
    )
    undo = f"/schedules/{schedule_id}/resume"
    return visit.done("Paused: its fire times pass without a task.", undo=undo)


@screen.act("/schedules/{schedule_id}/resume")
def resume(visit: Visit, schedule_id: str) -> Response:
    """Let a schedule fire again, from its next fire time on."""
    acts.resume_schedule(
        visit.db, visit.user_id, _parse(schedule_id), visit.settings, actor=visit.actor
    )
    return visit.done("It fires again.", undo=f"/schedules/{schedule_id}/pause")


@screen.act("/schedules/{schedule_id}/edit")
def change(visit: Visit, schedule_id: str) -> Response:
    """Change when a schedule fires."""
    try:
        changes = ScheduleEdit(when=visit.value("when"), zone=visit.value("zone"))
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidRequest(str(first["loc"][0]), first["msg"]) from None
    acts.edit_schedule(
        visit.db,
        visit.user_id,
        _parse(schedule_id),
        changes,
        visit.settings,
        editions=[visit.value("edition")],
        actor=visit.actor,
    )
    return visit.done("The schedule is changed.", to=f"/schedules/{schedule_id}")


@screen.page("/schedules/{schedule_id}/delete")
def ask_delete(visit: Visit, schedule_id: str) -> Response:
    """Ask before a schedule is deleted."""
    schedule = get_schedule(visit.db, visit.user_id, _parse(schedule_id))
    return visit.page("schedule_delete.html", title="Delete?", place="schedules", schedule=schedule)


@screen.act("/schedules/{schedule_id}/delete")
def delete(visit: Visit, schedule_id: str) -> Response:
    """Delete a schedule; what it has submitted goes on."""
    acts.delete_schedule(visit.db, visit.user_id, _parse(schedule_id), actor=visit.actor)
    return visit.done("The schedule is deleted. What it has submitted goes on.", to="/schedules")


def _list_page(visit: Visit, typed: dict[str, str], problem: str = "") -> Response:
    found = list_schedules(
        visit.db, visit.user_id, after=visit.query("after") or None, limit=PAGE + 1
    )
    return visit.page(
        "schedules.html",
        title="Schedules",
        place="schedules",
        status=422 if problem else 200,
        schedules=found[:PAGE],
        headline=headline(found[:PAGE], visit),
        more=found[PAGE - 1].name if len(found) > PAGE else "",
        typed={name: typed.get(name, "") for name in FIELDS},
        problem=problem,
    )


def headline(schedules: list[Schedule], visit: Visit) -> str:
    """Return what comes next by itself."""
    next_one = min(
        (one for one in schedules if one.next_fire_at is not None and one.state == "active"),
        key=lambda one: one.next_fire_at or visit.clock.now,
        default=None,
    )
    if not schedules:
        return "Nothing comes by itself."
    if next_one is None or next_one.next_fire_at is None:
        return f"{count(len(schedules), 'schedule')}, and none of them will fire."
    return f"Next comes {next_one.name}: {visit.clock.text(next_one.next_fire_at)}."


def _view(visit: Visit, schedule_id: str) -> dict[str, Any]:
    parsed = _parse(schedule_id)
    return {
        "schedule": get_schedule(visit.db, visit.user_id, parsed),
        "fires": list_fires(visit.db, visit.user_id, parsed, limit=FIRES),
        "signs": SIGNS,
    }


def _parse(text: str) -> ScheduleId:
    try:
        return parse_schedule(text)
    except MalformedId:
        raise ScheduleNotFound from None
