"""Routes of the single queue: submit prompts, list entries; paths and names are its design's."""

from fastapi import APIRouter, Response

from overnight.models.enums import TaskStatus
from overnight.models.queue import (
    QueueAccepted,
    QueueCancelled,
    QueuedTask,
    QueueListing,
    QueueSubmit,
    ServiceStatus,
)
from overnight.version import VERSION
from overnight_server import telemetry
from overnight_server.api.http.authentication import Reader, Writer
from overnight_server.api.http.dependencies import Dependencies, Injected
from overnight_server.api.http.pagination import MAX_PAGE, Limit
from overnight_server.api.http.params import parse_task_param
from overnight_server.api.http.thread_route import ThreadRoute
from overnight_server.control.cancel import cancel
from overnight_server.control.keys import Caller
from overnight_server.domain.ids import show_task
from overnight_server.domain.lifecycle import Status
from overnight_server.insight.single_queue import STATE_NAME, get_entry, list_entries, list_jobs
from overnight_server.insight.tasks import get_task
from overnight_server.intake.caps import Caps
from overnight_server.intake.scheduler_jobs import recording_job
from overnight_server.intake.submit import submit
from overnight_server.intake.translate_request import prompted_task

router = APIRouter(route_class=ThreadRoute, tags=["queue"])
WEB = "web"
FIRST_POSITION = 1


@router.post("/api/queue/task", status_code=201)
def queue_prompt(
    body: QueueSubmit, response: Response, deps: Injected, caller: Writer
) -> QueueAccepted:
    """Submit a prompt; the first free agent runs it."""
    return _submit(body, body.source, response, deps, caller)


@router.post("/api/task", status_code=201)
def queue_web_prompt(
    body: QueueSubmit, response: Response, deps: Injected, caller: Writer
) -> QueueAccepted:
    """Submit a prompt from a web page: like `/api/queue/task`, with the source `web`."""
    return _submit(body, WEB, response, deps, caller)


@router.get("/api/queue")
def read_queue(deps: Injected, caller: Reader, limit: Limit = MAX_PAGE) -> QueueListing:
    """Return how full the queue is, and the caller's entries that have not ended."""
    max_size = deps.settings.queue_max_size
    figures, entries = list_entries(deps.db, caller.user_id, limit=limit, max_size=max_size)
    return QueueListing(**dict(figures), tasks=entries)


@router.get("/api/queue/{task_id}")
def read_entry(task_id: str, deps: Injected, caller: Reader) -> QueuedTask:
    """Return one entry: its position while it waits, its agent once it is dispatched."""
    return get_entry(deps.db, caller.user_id, parse_task_param(task_id))


@router.post("/api/queue/{task_id}/cancel")
def cancel_entry(task_id: str, deps: Injected, caller: Writer) -> QueueCancelled:
    """Cancel an entry: at once if it waits; if it runs, its agent is requested to stop."""
    parsed_id = parse_task_param(task_id)
    state = cancel(deps.db, caller.user_id, parsed_id, actor=f"user:{caller.user_id}")
    return QueueCancelled(queue_id=show_task(parsed_id), state=STATE_NAME[state.status])


@router.get("/status")
def read_status(deps: Injected, caller: Reader) -> ServiceStatus:
    """Return the service's version, how full its queue is, and the caller's scheduler jobs."""
    max_size = deps.settings.queue_max_size
    figures, _ = list_entries(deps.db, caller.user_id, limit=0, max_size=max_size)
    jobs = list_jobs(deps.db, caller.user_id, limit=MAX_PAGE)
    return ServiceStatus(version=VERSION, queue=figures, jobs=jobs)


def _submit(
    body: QueueSubmit, source: str | None, response: Response, deps: Dependencies, caller: Caller
) -> QueueAccepted:
    if body.agent_url is not None:
        telemetry.emit(telemetry.LogEvent.AGENT_URL_IGNORED, user_id=caller.user_id)
    with recording_job(deps.db, caller.user_id, body.source_job) as job:
        new_task = prompted_task(body, deps.settings, source)
        submitted = submit(deps.db, caller.user_id, new_task, Caps.of(deps.settings))
        job.task_id = submitted.task_id
    task = get_task(deps.db, caller.user_id, submitted.task_id)
    response.headers["Location"] = f"/api/queue/{task.id}"
    # If a worker has claimed it already, it was the first in the queue.
    position = task.position if task.status is TaskStatus.PENDING else FIRST_POSITION
    return QueueAccepted(queue_id=task.id, position=position, state=STATE_NAME[Status.PENDING])
