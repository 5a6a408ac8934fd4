"""The queue: what is next, in which order, and what keeps it from starting."""

from typing import Any

from markupsafe import Markup
from starlette.responses import Response

from overnight_server.dashboard.forecasts import last_forecast
from overnight_server.dashboard.row_sentences import row_sentences
from overnight_server.dashboard.screen import Screen
from overnight_server.dashboard.screens.tasks import blocks
from overnight_server.dashboard.sentences import shown_state
from overnight_server.dashboard.visit import Visit
from overnight_server.domain.ids import parse_task
from overnight_server.domain.lifecycle import ACTIVE, State
from overnight_server.insight.pauses import list_own_pauses
from overnight_server.insight.single_queue import list_entries
from overnight_server.insight.tasks import get_tasks

screen = Screen("queue")
MOST = 50


@screen.page("/queue")
def show_queue(visit: Visit) -> Response:
    """Show the entries that have not ended, in the order of their start."""
    return visit.page("queue.html", title="Queue", place="queue", **read_view(visit))


@screen.part("queue", tokens=5)
def show_queue_part(visit: Visit, _key: str) -> Markup:
    """Return the whole queue; places move with every change."""
    return visit.fragment("parts/queue.html", **read_view(visit))


@screen.page("/queue/forecast")
def show_forecast(visit: Visit) -> Response:
    """Show when running and next tasks are expected to start and to end: the last forecast."""
    return visit.page("forecast.html", title="Forecast", place="queue", last=last_forecast(visit))


@screen.part("forecast", tokens=5)
def show_forecast_part(visit: Visit, _key: str) -> Markup:
    """Return the last forecast; a newer one may have been made."""
    return visit.fragment("parts/forecast.html", last=last_forecast(visit))


def read_view(visit: Visit) -> dict[str, Any]:
    """Return everything that the page of the queue shows."""
    max_size = visit.settings.queue_max_size
    figures, entries = list_entries(visit.db, visit.user_id, limit=MOST, max_size=max_size)
    ids = [parse_task(entry.queue_id) for entry in entries]
    tasks = get_tasks(visit.db, visit.user_id, ids)
    sentences = row_sentences(visit, tasks.values())
    pauses = list_own_pauses(visit.db, visit.user_id)
    rows = [
        {
            "task": task,
            "state": shown_state(task),
            "why": sentences[task.id],
            "is_active": State(task.state) in ACTIVE,
        }
        for entry in entries
        if (task := tasks.get(entry.queue_id)) is not None
    ]
    return {
        "figures": figures,
        "rows": rows,
        "held_by": blocks(visit),
        "pauses": pauses,
        "is_paused": any(
            pause.scope == "user" and pause.paused_by == visit.actor for pause in pauses
        ),
        "most": MOST,
    }
