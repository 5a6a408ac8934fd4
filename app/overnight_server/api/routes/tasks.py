"""The routes of tasks: create, list, read, cancel, run again, and how the caller's queue stands."""

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from overnight.models.account import TaskChanges
from overnight.models.dags import DagFork, DagForked, DagRetried
from overnight.models.explain import Explanation
from overnight.models.tasks import (
    CancelResult,
    Forecast,
    QueueStatus,
    TaskCreate,
    TaskResponse,
)
from overnight_server.api.http.authentication import Reader, Writer
from overnight_server.api.http.dependencies import Use
from overnight_server.api.http.etags import IF_MATCH, changes_of, editions_in, show_edition
from overnight_server.api.http.idempotency import IdempotencyKey
from overnight_server.api.http.openapi import again
from overnight_server.api.http.pagination import PAGE, BeforeTask, Limit, page_of
from overnight_server.api.http.path_params import (
    TASK_WORDS,
    dag_named,
    states_named,
    task_cursor,
    task_named,
)
from overnight_server.api.http.task_filter import Choice
from overnight_server.control.cancel import cancel
from overnight_server.control.edit import edit
from overnight_server.control.fork import fork
from overnight_server.control.graphs import retry
from overnight_server.domain.ids import show_dag, show_task
from overnight_server.explain.explain import explain
from overnight_server.forecast.forecast import forecast_next, forecast_task
from overnight_server.forecast.snapshot import Workers
from overnight_server.gate.claim import ClaimSettings
from overnight_server.insight.dags import get_outline
from overnight_server.insight.queue_status import queue_status
from overnight_server.insight.tasks import get_task, list_tasks
from overnight_server.intake.caps import Caps
from overnight_server.intake.join_graph import join_graph
from overnight_server.intake.submit import submit
from overnight_server.intake.translate_request import idempotency_key, new_task

router = APIRouter(prefix="/api/v1/tasks", tags=["tasks"])
KNOWN = again(TaskResponse, "The task of the first time; the idempotency key was known.")
KNOWN_FORK = again(DagForked, "The fork of the first time; the idempotency key was known.")
Word = Annotated[
    str | None,
    Query(
        max_length=200,
        description="Only where they stand so: a status, a state, or another word for one.",
        json_schema_extra={"enum": TASK_WORDS},
    ),
]


@router.post("", status_code=201, responses=KNOWN)
def create_task(
    *,
    body: TaskCreate,
    response: Response,
    parts: Use,
    caller: Writer,
    idempotency: IdempotencyKey = None,
) -> TaskResponse:
    """Queue a task; the same idempotency key again answers 200 with the task of the first time."""
    alone = body.model_copy(update={"workflow_id": None})
    task = new_task(alone, parts.settings, idempotency_key(body.idempotency_key, idempotency))
    caps = Caps.of(parts.settings)
    if body.workflow_id is None:
        submitted = submit(parts.db, caller.user_id, task, caps)
    else:
        graph = dag_named(body.workflow_id)
        submitted = join_graph(parts.db, caller.user_id, graph, task, caps)
    if not submitted.created:
        response.status_code = 200
    response.headers["Location"] = f"{router.prefix}/{show_task(submitted.task_id)}"
    task_made = get_task(parts.db, caller.user_id, submitted.task_id)
    show_edition(response, task_made)
    return task_made


@router.get("")
def list_own_tasks(
    *,
    request: Request,
    response: Response,
    parts: Use,
    caller: Reader,
    status: Word = None,
    criteria: Choice,
    limit: Limit = PAGE,
    before: BeforeTask = None,
) -> list[TaskResponse]:
    """List the caller's tasks, newest first; the Link header leads to the next page."""
    # One more than asked for tells whether another page follows.
    found = list_tasks(
        parts.db,
        caller.user_id,
        states=states_named(status),
        criteria=criteria,
        limit=limit + 1,
        before=task_cursor(before),
    )
    return page_of(request, response, found, limit, lambda task: task.id)


# Before the route of one task, which would take the word for an id.
@router.get("/queue-status")
def read_queue_status(parts: Use, caller: Reader) -> QueueStatus:
    """Tell how much of the caller's runs and waits, against what the plan allows."""
    return queue_status(parts.db, caller.user_id, ClaimSettings.from_settings(parts.settings))


