"""Graphs: which pieces of work are under way; and one graph: what blocks what."""

from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup
from starlette.responses import RedirectResponse, Response

from overnight.errors import DagNotFound
from overnight.models.dags import Dag, DagStatus, DagSummary, DagTaskState
from overnight_server.control.cancel import cancel_dag
from overnight_server.control.retry import retry_dag
from overnight_server.dashboard.clocks import count
from overnight_server.dashboard.graph_picture import chain_of, draw_graph
from overnight_server.dashboard.life_lines import (
    SHORTEST,
    Axis,
    kinds_of_waits,
    life_line,
    meter,
    ticks,
)
from overnight_server.dashboard.screen import Screen
from overnight_server.dashboard.visit import Visit
from overnight_server.dashboard.words import KIND_WORDS
from overnight_server.domain.ids import DagId, MalformedId, parse_dag, parse_task, show_dag
from overnight_server.domain.lifecycle import ACTIVE, WAITING, State
from overnight_server.insight.dags import get_dag, list_dags
from overnight_server.insight.task_life import task_lives
from overnight_server.insight.task_rows import find_graph_by_ending
from overnight_server.intake.caps import Caps

screen = Screen("graphs")
PAGE = 50
#: The state whose sign and colour the status of a graph has.
SIGNS = {"pending": "pending", "running": "running", "failed": "dead_lettered"}
MOST_LISTED = 500
#: Tasks whose lives are drawn.
MOST_TIMED = 200
GRAPH, LIST, TIME = "graph", "list", "time"
VIEWS = {GRAPH: "Graph", LIST: "List", TIME: "Time"}


@screen.page("/graphs")
def show_graphs(visit: Visit) -> Response:
    """Show the graphs of several tasks, newest first."""
    status = visit.query("status")
    before = None
    if text := visit.query("before"):
        before = _parse(text)
    dags = list_dags(
        visit.db,
        visit.user_id,
        status=status if status in set(DagStatus) else None,
        limit=PAGE + 1,
        before=before,
    )
    more = dags[PAGE - 1].id if len(dags) > PAGE else ""
    return visit.page(
        "graphs.html",
        title="Graphs",
        place="graphs",
        rows=[
            {"dag": dag, "sign": sign_of(dag.status), "meter": _meter(dag)} for dag in dags[:PAGE]
        ],
        tab=status,
        tabs=[("", "All"), *((one.value, one.value.capitalize()) for one in DagStatus)],
        older=f"/graphs?status={status}&before={more}" if more else "",
    )


@screen.page("/graphs/{dag_id}")
def show_graph(visit: Visit, dag_id: str) -> Response:
    """Show one graph: its drawing, the deciding chain, and the same as a list.

    An address with the end of its id leads to the whole one.
    """
    if found := find_graph_by_ending(visit.db, visit.user_id, dag_id):
        return RedirectResponse(f"/graphs/{show_dag(found)}", status_code=303)
    shown = visit.query("view")
    view = read_view(visit, _parse(dag_id), visit.query("task"), shown if shown in VIEWS else GRAPH)
    return visit.page("graph.html", title=view["dag"].title, place="graphs", **view)


@screen.part("graph", is_expensive=True)
def show_graph_part(visit: Visit, key: str) -> Markup | None:
    """Return what changes on the page of a graph."""
    dag_id, picked, shown = [*key.split("~"), "", ""][:3]
    view = read_view(visit, _parse(dag_id), picked, shown if shown in VIEWS else GRAPH)
    return visit.fragment("parts/graph.html", **view)


def read_view(visit: Visit, dag_id: DagId, picked: str, shown: str) -> dict[str, Any]:
    """Return everything that a view of a graph shows: drawing and list, the list, or the times."""
    dag = get_dag(visit.db, visit.user_id, dag_id)
    titles = {task.id: task.title for task in dag.tasks}
    after: dict[str, list[str]] = {}
    for edge in dag.edges:
        after.setdefault(edge.child, []).append(titles.get(edge.parent, ""))
    return {
        "dag": dag,
        "sign": sign_of(dag.status),
        "sentence": sentence(dag),
        "view": shown,
        "views": [
            (name, label, _view_address(dag.id, name, picked)) for name, label in VIEWS.items()
        ],
        "drawing": draw_graph(dag, visit.clock, picked) if shown == GRAPH else None,
        **(_times(visit, dag) if shown == TIME else {}),
        "chain": chain_of(dag),
        "after": after,
        "picked": picked if picked in titles else "",
        "most": MOST_LISTED,
        "meter": _meter(dag),
        "budget": meter([("used", dag.spent_usd / dag.budget_usd)], "spent of the budget")
        if dag.budget_usd
        else None,
        "can_cancel": not dag.is_final,
        "failed": dag.counts.failed + dag.counts.cancelled,
    }


