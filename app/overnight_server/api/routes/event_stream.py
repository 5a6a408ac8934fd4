"""Routes that stay open: the event stream, and the wait for the end of a task or graph.

They are `async`, because with one thread each the thread pool would soon be empty. They read the
database in short transactions between two waits, in a worker thread.
"""

import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Annotated, Any, TypeVar

from anyio.to_thread import run_sync as _thread
from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from overnight.client.calls import HEARTBEAT_SECONDS
from overnight.client.event_stream import END
from overnight.errors import InvalidRequest, Unauthenticated
from overnight.models.dags import Dag
from overnight.models.tasks import Event, TaskResponse
from overnight_server.api.http.authentication import Listener, check_again
from overnight_server.api.http.dependencies import Dependencies, Injected
from overnight_server.api.http.params import parse_dag_param, parse_task_param
from overnight_server.api.http.thread_route import ThreadRoute
from overnight_server.event_log.feed import Feed, Subscription
from overnight_server.event_log.reader import Topic, last_event, read_events
from overnight_server.insight.dags import get_dag
from overnight_server.insight.tasks import get_task
from overnight_server.store.db import DATABASE_ERRORS

router = APIRouter(route_class=ThreadRoute, prefix="/api/v1", tags=["events"])
V = TypeVar("V", TaskResponse, Dag)
PAGE = 500
# A stream ends after this time, and the client opens it again.
MAX_STREAM_SECONDS = 15 * 60
MAX_WAIT_SECONDS = 60
MAX_EVENT_ID = 2**63 - 1
# Proxies would otherwise buffer the response until it is complete.
HEADERS = {"X-Accel-Buffering": "no"}
RECONNECT_MILLISECONDS = 1000
KEEP_ALIVE = ": beat\n\n"
#: The OpenAPI schema of one server-sent event.
EVENT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {
            "type": "string",
            "description": "Send it as Last-Event-ID to resume after this event.",
        },
        "event": {"type": "string", "description": "The kind of event; `end` is the last one."},
        "data": {"type": "string", "description": "An Event as JSON."},
        "retry": {"type": "string", "description": "Milliseconds to wait before reconnecting."},
    },
    "examples": [{"id": "1204", "event": "task.completed", "data": '{"id": 1204, …}'}],
}


