"""Routes of tasks: create, list, read, edit, cancel, retry, overrule, fork and forecast."""

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response

from overnight.models.account import DeadLetterChanges, TaskChanges, TaskOverrule, TaskRetry
from overnight.models.bulk import WaitCode
from overnight.models.dags import DagFork, DagForked, DagRetried
from overnight.models.explain import Explanation
from overnight.models.field_types import Instant
from overnight.models.nights import TaskLife
from overnight.models.tasks import (
    CancelResult,
    Forecast,
    QueueStatus,
    TaskCreate,
    TaskResponse,
)
from overnight_server.api.http.authentication import Reader, Writer
from overnight_server.api.http.dependencies import Injected
from overnight_server.api.http.etags import IF_MATCH, add_etag, parse_if_match
from overnight_server.api.http.openapi import repeated_response
from overnight_server.api.http.pagination import PAGE, BeforeTask, Limit, paginate, task_cursor
from overnight_server.api.http.params import (
    STATUS_NAMES,
    IdempotencyKey,
    parse_dag_field,
    parse_dag_param,
    parse_status_param,
    parse_task_ids,
    parse_task_param,
)
from overnight_server.api.http.thread_route import ThreadRoute, expensive
from overnight_server.control.cancel import cancel
from overnight_server.control.edit import TaskEdit, Unset, edit
from overnight_server.control.fork import fork
from overnight_server.control.overrule import overrule
from overnight_server.control.retry import retry
from overnight_server.domain.ids import show_dag, show_task
from overnight_server.domain.priority import score
from overnight_server.explain.audience import Audience
from overnight_server.explain.explain import explain
from overnight_server.forecast.forecast import forecast_next, forecast_task
from overnight_server.gate.claim import ClaimSettings
from overnight_server.insight.dags import get_outline
from overnight_server.insight.queue_status import queue_status
from overnight_server.insight.task_life import task_life
from overnight_server.insight.tasks import (
    TaskCriteria,
    get_task,
    list_tasks,
    task_response,
    view_task,
)
from overnight_server.intake.caps import Caps
from overnight_server.intake.join_graph import join_graph
from overnight_server.intake.submit import submit
from overnight_server.intake.translate_request import idempotency_key, new_task

router = APIRouter(route_class=ThreadRoute, prefix="/api/v1/tasks", tags=["tasks"])
REPEATED = repeated_response(
    TaskResponse, "The existing task; the idempotency key was used before."
)
REPEATED_FORK = repeated_response(
    DagForked, "The existing fork; the idempotency key was used before."
)
StatusFilter = Annotated[
    str | None,
    Query(
        max_length=200,
        description="Only tasks with this status or state, or one of several with commas: "
        + ", ".join(STATUS_NAMES),
    ),
]
TextFilter = Annotated[str | None, Query(max_length=500)]
# Not the strict number of bodies: everything in an address is text.
AmountFilter = Annotated[float | None, Query(ge=0, allow_inf_nan=False)]
InstantFilter = Annotated[Instant | None, Query()]


async def task_criteria(
    *,
    type: Annotated[TextFilter, Query(description="Only tasks of this type.")] = None,  # noqa: A002 - the name on the wire
    tag: Annotated[TextFilter, Query(description="Only tasks with this tag.")] = None,
    project_id: Annotated[TextFilter, Query(description="Only tasks of this project.")] = None,
    source: Annotated[TextFilter, Query(description="Only tasks from this source.")] = None,
    created_after: Annotated[
        InstantFilter, Query(description="Only tasks created at this instant or later.")
    ] = None,
    created_before: Annotated[
        InstantFilter, Query(description="Only tasks created before this instant.")
    ] = None,
    title: Annotated[
        TextFilter, Query(description="Only tasks whose title contains this text.")
    ] = None,
    dag_id: Annotated[TextFilter, Query(description="Only tasks of this graph.")] = None,
    ended_after: Annotated[
        InstantFilter, Query(description="Only tasks that ended at this instant or later.")
    ] = None,
    ended_before: Annotated[
        InstantFilter, Query(description="Only tasks that ended before this instant.")
    ] = None,
    created_by: Annotated[
        TextFilter, Query(description="Only tasks of this creator: human:ada, or the name alone.")
    ] = None,
    error: Annotated[
        TextFilter, Query(description="Only tasks with this error class or text in the error.")
    ] = None,
    lock: Annotated[TextFilter, Query(description="Only tasks that need this lock.")] = None,
    min_cost_usd: Annotated[
        AmountFilter, Query(description="Only tasks that have cost that much or more.")
    ] = None,
    below_cost_usd: Annotated[
        AmountFilter, Query(description="Only tasks that have cost less.")
    ] = None,
    min_attempts: Annotated[
        int | None,
        Query(ge=0, le=1_000_000, description="Only tasks with so many spent attempts or more."),
    ] = None,
    waits_for: Annotated[
        WaitCode | None, Query(description="Only tasks that wait for this.")
    ] = None,
    fingerprint: Annotated[
        TextFilter, Query(description="Only tasks of this group of dead letters.")
    ] = None,
) -> TaskCriteria:
    """Return the filter of a list of tasks from the query."""
    return TaskCriteria(
        of_type=type,
        of_tag=tag,
        of_project=project_id,
        of_source=source,
        made_from=created_after,
        made_until=created_before,
        titled=title,
        of_dag=None if dag_id is None else parse_dag_field("dag_id", dag_id),
        ended_from=ended_after,
        ended_until=ended_before,
        of_creator=created_by,
        of_error=error,
        of_lock=lock,
        cost_from=min_cost_usd,
        cost_until=below_cost_usd,
        attempts_from=min_attempts,
        of_wait=waits_for,
        of_fingerprint=fingerprint,
    )