def _view_address(dag_id: str, name: str, picked: str) -> str:
    fields = {"view": "" if name == GRAPH else name, "task": picked}
    text = urlencode({key: value for key, value in fields.items() if value})
    return f"/graphs/{dag_id}?{text}" if text else f"/graphs/{dag_id}"


def _times(visit: Visit, dag: Dag) -> dict[str, Any]:
    """Return the lives of the tasks on one axis, from the making of the graph to its end or now."""
    end = max(dag.finished_at or visit.clock.now, dag.created_at + SHORTEST)
    axis = Axis(dag.created_at, end + (end - dag.created_at) / 50)
    lives = task_lives(
        visit.db,
        visit.user_id,
        [parse_task(task.id) for task in dag.tasks[:MOST_TIMED]],
        (axis.begin, axis.end),
        liveness=visit.claim_settings.liveness,
    )
    kinds: set[str] = set().union(*(kinds_of_waits(life, axis) for life in lives.values()))
    return {
        "ticks": ticks(axis, visit.clock),
        "lives": {task_id: life_line(life, axis) for task_id, life in lives.items()},
        "timed": MOST_TIMED,
        "keys": [(kind, word) for kind, word in KIND_WORDS.items() if kind in kinds],
    }


@screen.page("/graphs/{dag_id}/cancel")
def ask_cancel(visit: Visit, dag_id: str) -> Response:
    """Ask before a graph is cancelled: what waits and what runs."""
    dag = get_dag(visit.db, visit.user_id, _parse(dag_id))
    running = [task for task in dag.tasks if State(task.state) in ACTIVE]
    return visit.page(
        "graph_cancel.html", title="Cancel?", place="graphs", dag=dag, running=running
    )


@screen.act("/graphs/{dag_id}/cancel")
def cancel(visit: Visit, dag_id: str) -> Response:
    """Cancel what waits of a graph, and ask what runs to stop."""
    done = cancel_dag(visit.db, visit.user_id, _parse(dag_id), actor=visit.actor)
    text = f"{count(len(done.cancelled), 'task')} cancelled."
    if done.requested:
        text += f" {count(len(done.requested), 'running task')} asked to stop."
    return visit.done(text, to=f"/graphs/{dag_id}")


@screen.act("/graphs/{dag_id}/retry")
def retry(visit: Visit, dag_id: str) -> Response:
    """Retry every task of a graph that failed or was cancelled."""
    caps = Caps.of(visit.settings)
    back = retry_dag(visit.db, visit.user_id, _parse(dag_id), actor=visit.actor, caps=caps)
    verb = "waits" if len(back) == 1 else "wait"
    return visit.done(f"{count(len(back), 'task')} {verb} to run again.", to=f"/graphs/{dag_id}")


def sign_of(status: str) -> str:
    """Return the state whose sign the status of a graph has."""
    return SIGNS.get(status, status)


def sentence(dag: Dag) -> str:
    """Return what a graph does now, as a sentence."""
    counts = dag.counts
    running = [task for task in dag.tasks if State(task.state) in ACTIVE]
    waiting = [task for task in dag.tasks if State(task.state) in WAITING]
    ends = [f"{counts.completed} of {count(counts.total, 'task')} done"]
    if counts.failed:
        ends.append(f"{counts.failed} dead")
    if counts.cancelled:
        ends.append(f"{counts.cancelled} cancelled")
    text = ", ".join(ends) + "."
    if running:
        text += f" {_names(running)} {'runs' if len(running) == 1 else 'run'}."
    if waiting:
        text += f" {count(len(waiting), 'task')} {'waits' if len(waiting) == 1 else 'wait'}."
    return text


def _names(tasks: list[DagTaskState]) -> str:
    first = tasks[0].title
    return first if len(tasks) == 1 else f"{first} and {count(len(tasks) - 1, 'other task')}"


def _meter(dag: DagSummary) -> Markup:
    counts = dag.counts
    total = max(counts.total, 1)
    shares = [
        ("ok", counts.completed / total),
        ("bad", counts.failed / total),
        ("idle", counts.cancelled / total),
    ]
    return meter(shares, f"{counts.completed} of {counts.total} done")


def _parse(text: str) -> DagId:
    try:
        return parse_dag(text)
    except MalformedId:
        raise DagNotFound from None


@screen.part("graph-row")
def show_row(visit: Visit, key: str) -> Markup:
    """Return one row of the list of graphs."""
    dag = get_dag(visit.db, visit.user_id, _parse(key), with_tasks=False)
    row = {"dag": dag, "sign": sign_of(dag.status), "meter": _meter(dag)}
    return visit.fragment("parts/graph_row.html", row=row, dag=dag)