class EventStream(StreamingResponse):
    """A streaming response that subscribes to the feed before it sends its first byte.

    If the user has too many subscriptions, that raises TooManyStreams, and the client still gets
    an error response.
    """

    def __init__(
        self, feed: Feed, topic: Topic, frames: Callable[[Subscription], AsyncIterator[str]]
    ) -> None:
        super().__init__((), media_type="text/event-stream", headers=HEADERS)
        self._feed = feed
        self._topic = topic
        self._frames = frames

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until there are no more, or the client disconnects."""
        with self._feed.subscribe(self._topic) as subscription:
            self.body_iterator = self._frames(subscription)
            await super().__call__(scope, receive, send)


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Server-sent events, each with an Event as its data.",
            "content": {
                "text/event-stream": {
                    "schema": EVENT_SCHEMA,
                    "example": EVENT_SCHEMA["examples"][0],
                }
            },
        }
    },
)
async def stream_events(
    *,
    request: Request,
    deps: Injected,
    caller: Listener,
    task_id: Annotated[
        str | None, Query(max_length=200, description="Only events of this task.")
    ] = None,
    dag_id: Annotated[
        str | None, Query(max_length=200, description="Only events of this graph.")
    ] = None,
    last_event_id: Annotated[
        str | None,
        Header(
            alias="Last-Event-ID",
            max_length=40,
            description="The id of the last received event; the stream continues after it.",
            json_schema_extra={"pattern": "^[0-9]{0,18}$"},
        ),
    ] = None,
) -> StreamingResponse:
    """Stream the events of the caller's tasks as server-sent events.

    Last-Event-ID resumes after that event; without it the stream begins now.
    """
    if task_id is not None and dag_id is not None:
        raise InvalidRequest(
            "dag_id", "cannot be combined with task_id", legal="one of the two, or neither"
        )
    topic = Topic(
        caller.user_id,
        task_id=None if task_id is None else parse_task_param(task_id),
        dag_id=None if dag_id is None else parse_dag_param(dag_id),
    )
    after = _parse_event_id(last_event_id)
    if topic.is_bounded:
        await _thread(
            partial(last_event, deps.db, topic)
        )  # raises TaskNotFound or DagNotFound if the user has no such task or graph
    check = partial(check_again, request, deps, caller)
    return EventStream(deps.feed, topic, partial(_frames, deps, after=after, check=check))


@router.get("/tasks/{task_id}/wait")
async def wait_for_task(
    *,
    task_id: str,
    request: Request,
    deps: Injected,
    caller: Listener,
    timeout: Annotated[  # noqa: ASYNC109 - the name on the wire
        int, Query(ge=0, le=MAX_WAIT_SECONDS, description="How many seconds to wait.")
    ] = 30,
) -> TaskResponse:
    """Return a task once it has ended, or as it is after `timeout` seconds."""
    parsed_id = parse_task_param(task_id)
    read = partial(get_task, deps.db, caller.user_id, parsed_id)
    check = partial(check_again, request, deps, caller)
    return await _wait_for_end(deps, Topic(caller.user_id, parsed_id), read, check, timeout)


@router.get("/dags/{dag_id}/wait")
async def wait_for_dag(
    *,
    dag_id: str,
    request: Request,
    deps: Injected,
    caller: Listener,
    timeout: Annotated[  # noqa: ASYNC109 - the name on the wire
        int, Query(ge=0, le=MAX_WAIT_SECONDS, description="How many seconds to wait.")
    ] = 30,
) -> Dag:
    """Return a graph without its tasks once it has ended, or as it is after `timeout` seconds."""
    parsed_id = parse_dag_param(dag_id)
    read = partial(get_dag, deps.db, caller.user_id, parsed_id, with_tasks=False)
    check = partial(check_again, request, deps, caller)
    topic = Topic(caller.user_id, dag_id=parsed_id)
    return await _wait_for_end(deps, topic, read, check, timeout)


async def _wait_for_end(
    deps: Dependencies,
    topic: Topic,
    read: Callable[[], V],
    check: Callable[[], None],
    seconds: float,
) -> V:
    """Read a task or graph until it has ended, `seconds` have passed, or the server stops."""
    deadline = time.monotonic() + seconds
    current = await _thread(read)
    if _has_ended(current) or not seconds:
        return current
    with deps.feed.subscribe(topic) as subscription:
        # Read again after the subscription began: it may have ended in between.
        while True:
            current = await _thread(read)
            await _thread(check)
            left = deadline - time.monotonic()
            if _has_ended(current) or left <= 0 or deps.feed.is_closed:
                return current
            await subscription.wait(left)


def _has_ended(current: TaskResponse | Dag) -> bool:
    if isinstance(current, TaskResponse):
        return current.completed_at is not None
    return current.finished_at is not None


async def _frames(
    deps: Dependencies, subscription: Subscription, *, after: int | None, check: Callable[[], None]
) -> AsyncIterator[str]:
    """Yield the stream as text.

    It ends when no event can follow, when the caller's key is no longer valid, when the database
    fails, and when the server stops.
    """
    topic = subscription.topic
    ends_at = time.monotonic() + MAX_STREAM_SECONDS
    read_last = partial(last_event, deps.db, topic)
    yield f"retry: {RECONNECT_MILLISECONDS}\n\n"
    try:
        while deps.feed.horizon is None and not deps.feed.is_closed:
            if not await subscription.wait(HEARTBEAT_SECONDS):
                yield KEEP_ALIVE
        cursor = after
        if cursor is None:
            cursor = deps.feed.horizon or 0
            # Sent at once, so that the client can resume even if no event follows.
            yield f"id: {cursor}\n\n"
        while not deps.feed.is_closed and time.monotonic() < ends_at:
            last = await _thread(read_last) if topic.is_bounded else None
            async for event in _new_events(deps, topic, cursor, check):
                yield _frame(event)
                cursor = event.id
            if last is not None and cursor >= last:
                yield f"event: {END}\ndata: {{}}\n\n"
                return
            if not await subscription.wait(HEARTBEAT_SECONDS):
                await _thread(check)
                yield KEEP_ALIVE
    except (*DATABASE_ERRORS, Unauthenticated):
        return  # the client reconnects and resumes, if its key is still valid


async def _new_events(
    deps: Dependencies, topic: Topic, after: int, check: Callable[[], None]
) -> AsyncIterator[Event]:
    """Yield all committed events after one, read page by page."""
    while True:
        until = deps.feed.horizon or 0
        page = await _thread(
            partial(read_events, deps.db, topic, after=after, until=until, limit=PAGE)
        )
        if page:
            # Checked after reading, so that a revoked key gets no event after its revocation.
            await _thread(check)
        for event in page:
            yield event
        if len(page) < PAGE:
            return
        after = page[-1].id


def _frame(event: Event) -> str:
    return f"id: {event.id}\nevent: {event.kind}\ndata: {event.model_dump_json()}\n\n"


def _parse_event_id(text: str | None) -> int | None:
    """Return the event after which to resume; browsers send an empty text if they have none."""
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and int(text) <= MAX_EVENT_ID):
        raise InvalidRequest(
            "Last-Event-ID", "is not an event id", legal="the id of an event, or 0"
        )
    return int(text)