Criteria = Annotated[TaskCriteria, Depends(task_criteria)]


@router.post("", status_code=201, responses=REPEATED)
def create_task(
    *,
    body: TaskCreate,
    response: Response,
    deps: Injected,
    caller: Writer,
    idempotency: IdempotencyKey = None,
) -> TaskResponse:
    """Submit a task; a repeated idempotency key responds 200 with the existing task.

    With `depends_on` or `workflow_id` the task joins an existing graph.
    """
    without_graph = body.model_copy(update={"workflow_id": None})
    task = new_task(
        without_graph, deps.settings, idempotency_key(body.idempotency_key, idempotency)
    )
    caps = Caps.of(deps.settings)
    depends_on = parse_task_ids("depends_on", body.depends_on)
    if body.workflow_id is None and not depends_on:
        submitted = submit(deps.db, caller.user_id, task, caps, read=view_task)
    else:
        dag_id = None if body.workflow_id is None else parse_dag_param(body.workflow_id)
        submitted = join_graph(deps.db, caller.user_id, dag_id, task, caps, depends_on=depends_on)
    if not submitted.created:
        response.status_code = 200
    response.headers["Location"] = f"{router.prefix}/{show_task(submitted.task_id)}"
    if submitted.row is None:
        created = get_task(deps.db, caller.user_id, submitted.task_id)
    else:
        created = task_response(submitted.row)
    add_etag(response, created)
    return created.model_copy(update={"warnings": deps.known_types.warnings(created.type)})


@router.get("")
def list_own_tasks(
    *,
    request: Request,
    response: Response,
    deps: Injected,
    caller: Reader,
    status: StatusFilter = None,
    criteria: Criteria,
    limit: Limit = PAGE,
    before: BeforeTask = None,
) -> list[TaskResponse]:
    """List the caller's tasks, newest first; the header Link has the next page."""
    tasks = list_tasks(
        deps.db,
        caller.user_id,
        states=parse_status_param(status),
        criteria=criteria,
        limit=limit + 1,
        before=task_cursor(before),
    )
    return paginate(request, response, tasks, limit, lambda task: task.id)


# Declared before /{task_id}, which would take `queue-status` and `forecast` for ids.
@router.get("/queue-status")
def read_queue_status(deps: Injected, caller: Reader) -> QueueStatus:
    """Return how many of the caller's tasks run and wait, and what keeps the next one waiting."""
    return queue_status(
        deps.db,
        caller.user_id,
        ClaimSettings.from_settings(deps.settings),
        Audience(is_operator=caller.is_operator),
    )


@router.get("/forecast")
@expensive
def read_forecasts(deps: Injected, caller: Reader, limit: Limit = PAGE) -> list[Forecast]:
    """Forecast the caller's running tasks and the next ones, in the order of their start."""
    return forecast_next(
        deps.db,
        caller.user_id,
        ClaimSettings.from_settings(deps.settings),
        limit=limit,
        simulate=deps.simulation_process.simulate,
    )


@router.get("/{task_id}/forecast")
@expensive
def read_forecast(task_id: str, deps: Injected, caller: Reader) -> Forecast:
    """Forecast when one task starts and ends."""
    claim_settings = ClaimSettings.from_settings(deps.settings)
    return forecast_task(
        deps.db,
        caller.user_id,
        parse_task_param(task_id),
        claim_settings,
        simulate=deps.simulation_process.simulate,
    )


@router.get("/{task_id}/explain")
@expensive
def explain_task(task_id: str, deps: Injected, caller: Reader) -> Explanation:
    """Return every reason why a task is not running, and what the caller can do about it."""
    return explain(
        deps.db,
        caller.user_id,
        parse_task_param(task_id),
        ClaimSettings.from_settings(deps.settings),
        Audience(is_operator=caller.is_operator),
    )


@router.get("/{task_id}/history")
@expensive
def read_history(task_id: str, deps: Injected, caller: Reader) -> TaskLife:
    """Return what a task did or waited for in each moment of its life, with cause and holder."""
    return task_life(
        deps.db,
        caller.user_id,
        parse_task_param(task_id),
        liveness=ClaimSettings.from_settings(deps.settings).liveness,
    )


