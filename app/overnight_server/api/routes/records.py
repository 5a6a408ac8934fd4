"""The routes of what happened: attempts, events and artifacts of tasks, and notices."""

import json
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from overnight.models.account import Artifact, Attempt, Notice
from overnight.models.tasks import Event
from overnight_server.api.http.authentication import Reader
from overnight_server.api.http.dependencies import Use
from overnight_server.api.http.pagination import PAGE, BeforeNumber, Limit, page_of
from overnight_server.api.http.path_params import artifact_named, number_cursor, task_named
from overnight_server.event_log.reader import Topic, last_event, read_events
from overnight_server.insight.artifacts import get_artifact, list_artifacts
from overnight_server.insight.attempts import list_attempts
from overnight_server.insight.notices import list_notices
from overnight_server.insight.tasks import get_task

router = APIRouter(prefix="/api/v1", tags=["records"])
BIGGEST_ID = 2**63 - 1
MEDIA = {"json": "application/json", "text": "text/plain; charset=utf-8"}


@router.get("/tasks/{task_id}/attempts")
def read_attempts(
    *,
    task_id: str,
    request: Request,
    response: Response,
    parts: Use,
    caller: Reader,
    limit: Limit = PAGE,
    before: BeforeNumber = None,
) -> list[Attempt]:
    """List the claims of a task, the latest first: who ran it, how it ended, what it cost."""
    cursor = number_cursor(before)
    named = task_named(task_id)
    # A claim's number is a small one; a larger cursor only means all of them.
    below = None if cursor is None else min(cursor, 2**31 - 1)
    found = list_attempts(parts.db, caller.user_id, named, before=below, limit=limit + 1)
    return page_of(request, response, found, limit, lambda attempt: attempt.epoch)


@router.get("/tasks/{task_id}/events")
def read_task_events(
    *,
    task_id: str,
    parts: Use,
    caller: Reader,
    after: Annotated[int, Query(ge=0, le=BIGGEST_ID, description="The last event seen.")] = 0,
    limit: Limit = PAGE,
) -> list[Event]:
    """List what happened to a task, the oldest first; `after` goes on from an event."""
    topic = Topic(caller.user_id, task_id=task_named(task_id))
    last_event(parts.db, topic)  # refuses what is not the caller's
    return read_events(parts.db, topic, after=after, until=BIGGEST_ID, limit=limit)


@router.get("/tasks/{task_id}/artifacts")
def read_artifacts(task_id: str, parts: Use, caller: Reader) -> list[Artifact]:
    """List what the runs of a task made for others to read."""
    named = task_named(task_id)
    get_task(parts.db, caller.user_id, named)  # refuses what is not the caller's
    return list_artifacts(parts.db, caller.user_id, named)


@router.get("/artifacts/{artifact_id}")
def read_artifact(artifact_id: str, parts: Use, caller: Reader) -> Artifact:
    """Tell what one artifact is."""
    view, _ = get_artifact(parts.db, caller.user_id, artifact_named(artifact_id))
    return view


@router.get(
    "/artifacts/{artifact_id}/content",
    response_class=Response,
    responses={
        200: {
            "description": "The content, to be saved.",
            "content": {
                "application/json": {"schema": {}, "example": {"pages": 12}},
                "text/plain": {"schema": {"type": "string"}, "example": "twelve pages"},
                "application/octet-stream": {
                    "schema": {"type": "string", "contentMediaType": "application/octet-stream"},
                    "example": "any bytes",
                },
            },
        }
    },
)
def read_artifact_content(artifact_id: str, parts: Use, caller: Reader) -> Response:
    """Return what one artifact holds; browsers save it and never show it."""
    view, content = get_artifact(parts.db, caller.user_id, artifact_named(artifact_id))
    return Response(
        _bytes(view.kind, content),
        media_type=MEDIA.get(view.kind, "application/octet-stream"),
        # The name is its task's own, and a header is no place for it.
        headers={"Content-Disposition": f'attachment; filename="{view.id}"'},
    )


@router.get("/notices")
def read_notices(
    *,
    request: Request,
    response: Response,
    parts: Use,
    caller: Reader,
    limit: Limit = PAGE,
    before: BeforeNumber = None,
) -> list[Notice]:
    """List what the caller should hear of, the latest first: hours running out, failing tasks."""
    found = list_notices(parts.db, caller.user_id, before=number_cursor(before), limit=limit + 1)
    return page_of(request, response, found, limit, lambda notice: notice.id)


def _bytes(kind: str, content: Any) -> bytes:  # noqa: ANN401 - what the kind says
    if isinstance(content, bytes):
        return content
    return (json.dumps(content) if kind == "json" else str(content)).encode()
