"""The routes of tasks: create, list, read, cancel, run again, and how the caller's queue stands."""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from app import telemetry
from app.api.callers import Reader, Writer
from app.api.parts import Use
from app.control.cancel import cancel
from app.control.fork import fork
from app.control.graphs import retry
from app.domain.errors import InvalidRequest, Refused, TaskNotFound
from app.domain.ids import MalformedId, TaskId, parse_task, show_dag, show_task
from app.domain.lifecycle import ALIASES, State, Status, states_of
from app.gate.claim import Terms
from app.insight.dags import get_outline
from app.insight.explain import ExplainView, explain
from app.insight.forecast import ForecastView, forecast_next, forecast_task
from app.insight.queue import QueueStatusView, queue_status
from app.insight.tasks import TaskView, get_task, list_tasks
from app.intake.submit import Caps, submit
from app.intake.translate import idempotency_key, new_task, workers_of
from overnight.dag_models import DagFork, DagForked, DagRetried
from overnight.models import (
    Cancelled,
    Explanation,
    Forecast,
    QueueStatus,
    TaskCreate,
    TaskResponse,
)

router = APIRouter(prefix="/api/v1/tasks", tags=["tasks"])
Text = Annotated[str | None, Query(max_length=200)]
PAGE = 50
MAX_PAGE = 100


@router.post("", status_code=201, response_model=TaskResponse)
def create_task(
    *,
    body: TaskCreate,
    response: Response,
    parts: Use,
    caller: Writer,
    idempotency: Annotated[str | None, Header(alias="Idempotency-Key")] = None,
) -> TaskView:
    """Queue a task; the same idempotency key again answers 200 with the task of the first time."""
    task = new_task(body, parts.settings, idempotency_key(body.idempotency_key, idempotency))
    try:
        submitted = submit(parts.db, caller.user_id, task, Caps.of(parts.settings))
    except Refused as refusal:
        _tell_of(refusal)
        raise
    if submitted.created:
        telemetry.emit(
            telemetry.Event.TASK_ADDED,
            queue_id=show_task(submitted.task_id),
            depth=submitted.depth,
            source=task.source,
        )
        parts.nudge()
    else:
        response.status_code = 200
    response.headers["Location"] = f"{router.prefix}/{show_task(submitted.task_id)}"
    return get_task(parts.db, caller.user_id, submitted.task_id)


@router.get("", response_model=list[TaskResponse])
def list_own_tasks(
    *,
    request: Request,
    response: Response,
    parts: Use,
    caller: Reader,
    status: Text = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = PAGE,
    before: Text = None,
) -> list[TaskView]:
    """List the caller's tasks, newest first; the Link header leads to the next page."""
    # One more than asked for tells whether another page follows.
    found = list_tasks(
        parts.db,
        caller.user_id,
        states=_states(status),
        limit=limit + 1,
        before=_cursor(before),
    )
    page = found[:limit]
    if len(found) > limit:
        cursor = page[-1].id
        url = request.url.include_query_params(before=cursor)
        response.headers["X-Next-Cursor"] = cursor
        response.headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
    return page


# Before the route of one task, which would take the word for an id.
@router.get("/queue-status", response_model=QueueStatus)
def read_queue_status(parts: Use, caller: Reader) -> QueueStatusView:
    """Tell how much of the caller's runs and waits, against what the plan allows."""
    return queue_status(parts.db, caller.user_id, Terms.of(parts.settings))


@router.get("/forecast", response_model=list[Forecast])
def read_forecasts(
    parts: Use, caller: Reader, limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = PAGE
) -> list[ForecastView]:
    """Foretell the caller's running tasks and those that come next, in their order."""
    return forecast_next(parts.db, caller.user_id, workers_of(parts.settings), limit=limit)


@router.get("/{task_id}/forecast", response_model=Forecast)
def read_forecast(task_id: str, parts: Use, caller: Reader) -> ForecastView:
    """Tell when one task is expected to start and to end."""
    workers = workers_of(parts.settings)
    return forecast_task(parts.db, caller.user_id, _task_id(task_id), workers)


@router.get("/{task_id}/explain", response_model=Explanation)
def explain_task(task_id: str, parts: Use, caller: Reader) -> ExplainView:
    """Tell every reason a task is not running, and what can be done about it."""
    return explain(parts.db, caller.user_id, _task_id(task_id), Terms.of(parts.settings))


@router.get("/{task_id}", response_model=TaskResponse)
def read_task(task_id: str, parts: Use, caller: Reader) -> TaskView:
    """Tell how one task stands."""
    return get_task(parts.db, caller.user_id, _task_id(task_id))


@router.delete("/{task_id}")
def cancel_task(task_id: str, parts: Use, caller: Writer) -> Cancelled:
    """End a task: at once if it waits, at its next heartbeat if it runs. Nothing is deleted."""
    state = cancel(parts.db, caller.user_id, _task_id(task_id), actor=f"user:{caller.user_id}")
    return Cancelled(state=state.value)


@router.post("/{task_id}/retry")
def retry_task(task_id: str, parts: Use, caller: Writer) -> DagRetried:
    """Run a task again that failed or was cancelled, and what ended because of it."""
    named = _task_id(task_id)
    back = retry(parts.db, caller.user_id, named, actor=f"user:{caller.user_id}")
    parts.nudge()
    dag_id = get_task(parts.db, caller.user_id, named).dag_id
    return DagRetried(dag_id=dag_id, tasks=[show_task(one) for one in back])


@router.post("/{task_id}/fork", status_code=201)
def fork_task(
    *,
    task_id: str,
    response: Response,
    parts: Use,
    caller: Writer,
    body: DagFork | None = None,
    idempotency: Annotated[str | None, Header(alias="Idempotency-Key")] = None,
) -> DagForked:
    """Make a new graph that runs a task and all after it anew; the old one stays as it is."""
    asked = body or DagFork()
    forked = fork(
        parts.db,
        caller.user_id,
        _task_id(task_id),
        Caps.of(parts.settings),
        actor=f"user:{caller.user_id}",
        title=asked.title,
        idempotency_key=idempotency_key(asked.idempotency_key, idempotency),
    )
    if forked.created:
        parts.nudge()
    else:
        response.status_code = 200
    response.headers["Location"] = f"/api/v1/dags/{show_dag(forked.dag_id)}"
    outline = get_outline(parts.db, caller.user_id, forked.dag_id)
    return DagForked.model_validate(
        {**asdict(outline), "forked_from": show_dag(forked.forked_from)}
    )


def _task_id(text: str) -> TaskId:
    """Read an id; one that cannot be an id names no task, like any other unknown one."""
    try:
        return parse_task(text)
    except MalformedId:
        raise TaskNotFound from None


def _states(word: str | None) -> frozenset[State] | None:
    if word is None:
        return None
    try:
        return states_of(word.lower())
    except ValueError:
        legal = ", ".join(sorted({*Status, *State, *ALIASES}))
        raise InvalidRequest("status", "is no status of a task", legal=legal) from None


def _cursor(text: str | None) -> TaskId | None:
    if text is None:
        return None
    try:
        return parse_task(text)
    except MalformedId:
        legal = "the X-Next-Cursor of the page before"
        raise InvalidRequest("before", "is no cursor", legal=legal) from None


def _tell_of(refusal: Refused) -> None:
    depth = refusal.details.get("depth", refusal.details.get("pending"))
    telemetry.emit(telemetry.Event.SUBMIT_REJECTED, reason=refusal.code.lower(), depth=depth)