@router.get("/{task_id}")
def read_task(task_id: str, response: Response, deps: Injected, caller: Reader) -> TaskResponse:
    """Return one task; an edit must send the ETag of this response in If-Match."""
    task = get_task(deps.db, caller.user_id, parse_task_param(task_id))
    add_etag(response, task)
    return task


@router.patch("/{task_id}", openapi_extra=IF_MATCH)
def edit_task(
    *,
    task_id: str,
    body: TaskChanges,
    response: Response,
    deps: Injected,
    caller: Writer,
    # OpenAPI lists it as required; a request without it gets 428 from `parse_if_match`.
    if_match: Annotated[str | None, Header(max_length=1_000, include_in_schema=False)] = None,
) -> TaskResponse:
    """Change a task that is not claimed yet, if its ETag is still that of If-Match."""
    parsed_id = parse_task_param(task_id)
    get_task(deps.db, caller.user_id, parsed_id)  # raises TaskNotFound for another user's task
    editions = parse_if_match(if_match)
    edit(
        deps.db,
        caller.user_id,
        parsed_id,
        parse_changes(body),
        editions=editions,
        actor=f"user:{caller.user_id}",
    )
    task = get_task(deps.db, caller.user_id, parsed_id)
    add_etag(response, task)
    return task


@router.delete("/{task_id}")
def cancel_task(task_id: str, deps: Injected, caller: Writer) -> CancelResult:
    """Cancel a task: at once if it waits; if it runs, its worker stops it. Nothing is deleted."""
    state = cancel(
        deps.db, caller.user_id, parse_task_param(task_id), actor=f"user:{caller.user_id}"
    )
    return CancelResult(state=state.value)


@router.post("/{task_id}/retry")
def retry_task(
    task_id: str, deps: Injected, caller: Writer, body: TaskRetry | None = None
) -> DagRetried:
    """Retry a task that failed or was cancelled, and the tasks that ended because of it.

    The body may change the task before it runs again.
    """
    parsed_id = parse_task_param(task_id)
    options = body or TaskRetry()
    retried = retry(
        deps.db,
        caller.user_id,
        parsed_id,
        actor=f"user:{caller.user_id}",
        note=options.note,
        attempts=options.attempts,
        caps=Caps.of(deps.settings),
        changes=None if options.changes is None else parse_changes(options.changes),
    )
    dag_id = get_task(deps.db, caller.user_id, parsed_id).dag_id
    return DagRetried(dag_id=dag_id, tasks=[show_task(retried_id) for retried_id in retried])


@router.post("/{task_id}/overrule")
def overrule_task(
    task_id: str, deps: Injected, caller: Writer, body: TaskOverrule | None = None
) -> TaskResponse:
    """Complete a task with the output that a validator rejected; its dependents proceed."""
    parsed_id = parse_task_param(task_id)
    overrule(
        deps.db,
        caller.user_id,
        parsed_id,
        actor=f"user:{caller.user_id}",
        note=(body or TaskOverrule()).note,
        caps=Caps.of(deps.settings),
    )
    return get_task(deps.db, caller.user_id, parsed_id)


@router.post("/{task_id}/fork", status_code=201, responses=REPEATED_FORK)
def fork_task(
    *,
    task_id: str,
    response: Response,
    deps: Injected,
    caller: Writer,
    body: DagFork | None = None,
    idempotency: IdempotencyKey = None,
) -> DagForked:
    """Create a graph that runs a task and its dependents again; the old graph stays as it is."""
    options = body or DagFork()
    forked = fork(
        deps.db,
        caller.user_id,
        parse_task_param(task_id),
        Caps.of(deps.settings),
        actor=f"user:{caller.user_id}",
        title=options.title,
        idempotency_key=idempotency_key(options.idempotency_key, idempotency),
    )
    if not forked.created:
        response.status_code = 200
    response.headers["Location"] = f"/api/v1/dags/{show_dag(forked.dag_id)}"
    outline = get_outline(deps.db, caller.user_id, forked.dag_id)
    return DagForked(**dict(outline), forked_from=show_dag(forked.forked_from))


def parse_changes(body: TaskChanges | None) -> TaskEdit:
    """Return the changes that a request body describes; absent fields stay unchanged."""
    if body is None:
        return TaskEdit()
    sent = body.model_fields_set
    priority = body.priority_score
    if priority is None and body.priority is not None:
        priority = score(body.priority)
    return TaskEdit(
        title=body.title,
        description=body.description,
        priority=priority,
        tags=body.tags,
        payload=body.payload,
        spec=body.spec if isinstance(body, DeadLetterChanges) else None,
        agent=body.agent,
        timeout_seconds=body.timeout_seconds if "timeout_seconds" in sent else Unset.UNSET,
        deadline_at=body.deadline_at if "deadline_at" in sent else Unset.UNSET,
        start_at=body.start_at if "start_at" in sent else Unset.UNSET,
    )
