"""The routes of the single queue: prompts in, entries out, in the words of its design."""

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
from overnight_server.api.http.dependencies import Parts, Use
from overnight_server.api.http.pagination import MAX_PAGE, Limit
from overnight_server.api.http.path_params import task_named
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

router = APIRouter(tags=["queue"])
WEB = "web"
FIRST = 1


@router.post("/api/queue/task", status_code=201)
def queue_prompt(
    body: QueueSubmit, response: Response, parts: Use, caller: Writer
) -> QueueAccepted:
    """Queue a prompt for whichever agent is free first."""
    return _accepted(body, body.source, response, parts, caller)


@router.post("/api/task", status_code=201)
def queue_prompt_of_page(
    body: QueueSubmit, response: Response, parts: Use, caller: Writer
) -> QueueAccepted:
    """Queue a prompt that a person wrote on a web page; the same, with the source `web`."""
    return _accepted(body, WEB, response, parts, caller)


@router.get("/api/queue")
def read_queue(parts: Use, caller: Reader, limit: Limit = MAX_PAGE) -> QueueListing:
    """Tell how full the queue is, and list the caller's entries that have not ended."""
    max_size = parts.settings.queue_max_size
    figures, entries = list_entries(parts.db, caller.user_id, limit=limit, max_size=max_size)
    return QueueListing(**dict(figures), tasks=entries)


@router.get("/api/queue/{task_id}")
def read_entry(task_id: str, parts: Use, caller: Reader) -> QueuedTask:
    """Tell how one entry stands: its position while it waits, who has it once it is dispatched."""
    return get_entry(parts.db, caller.user_id, task_named(task_id))


@router.post("/api/queue/{task_id}/cancel")
def cancel_entry(task_id: str, parts: Use, caller: Writer) -> QueueCancelled:
    """Cancel an entry: at once if it waits, at its next heartbeat if an agent has it."""
    named = task_named(task_id)
    state = cancel(parts.db, caller.user_id, named, actor=f"user:{caller.user_id}")
    return QueueCancelled(queue_id=show_task(named), state=STATE_NAME[state.status])


@router.get("/status")
def read_status(parts: Use, caller: Reader) -> ServiceStatus:
    """Tell what this service is, how full its queue is, and what became of a scheduler's jobs."""
    max_size = parts.settings.queue_max_size
    figures, _ = list_entries(parts.db, caller.user_id, limit=0, max_size=max_size)
    jobs = list_jobs(parts.db, caller.user_id, limit=MAX_PAGE)
    return ServiceStatus(version=VERSION, queue=figures, jobs=jobs)


def _accepted(
    body: QueueSubmit, source: str | None, response: Response, parts: Parts, caller: Caller
) -> QueueAccepted:
    if body.agent_url is not None:
        telemetry.emit(telemetry.Event.AGENT_URL_IGNORED, user_id=caller.user_id)
    with recording_job(parts.db, caller.user_id, body.source_job) as job:
        new = prompted_task(body, parts.settings, source)
        submitted = submit(parts.db, caller.user_id, new, Caps.of(parts.settings))
        job.task_id = submitted.task_id
    task = get_task(parts.db, caller.user_id, submitted.task_id)
    response.headers["Location"] = f"/api/queue/{task.id}"
    # A worker may have taken it meanwhile: then it went in as the next to start.
    position = task.position if task.status is TaskStatus.PENDING else FIRST
    return QueueAccepted(queue_id=task.id, position=position, state=STATE_NAME[Status.PENDING])