@router.get("/forecast")
def read_forecasts(parts: Use, caller: Reader, limit: Limit = PAGE) -> list[Forecast]:
    """Foretell the caller's running tasks and those that come next, in their order."""
    return forecast_next(parts.db, caller.user_id, Workers.of(parts.settings), limit=limit)


@router.get("/{task_id}/forecast")
def read_forecast(task_id: str, parts: Use, caller: Reader) -> Forecast:
    """Tell when one task is expected to start and to end."""
    workers = Workers.of(parts.settings)
    return forecast_task(parts.db, caller.user_id, task_named(task_id), workers)


@router.get("/{task_id}/explain")
def explain_task(task_id: str, parts: Use, caller: Reader) -> Explanation:
    """Tell every reason a task is not running, and what can be done about it."""
    return explain(
        parts.db, caller.user_id, task_named(task_id), ClaimSettings.from_settings(parts.settings)
    )


@router.get("/{task_id}")
def read_task(task_id: str, response: Response, parts: Use, caller: Reader) -> TaskResponse:
    """Tell how one task stands; its ETag is what an edit of it must name."""
    task = get_task(parts.db, caller.user_id, task_named(task_id))
    show_edition(response, task)
    return task


@router.patch("/{task_id}", openapi_extra=IF_MATCH)
def edit_task(
    *,
    task_id: str,
    body: TaskChanges,
    response: Response,
    parts: Use,
    caller: Writer,
    # Described as needed; who leaves it out is told so with a status of its own.
    if_match: Annotated[str | None, Header(max_length=1_000, include_in_schema=False)] = None,
) -> TaskResponse:
    """Change a task that nobody has yet, if it is still as If-Match names it."""
    named = task_named(task_id)
    get_task(parts.db, caller.user_id, named)  # refuses what is not the caller's, whatever it says
    editions = editions_in(if_match)
    edit(
        parts.db,
        caller.user_id,
        named,
        changes_of(body),
        editions=editions,
        actor=f"user:{caller.user_id}",
    )
    task = get_task(parts.db, caller.user_id, named)
    show_edition(response, task)
    return task


@router.delete("/{task_id}")
def cancel_task(task_id: str, parts: Use, caller: Writer) -> CancelResult:
    """End a task: at once if it waits, at its next heartbeat if it runs. Nothing is deleted."""
    state = cancel(parts.db, caller.user_id, task_named(task_id), actor=f"user:{caller.user_id}")
    return CancelResult(state=state.value)


@router.post("/{task_id}/retry")
def retry_task(task_id: str, parts: Use, caller: Writer) -> DagRetried:
    """Run a task again that failed or was cancelled, and what ended because of it."""
    named = task_named(task_id)
    caps, actor = Caps.of(parts.settings), f"user:{caller.user_id}"
    back = retry(parts.db, caller.user_id, named, actor=actor, caps=caps)
    dag_id = get_task(parts.db, caller.user_id, named).dag_id
    return DagRetried(dag_id=dag_id, tasks=[show_task(one) for one in back])


@router.post("/{task_id}/fork", status_code=201, responses=KNOWN_FORK)
def fork_task(
    *,
    task_id: str,
    response: Response,
    parts: Use,
    caller: Writer,
    body: DagFork | None = None,
    idempotency: IdempotencyKey = None,
) -> DagForked:
    """Make a new graph that runs a task and all after it anew; the old one stays as it is."""
    asked = body or DagFork()
    forked = fork(
        parts.db,
        caller.user_id,
        task_named(task_id),
        Caps.of(parts.settings),
        actor=f"user:{caller.user_id}",
        title=asked.title,
        idempotency_key=idempotency_key(asked.idempotency_key, idempotency),
    )
    if not forked.created:
        response.status_code = 200
    response.headers["Location"] = f"/api/v1/dags/{show_dag(forked.dag_id)}"
    outline = get_outline(parts.db, caller.user_id, forked.dag_id)
    return DagForked(**dict(outline), forked_from=show_dag(forked.forked_from))
