"""What each operation on graphs says over HTTP and how its answer is read; nothing is sent here."""

import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

import httpx2

from overnight.client.task_calls import Call, Page, held_for, validated
from overnight.graphs.shape import dependencies_of
from overnight.models.dags import (
    Dag,
    DagCancelled,
    DagCreate,
    DagCreated,
    DagForked,
    DagPlanRequest,
    DagRetried,
    DagSummary,
)
from overnight.models.tasks import Plan

DAGS = "/api/v1/dags"
TASKS = "/api/v1/tasks"
Fields = Mapping[str, Any]


def create_dag(graph: DagCreate | Fields) -> Call[DagCreated]:
    """Queue a graph; the idempotency key, made up if missing, makes a repeated send one graph."""
    body = _body(graph_of(graph))
    return Call(
        "POST",
        DAGS,
        lambda answer: DagCreated.model_validate(answer.json()),
        json={"idempotency_key": f"auto-{uuid.uuid4()}"} | body,
    )


def plan_dag(graph: DagCreate | Fields, *, by_at: datetime | None) -> Call[Plan]:
    """Ask what a graph would come to; nothing is queued."""
    asked = validated(DagPlanRequest, {**_body(graph_of(graph)), "by_at": by_at})
    return Call(
        "POST", f"{DAGS}/plan", lambda answer: Plan.model_validate(answer.json()), json=_body(asked)
    )


def get_dag(dag_id: str, *, tasks: bool = True) -> Call[Dag]:
    """Read one graph, with its tasks and edges or without."""
    params = {} if tasks else {"tasks": "false"}
    return Call("GET", _of(dag_id), lambda answer: Dag.model_validate(answer.json()), params=params)


def wait_dag(dag_id: str, *, seconds: float) -> Call[Dag]:
    """Read one graph, without its tasks, once it has ended or when so many seconds have passed."""
    held = held_for(seconds)
    path = f"{_of(dag_id)}/wait"
    return Call(
        "GET",
        path,
        lambda answer: Dag.model_validate(answer.json()),
        params={"timeout": held},
        holds=held,
    )


def list_dags(*, status: str | None, limit: int, before: str | None) -> Call[Page[DagSummary]]:
    """Read one page of graphs, newest first."""
    asked: dict[str, str | int | None] = {"status": status, "limit": limit, "before": before}
    params = {name: value for name, value in asked.items() if value is not None}
    return Call("GET", DAGS, _page, params=params)


def cancel_dag(dag_id: str) -> Call[DagCancelled]:
    """Ask that everything of a graph that has not ended be ended."""
    return Call("DELETE", _of(dag_id), lambda answer: DagCancelled.model_validate(answer.json()))


def retry(named: str) -> Call[DagRetried]:
    """Run a task again that ended badly and what ended because of it; of a graph, all that did."""
    path = _of(named) if named.startswith("dag_") else f"{TASKS}/{quote(named, safe='')}"
    return Call("POST", f"{path}/retry", lambda answer: DagRetried.model_validate(answer.json()))


def fork_task(task_id: str, *, title: str | None) -> Call[DagForked]:
    """Make a new graph that runs a task and everything after it anew."""
    path = f"{TASKS}/{quote(task_id, safe='')}/fork"
    # The key makes a repeated send one fork.
    key = {"idempotency_key": f"auto-{uuid.uuid4()}"}
    body = key if title is None else {"title": title, **key}
    return Call("POST", path, lambda answer: DagForked.model_validate(answer.json()), json=body)


def graph_of(graph: DagCreate | Fields) -> DagCreate:
    """Judge a graph before it travels, with the words the service would use."""
    whole = graph if isinstance(graph, DagCreate) else validated(DagCreate, graph)
    dependencies_of(whole)
    return whole


def _body(graph: DagCreate) -> dict[str, Any]:
    return graph.model_dump(mode="json", exclude_unset=True)


def _of(dag_id: str) -> str:
    return f"{DAGS}/{quote(dag_id, safe='')}"


def _page(answer: httpx2.Response) -> Page[DagSummary]:
    dags = [DagSummary.model_validate(item) for item in answer.json()]
    return Page(dags, answer.headers.get("X-Next-Cursor"))
