"""Routes of the attempts, events and artifacts of tasks, and of the caller's notices."""

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from overnight.errors import ArtifactChanged
from overnight.models.account import Artifact, Attempt, Notice
from overnight.models.agents import Ok
from overnight.models.tasks import Event
from overnight_server.api.http.authentication import Reader, Writer
from overnight_server.api.http.byte_range import RangeNotSatisfiable, parse_range
from overnight_server.api.http.dependencies import Injected
from overnight_server.api.http.pagination import (
    PAGE,
    BeforeNumber,
    Limit,
    number_cursor,
    paginate,
)
from overnight_server.api.http.params import parse_artifact_param, parse_task_param
from overnight_server.api.http.thread_route import ThreadRoute
from overnight_server.control.artifacts import delete_artifact
from overnight_server.event_log.reader import Topic, last_event, read_events
from overnight_server.insight.artifacts import get_artifact, list_artifacts
from overnight_server.insight.attempts import list_attempts
from overnight_server.insight.notices import list_notices
from overnight_server.insight.tasks import get_task

router = APIRouter(route_class=ThreadRoute, prefix="/api/v1")
MAX_EVENT_ID = 2**63 - 1
MAX_EPOCH = 2**31 - 1
MEDIA_TYPES = {"json": "application/json", "text": "text/plain; charset=utf-8"}


@router.get("/tasks/{task_id}/attempts", tags=["attempts"])
def read_attempts(
    *,
    task_id: str,
    request: Request,
    response: Response,
    deps: Injected,
    caller: Reader,
    limit: Limit = PAGE,
    before: BeforeNumber = None,
) -> list[Attempt]:
    """List the claims of a task, the latest first: who ran it, how it ended, what it cost."""
    cursor = number_cursor(before)
    parsed_id = parse_task_param(task_id)
    # The column is a 32-bit integer.
    epoch = None if cursor is None else min(cursor, MAX_EPOCH)
    attempts = list_attempts(deps.db, caller.user_id, parsed_id, before=epoch, limit=limit + 1)
    return paginate(request, response, attempts, limit, lambda attempt: attempt.epoch)


@router.get("/tasks/{task_id}/events", tags=["events"])
def read_task_events(
    *,
    task_id: str,
    deps: Injected,
    caller: Reader,
    after: Annotated[
        int, Query(ge=0, le=MAX_EVENT_ID, description="Only events with a larger id.")
    ] = 0,
    limit: Limit = PAGE,
) -> list[Event]:
    """List the events of a task, the oldest first; `after` continues after an event."""
    topic = Topic(caller.user_id, task_id=parse_task_param(task_id))
    last_event(deps.db, topic)  # raises TaskNotFound for another user's task
    return read_events(deps.db, topic, after=after, until=MAX_EVENT_ID, limit=limit)


@router.get("/tasks/{task_id}/artifacts", tags=["artifacts"])
def read_artifacts(task_id: str, deps: Injected, caller: Reader) -> list[Artifact]:
    """List the artifacts that the runs of a task stored."""
    parsed_id = parse_task_param(task_id)
    get_task(deps.db, caller.user_id, parsed_id)  # raises TaskNotFound for another user's task
    return list_artifacts(deps.db, caller.user_id, parsed_id)


@router.get("/artifacts/{artifact_id}", tags=["artifacts"])
def read_artifact(artifact_id: str, deps: Injected, caller: Reader) -> Artifact:
    """Return one artifact without its content."""
    artifact, _ = get_artifact(deps.db, caller.user_id, parse_artifact_param(artifact_id))
    return artifact


@router.delete("/artifacts/{artifact_id}", tags=["artifacts"])
def remove_artifact(artifact_id: str, deps: Injected, caller: Writer) -> Ok:
    """Delete an artifact for good; a task that refers to it reads null."""
    parsed_id = parse_artifact_param(artifact_id)
    delete_artifact(deps.db, caller.user_id, parsed_id, deps.artifact_store)
    return Ok()


@router.get(
    "/artifacts/{artifact_id}/content",
    tags=["artifacts"],
    response_class=Response,
    responses={
        200: {
            "description": "The content, as a download.",
            "content": {
                "application/json": {"schema": {}, "example": {"pages": 12}},
                "text/plain": {"schema": {"type": "string"}, "example": "twelve pages"},
                "application/octet-stream": {
                    "schema": {"type": "string", "contentMediaType": "application/octet-stream"},
                    "example": "any bytes",
                },
            },
        },
        206: {"description": "The part of the content that Range asked for."},
        412: {"description": "A later run has replaced the content that If-Match names."},
        416: {"description": "The range begins behind the end of the content."},
    },
)
def read_artifact_content(
    *,
    artifact_id: str,
    deps: Injected,
    caller: Reader,
    range_: Annotated[
        str | None,
        Header(
            alias="Range",
            max_length=60,
            description="Only these bytes, as bytes=FIRST-LAST; other forms are ignored.",
        ),
    ] = None,
    if_match: Annotated[
        str | None,
        Header(
            alias="If-Match",
            max_length=60,
            description="The ETag of an earlier part, so that all parts are of one content.",
        ),
    ] = None,
) -> Response:
    """Return the content of one artifact; browsers download it and do not display it."""
    artifact, content = get_artifact(
        deps.db, caller.user_id, parse_artifact_param(artifact_id), deps.artifact_store
    )
    etag = f'"{content.version}"'
    if if_match is not None and if_match not in (etag, "*"):
        raise ArtifactChanged
    headers = {
        "Accept-Ranges": "bytes",
        "ETag": etag,
        # The file is named by id, because the artifact's name may contain any characters.
        "Content-Disposition": f'attachment; filename="{artifact.id}"',
    }
    try:
        part = parse_range(range_, artifact.size)
    except RangeNotSatisfiable:
        return Response(
            status_code=416, headers=headers | {"Content-Range": f"bytes */{artifact.size}"}
        )
    start, end = (0, artifact.size) if part is None else (part.start, part.end)
    headers["Content-Length"] = str(end - start)
    if part is not None:
        headers["Content-Range"] = part.header
    return StreamingResponse(
        content.parts(start, end),
        status_code=200 if part is None else 206,
        media_type=MEDIA_TYPES.get(artifact.kind, "application/octet-stream"),
        headers=headers,
    )


@router.get("/notices", tags=["notices"])
def read_notices(
    *,
    request: Request,
    response: Response,
    deps: Injected,
    caller: Reader,
    limit: Limit = PAGE,
    before: BeforeNumber = None,
) -> list[Notice]:
    """List the caller's notices, newest first, such as hours running out or failing tasks."""
    notices = list_notices(deps.db, caller.user_id, before=number_cursor(before), limit=limit + 1)
    return paginate(request, response, notices, limit, lambda notice: notice.id)
