"""Routes of the logs of tasks: read a part of one, or follow it as it grows."""

import json
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Annotated, Any

from anyio.to_thread import run_sync as _thread
from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from overnight.client.calls import HEARTBEAT_SECONDS
from overnight.client.event_stream import END
from overnight.errors import Unauthenticated
from overnight.models.account import LogChunk
from overnight_server.api.http.authentication import Listener, Reader, check_again
from overnight_server.api.http.dependencies import Injected
from overnight_server.api.http.pagination import PAGE, Limit
from overnight_server.api.http.params import parse_log_position, parse_task_param
from overnight_server.api.http.thread_route import ThreadRoute
from overnight_server.api.routes.event_stream import (
    HEADERS,
    KEEP_ALIVE,
    MAX_STREAM_SECONDS,
    RECONNECT_MILLISECONDS,
)
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.insight.logs import MAX_EPOCH, LogPage, read_log
from overnight_server.store.db import DATABASE_ERRORS
from overnight_server.wakeups.log_feed import LogFeed, LogFollower

router = APIRouter(route_class=ThreadRoute, prefix="/api/v1", tags=["logs"])
# How often a follower looks by itself, if no wake-up comes.
POLL_SECONDS = 1.0
POSITION = "^[0-9]{1,9}\\.[0-9]{1,9}$"
Attempt = Annotated[
    int | None,
    Query(ge=1, le=MAX_EPOCH, description="Only the log of this run; runs count from 1."),
]
#: The OpenAPI schema of one server-sent event.
CHUNK_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {
            "type": "string",
            "description": "Send it as Last-Event-ID to resume after this part.",
        },
        "event": {
            "type": "string",
            "description": "`chunk`; `run` before the first part of a run; `end` is the last one.",
        },
        "data": {"type": "string", "description": "A LogChunk as JSON."},
        "retry": {"type": "string", "description": "Milliseconds to wait before reconnecting."},
    },
    "examples": [{"id": "1.4", "event": "chunk", "data": '{"id": "1.4", …}'}],
}


class LogStream(StreamingResponse):
    """A streaming response that follows a log from before it sends its first byte."""

    def __init__(
        self,
        feed: LogFeed,
        user_id: UserId,
        task_id: TaskId,
        frames: Callable[[LogFollower], AsyncIterator[str]],
    ) -> None:
        super().__init__((), media_type="text/event-stream", headers=HEADERS)
        self._follow = partial(feed.follow, user_id, task_id)
        self._frames = frames

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send parts until there are no more, or the client disconnects."""
        with self._follow() as follower:
            self.body_iterator = self._frames(follower)
            await super().__call__(scope, receive, send)


@router.get("/tasks/{task_id}/logs")
def read_logs(
    *,
    task_id: str,
    deps: Injected,
    caller: Reader,
    after: Annotated[
        str,
        Query(
            max_length=20,
            description="Only parts after this position, the id of a part.",
            json_schema_extra={"pattern": POSITION},
        ),
    ] = "0.0",
    attempt: Attempt = None,
    limit: Limit = PAGE,
) -> list[LogChunk]:
    """List the parts of a task's log, the oldest first; `after` continues after a part."""
    position = parse_log_position("after", after)
    parsed_id = parse_task_param(task_id)
    page = read_log(deps.db, caller.user_id, parsed_id, after=position, run=attempt, limit=limit)
    return page.chunks


@router.get(
    "/tasks/{task_id}/logs/stream",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Server-sent events, each with a LogChunk as its data.",
            "content": {
                "text/event-stream": {
                    "schema": CHUNK_SCHEMA,
                    "example": CHUNK_SCHEMA["examples"][0],
                }
            },
        }
    },
)
async def stream_logs(
    *,
    task_id: str,
    request: Request,
    deps: Injected,
    caller: Listener,
    attempt: Attempt = None,
    last_event_id: Annotated[
        str | None,
        Header(
            alias="Last-Event-ID",
            max_length=20,
            description="The id of the last received part; the stream continues after it.",
            json_schema_extra={"pattern": f"^({POSITION[1:-1]})?$"},
        ),
    ] = None,
) -> StreamingResponse:
    """Stream the log of a task as server-sent events: what it holds, and then what is added.

    The stream ends when the task, or the run that was asked for, has ended. It goes on while the
    task waits for its next run.
    """
    parsed_id = parse_task_param(task_id)
    after = parse_log_position("Last-Event-ID", last_event_id or "0.0")
    read = partial(read_log, deps.db, caller.user_id, parsed_id, run=attempt, limit=PAGE)
    await _thread(partial(read, after=after))  # raises TaskNotFound for another user's task
    check = partial(check_again, request, deps, caller)
    frames = partial(_frames, deps.log_feed, after=after, read=read, check=check)
    return LogStream(deps.log_feed, caller.user_id, parsed_id, frames)


def _data(chunk: LogChunk) -> str:
    # ASCII only: some clients take other characters than a line feed for the end of a line.
    return json.dumps(chunk.model_dump(mode="json"))


async def _frames(
    feed: LogFeed,
    follower: LogFollower,
    *,
    after: tuple[int, int],
    read: Callable[..., LogPage],
    check: Callable[[], None],
) -> AsyncIterator[str]:
    """Yield the stream as text.

    It ends with the log, when the caller's key is no longer valid, when the database fails, and
    when the server stops.
    """
    ends_at = time.monotonic() + MAX_STREAM_SECONDS
    sent_at = time.monotonic()
    yield f"retry: {RECONNECT_MILLISECONDS}\n\n"
    # Sent at once, so that the client can resume even if no part follows.
    yield f"id: {after[0]}.{after[1]}\n\n"
    try:
        while not feed.is_closed and time.monotonic() < ends_at:
            page = await _thread(partial(read, after=after))
            if page.chunks:
                # Checked after reading, so that a revoked key gets nothing after its revocation.
                await _thread(check)
                for chunk in page.chunks:
                    if chunk.epoch != after[0]:
                        yield f'event: run\ndata: {{"epoch": {chunk.epoch}}}\n\n'
                    yield f"id: {chunk.id}\nevent: chunk\ndata: {_data(chunk)}\n\n"
                    after = (chunk.epoch, chunk.seq)
                sent_at = time.monotonic()
            if page.is_over:
                yield f"event: {END}\ndata: {{}}\n\n"
                return
            if len(page.chunks) == PAGE:
                continue
            if time.monotonic() - sent_at >= HEARTBEAT_SECONDS:
                await _thread(check)
                yield KEEP_ALIVE
                sent_at = time.monotonic()
            await follower.wait(POLL_SECONDS)
    except (*DATABASE_ERRORS, Unauthenticated):
        return  # the client reconnects and resumes, if its key is still valid
