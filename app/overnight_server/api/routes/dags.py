"""Routes of graphs: create, plan, list, read, cancel and retry."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from overnight.errors import InvalidRequest
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
from overnight_server.api.http.dependencies import Dependencies, Injected
from overnight_server.api.http.openapi import repeated_response
from overnight_server.api.http.pagination import PAGE, BeforeDag, Limit, dag_cursor, paginate
from overnight_server.api.http.params import IdempotencyKey, parse_dag_param
from overnight_server.api.http.thread_route import ThreadRoute, expensive
from overnight_server.control.cancel import cancel_dag
from overnight_server.control.retry import retry_dag
from overnight_server.domain.ids import show_dag, show_task
from overnight_server.forecast.plan import plan
from overnight_server.gate.claim import ClaimSettings
from overnight_server.insight.dags import get_dag, get_outline, list_dags, outline_of
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import Edge, NewTask
from overnight_server.intake.submit import submit_dag
from overnight_server.intake.translate_request import idempotency_key, new_graph

router = APIRouter(route_class=ThreadRoute, prefix="/api/v1/dags", tags=["dags"])
REPEATED = repeated_response(DagCreated, "The existing graph; the idempotency key was used before.")
StatusFilter = Annotated[
    str | None,
    Query(
        max_length=200,
        description="Only graphs with this status.",
        json_schema_extra={"enum": list(DagStatus)},
    ),
]


@router.post("", status_code=201, responses=REPEATED)
def create_dag(
    *,
    body: DagCreate,
    response: Response,
    deps: Injected,
    caller: Writer,
    idempotency: IdempotencyKey = None,
) -> DagCreated:
    """Submit a graph, all of it or nothing; a repeated idempotency key responds 200."""
    key = idempotency_key(body.idempotency_key, idempotency)
    tasks, edges = drafts(body, deps)
    submitted = submit_dag(
        deps.db,
        caller.user_id,
        tasks,
        Caps.of(deps.settings),
        title=body.title,
        edges=edges,
        budget_usd=body.budget_usd,
        idempotency_key=key,
    )
    response.headers["Location"] = f"{router.prefix}/{show_dag(submitted.dag_id)}"
    if not submitted.created:
        response.status_code = 200
        return get_outline(deps.db, caller.user_id, submitted.dag_id)
    return outline_of(
        submitted.dag_id,
        body.title,
        dict(zip((task.name for task in body.tasks), submitted.tasks, strict=True)),
        [(edge.parent, edge.child) for edge in edges],
    )


# Declared before /{dag_id}, which would take `plan` for an id.
@router.post("/plan")
@expensive
def simulate_dag(body: DagPlanRequest, deps: Injected, caller: Reader) -> Plan:
    """Simulate a graph behind the tasks that wait already; nothing is submitted."""
    tasks, edges = drafts(body, deps)
    return plan(
        deps.db,
        caller.user_id,
        tasks,
        Caps.of(deps.settings),
        ClaimSettings.from_settings(deps.settings),
        edges=edges,
        by_at=body.by_at,
        simulate=deps.simulation_process.simulate,
    )


@router.get("")
def list_own_dags(
    *,
    request: Request,
    response: Response,
    deps: Injected,
    caller: Reader,
    status: StatusFilter = None,
    limit: Limit = PAGE,
    before: BeforeDag = None,
) -> list[DagSummary]:
    """List the caller's graphs of several tasks, newest first; Link has the next page."""
    dags = list_dags(
        deps.db,
        caller.user_id,
        status=_parse_status(status),
        limit=limit + 1,
        before=dag_cursor(before),
    )
    return paginate(request, response, dags, limit, lambda dag: dag.id)


@router.get("/{dag_id}")
def read_dag(
    dag_id: str,
    deps: Injected,
    caller: Reader,
    tasks: Annotated[bool, Query(description="Whether to include its tasks and edges.")] = True,  # noqa: FBT002 - a query
) -> Dag:
    """Return one graph with its tasks and edges."""
    return get_dag(deps.db, caller.user_id, parse_dag_param(dag_id), with_tasks=tasks)


@router.delete("/{dag_id}")
def cancel_own_dag(dag_id: str, deps: Injected, caller: Writer) -> DagCancelled:
    """Cancel the waiting tasks of a graph and stop the running ones. Nothing is deleted."""
    parsed_id = parse_dag_param(dag_id)
    done = cancel_dag(deps.db, caller.user_id, parsed_id, actor=f"user:{caller.user_id}")
    dag = get_dag(deps.db, caller.user_id, parsed_id, with_tasks=False)
    return DagCancelled(
        cancelled=len(done.cancelled), stopping=len(done.requested), status=DagStatus(dag.status)
    )


@router.post("/{dag_id}/retry")
def retry_own_dag(dag_id: str, deps: Injected, caller: Writer) -> DagRetried:
    """Retry every task of a graph that failed or was cancelled; completed tasks stay."""
    parsed_id = parse_dag_param(dag_id)
    caps, actor = Caps.of(deps.settings), f"user:{caller.user_id}"
    retried = retry_dag(deps.db, caller.user_id, parsed_id, actor=actor, caps=caps)
    return DagRetried(
        dag_id=show_dag(parsed_id), tasks=[show_task(retried_id) for retried_id in retried]
    )


def drafts(body: DagCreate, deps: Dependencies) -> tuple[list[NewTask], list[Edge]]:
    """Return the tasks and edges of a body for intake; raise InvalidGraph if it has a cycle.

    The edges include those that follow from references to outputs of other tasks.
    """
    graph = new_graph(body, deps.settings)
    return list(graph.tasks), list(graph.edges)


def _parse_status(text: str | None) -> str | None:
    if text is None:
        return None
    if text.lower() in list(DagStatus):
        return text.lower()
    raise InvalidRequest("status", "is not a status of a graph", legal=", ".join(DagStatus))
