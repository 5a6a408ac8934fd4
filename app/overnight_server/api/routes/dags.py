"""The routes of graphs: create, rehearse, list, read, cancel, and run parts of them again."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from overnight.errors import InvalidRequest
from overnight.graphs.shape import dependencies_of
from overnight.models.dags import (
    Dag,
    DagCancelled,
    DagCreate,
    DagCreated,
    DagPlanRequest,
    DagRetried,
    DagStatus,
    DagSummary,
)
from overnight.models.tasks import Plan
from overnight_server.api.http.authentication import Reader, Writer
from overnight_server.api.http.dependencies import Parts, Use
from overnight_server.api.http.idempotency import IdempotencyKey
from overnight_server.api.http.openapi import again
from overnight_server.api.http.pagination import PAGE, BeforeDag, Limit, page_of
from overnight_server.api.http.path_params import dag_cursor, dag_named
from overnight_server.control.graphs import cancel_dag, retry_dag
from overnight_server.domain.ids import show_dag, show_task
from overnight_server.forecast.plan import plan
from overnight_server.forecast.snapshot import Workers
from overnight_server.insight.dags import get_dag, get_outline, list_dags, outline_of
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import Edge, NewGraph, NewTask
from overnight_server.intake.submit import submit_dag
from overnight_server.intake.translate_request import idempotency_key, new_task

router = APIRouter(prefix="/api/v1/dags", tags=["dags"])
KNOWN = again(DagCreated, "The graph of the first time; the idempotency key was known.")
Word = Annotated[
    str | None,
    Query(
        max_length=200,
        description="Only where they stand so.",
        json_schema_extra={"enum": list(DagStatus)},
    ),
]


@router.post("", status_code=201, responses=KNOWN)
def create_dag(
    *,
    body: DagCreate,
    response: Response,
    parts: Use,
    caller: Writer,
    idempotency: IdempotencyKey = None,
) -> DagCreated:
    """Queue a graph, whole or not at all; the same idempotency key again answers 200 with it."""
    key = idempotency_key(body.idempotency_key, idempotency)
    tasks, edges = drafts(body, parts)
    submitted = submit_dag(
        parts.db,
        caller.user_id,
        tasks,
        Caps.of(parts.settings),
        title=body.title,
        edges=edges,
        budget_usd=body.budget_usd,
        idempotency_key=key,
    )
    response.headers["Location"] = f"{router.prefix}/{show_dag(submitted.dag_id)}"
    if not submitted.created:
        response.status_code = 200
        return get_outline(parts.db, caller.user_id, submitted.dag_id)
    return outline_of(
        submitted.dag_id,
        body.title,
        dict(zip((task.name for task in body.tasks), submitted.tasks, strict=True)),
        [(edge.parent, edge.child) for edge in edges],
    )


# Before the route of one graph, which would take the word for an id.
@router.post("/plan")
def simulate_dag(body: DagPlanRequest, parts: Use, caller: Reader) -> Plan:
    """Rehearse a graph behind what waits already; nothing is queued."""
    tasks, edges = drafts(body, parts)
    return plan(
        parts.db,
        caller.user_id,
        tasks,
        Caps.of(parts.settings),
        Workers.of(parts.settings),
        edges=edges,
        by_at=body.by_at,
    )


@router.get("")
def list_own_dags(
    *,
    request: Request,
    response: Response,
    parts: Use,
    caller: Reader,
    status: Word = None,
    limit: Limit = PAGE,
    before: BeforeDag = None,
) -> list[DagSummary]:
    """List the caller's graphs of several tasks, newest first; Link leads to the next page."""
    # One more than asked for tells whether another page follows.
    found = list_dags(
        parts.db,
        caller.user_id,
        status=_status(status),
        limit=limit + 1,
        before=dag_cursor(before),
    )
    return page_of(request, response, found, limit, lambda dag: dag.id)


@router.get("/{dag_id}")
def read_dag(
    dag_id: str,
    parts: Use,
    caller: Reader,
    tasks: Annotated[bool, Query(description="Whether to tell of its tasks and edges.")] = True,  # noqa: FBT002 - a query
) -> Dag:
    """Tell how one graph stands, with its tasks and edges."""
    return get_dag(parts.db, caller.user_id, dag_named(dag_id), with_tasks=tasks)


@router.delete("/{dag_id}")
def cancel_own_dag(dag_id: str, parts: Use, caller: Writer) -> DagCancelled:
    """End what waits of a graph, and ask what runs to stop. Nothing is deleted."""
    named = dag_named(dag_id)
    done = cancel_dag(parts.db, caller.user_id, named, actor=f"user:{caller.user_id}")
    dag = get_dag(parts.db, caller.user_id, named, with_tasks=False)
    return DagCancelled(cancelled=done.stopped, stopping=done.asked, status=DagStatus(dag.status))


@router.post("/{dag_id}/retry")
def retry_own_dag(dag_id: str, parts: Use, caller: Writer) -> DagRetried:
    """Run everything of a graph again that failed or was cancelled; what completed stays."""
    named = dag_named(dag_id)
    caps, actor = Caps.of(parts.settings), f"user:{caller.user_id}"
    back = retry_dag(parts.db, caller.user_id, named, actor=actor, caps=caps)
    return DagRetried(dag_id=show_dag(named), tasks=[show_task(one) for one in back])


def drafts(body: DagCreate, parts: Parts) -> tuple[list[NewTask], list[Edge]]:
    """Return tasks and edges as intake takes them; what is no graph is refused by its fields.

    The edges are all there will be: who reads the output of another waits for it too.
    """
    links = dependencies_of(body)
    tasks = [new_task(task, parts.settings, None) for task in body.tasks]
    edges = [Edge(link.parent, link.child, link.condition, link.on_unmet) for link in links]
    return tasks, list(NewGraph(tasks, edges).edges)


def _status(word: str | None) -> str | None:
    if word is None:
        return None
    if word.lower() in list(DagStatus):
        return word.lower()
    raise InvalidRequest("status", "is no status of a graph", legal=", ".join(DagStatus))
