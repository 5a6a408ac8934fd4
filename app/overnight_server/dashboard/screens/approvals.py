"""Approvals: what waits for an answer of the user, with what happens if there is none."""

from typing import Any

from markupsafe import Markup
from starlette.responses import Response

from overnight.errors import InvalidRequest, TaskNotFound
from overnight_server.control import budgets, pauses
from overnight_server.control.pauses import PauseSubject
from overnight_server.dashboard.clocks import count, usd
from overnight_server.dashboard.screen import Screen
from overnight_server.dashboard.visit import Visit
from overnight_server.domain.budgets import suggested_raise
from overnight_server.domain.ids import MalformedId, TaskId, parse_task
from overnight_server.insight.budgets import read_approvals

screen = Screen("approvals")


@screen.page("/approvals")
def show_approvals(visit: Visit) -> Response:
    """Show the tasks that ask for more money."""
    return visit.page("approvals.html", title="Approvals", place="approvals", **read_view(visit))


@screen.part("approvals", tokens=5)
def show_approvals_part(visit: Visit, _key: str) -> Markup:
    """Return the list of what waits for an answer."""
    return visit.fragment("parts/approvals.html", **read_view(visit))


@screen.act("/approvals/{task_id}/approve")
def approve(visit: Visit, task_id: str) -> Response:
    """Raise the budget that a task has used up, so that it goes on."""
    try:
        amount = float(visit.value("usd").strip().lstrip("$"))
    except ValueError:
        raise InvalidRequest("usd", "is not an amount", legal="such as 1.50") from None
    raised = budgets.approve(
        visit.db,
        _parse(task_id),
        amount,
        actor=visit.actor,
        user_id=visit.user_id,
        is_operator=visit.is_admin,
    )
    verb = "goes" if raised.resumed == 1 else "go"
    return visit.done(f"{usd(amount)} more are allowed: {count(raised.resumed, 'task')} {verb} on.")


@screen.act("/approvals/{task_id}/stop")
def stop(visit: Visit, task_id: str) -> Response:
    """Cancel a task instead of raising its budget."""
    budgets.stop(visit.db, _parse(task_id), actor=visit.actor, user_id=visit.user_id)
    return visit.done("The task is cancelled, and nothing more is spent on it.")


@screen.act("/pause")
def pause(visit: Visit) -> Response:
    """Let no new task of the user start."""
    subject = PauseSubject(visit.user_id)
    pauses.pause(visit.db, subject, actor=visit.actor, note=visit.value("note"))
    return visit.done("Paused: no new task starts. What runs goes on.", undo="/resume")


@screen.act("/resume")
def resume(visit: Visit) -> Response:
    """End the user's own pause."""
    if pauses.resume(visit.db, PauseSubject(visit.user_id), actor=visit.actor, own=True):
        return visit.done("Tasks start again.", undo="/pause")
    return visit.refused("There was no pause of yours. Nothing was changed.")


def read_view(visit: Visit) -> dict[str, Any]:
    """Return what the page shows."""
    approvals, number = read_approvals(visit.db, user_id=visit.user_id)
    suggested = {one.task_id: suggested_raise(one.needs_usd) for one in approvals}
    return {"approvals": approvals, "number": number, "suggested": suggested}


def _parse(text: str) -> TaskId:
    try:
        return parse_task(text)
    except MalformedId:
        raise TaskNotFound from None
