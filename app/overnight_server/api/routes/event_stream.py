"""The routes that keep a caller waiting: the event stream, and the wait for a task or a graph.

They are the only `async` ones: a thread each would soon leave none for everybody else. What they
read, they read in short transactions between two waits.
"""

import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Annotated, Any, TypeVar

from anyio.to_thread import run_sync as _thread
from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse
from sqlalchemy.exc import SQLAlchemyError
from starlette.types import Receive, Scope, Send

from overnight.client.calls import HEARTBEAT_SECONDS
from overnight.client.event_stream import END
from overnight.errors import DagNotFound, InvalidRequest, TaskNotFound, Unauthenticated
from overnight.models.dags import Dag
from overnight.models.tasks import Event, TaskResponse
from overnight_server.api.http.authentication import Reader, check_again
from overnight_server.api.http.dependencies import Parts, Use
from overnight_server.domain.ids import DagId, MalformedId, TaskId, parse_dag, parse_task
from overnight_server.event_log.feed import Feed, Subscription
from overnight_server.event_log.reader import Topic, last_event, read_events
from overnight_server.insight.dags import get_dag
from overnight_server.insight.tasks import get_task
from overnight_server.store.db import DatabaseUnreachable

router = APIRouter(prefix="/api/v1", tags=["events"])
V = TypeVar("V", TaskResponse, Dag)
PAGE = 500
# After this long a stream ends by itself and is opened again.
LONGEST_SECONDS = 15 * 60
LONGEST_WAIT_SECONDS = 60
BIGGEST_ID = 2**63 - 1
# Proxies keep answers back until they are whole, unless they are told not to.
HEADERS = {"X-Accel-Buffering": "no"}
AGAIN_AFTER_MILLISECONDS = 1000
BEAT = ": beat\n\n"
#: What one event of a stream is to whoever reads it.
HEARD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "Where to resume: send it as Last-Event-ID."},
        "event": {"type": "string", "description": "What happened; `end` is the last."},
        "data": {"type": "string", "description": "An Event as JSON."},
        "retry": {"type": "string", "description": "Milliseconds to wait before resuming."},
    },
    "examples": [{"id": "1204", "event": "task.completed", "data": '{"id": 1204, …}'}],
}


class EventStream(StreamingResponse):
    """An answer that goes on, and has its place among the listeners from before its first byte.

    Whoever finds none is refused as by the route itself: nothing was sent by then.
    """

    def __init__(
        self, feed: Feed, topic: Topic, tell: Callable[[Subscription], AsyncIterator[str]]
    ) -> None:
        super().__init__((), media_type="text/event-stream", headers=HEADERS)
        self._feed = feed
        self._topic = topic
        self._tell = tell

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell until there is nothing more to tell, or nobody listens."""
        with self._feed.subscribe(self._topic) as listener:
            self.body_iterator = self._tell(listener)
            await super().__call__(scope, receive, send)


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Events, one by one, each with an Event as its data.",
            "content": {"text/event-stream": {"schema": HEARD, "example": HEARD["examples"][0]}},
        }
    },
)
async def stream_events(
    *,
    request: Request,
    parts: Use,
    caller: Reader,
    task_id: Annotated[
        str | None, Query(max_length=200, description="Only what happens to this task.")
    ] = None,
    dag_id: Annotated[
        str | None, Query(max_length=200, description="Only what happens in this graph.")
    ] = None,
    last_event_id: Annotated[
        str | None,
        Header(
            alias="Last-Event-ID",
            max_length=40,
            description="The last event that was heard; the stream goes on after it.",
            json_schema_extra={"pattern": "^[0-9]{0,18}$"},
        ),
    ] = None,
) -> StreamingResponse:
    """Tell what happens to the caller's tasks, as server-sent events.

    Last-Event-ID resumes after that event; without it the stream begins now.
    """
    if task_id is not None and dag_id is not None:
        raise InvalidRequest("dag_id", "is given beside task_id", legal="one of the two")
    topic = Topic(
        caller.user_id,
        task_id=None if task_id is None else _task_id(task_id),
        dag_id=None if dag_id is None else _dag_id(dag_id),
    )
    after = _event_id(last_event_id)
    if topic.is_bounded:
        await _thread(partial(last_event, parts.db, topic))  # refuses what is not the caller's
    check = partial(check_again, request, parts, caller)
    return EventStream(parts.feed, topic, partial(_told, parts, after=after, check=check))


@router.get("/tasks/{task_id}/wait")
async def wait_for_task(
    *,
    task_id: str,
    request: Request,
    parts: Use,
    caller: Reader,
    timeout: Annotated[  # noqa: ASYNC109 - the word of the wire
        int, Query(ge=0, le=LONGEST_WAIT_SECONDS, description="How many seconds to wait.")
    ] = 30,
) -> TaskResponse:
    """Tell how a task stands once it has ended, or when so many seconds have passed."""
    named = _task_id(task_id)
    look = partial(get_task, parts.db, caller.user_id, named)
    check = partial(check_again, request, parts, caller)
    return await _ended(parts, Topic(caller.user_id, named), look, check, timeout)


@router.get("/dags/{dag_id}/wait")
async def wait_for_dag(
    *,
    dag_id: str,
    request: Request,
    parts: Use,
    caller: Reader,
    timeout: Annotated[  # noqa: ASYNC109 - the word of the wire
        int, Query(ge=0, le=LONGEST_WAIT_SECONDS, description="How many seconds to wait.")
    ] = 30,
) -> Dag:
    """Tell how a graph stands, without its tasks, once it has ended or so many seconds passed."""
    named = _dag_id(dag_id)
    look = partial(get_dag, parts.db, caller.user_id, named, with_tasks=False)
    check = partial(check_again, request, parts, caller)
    return await _ended(parts, Topic(caller.user_id, dag_id=named), look, check, timeout)


async def _ended(
    parts: Parts, topic: Topic, look: Callable[[], V], check: Callable[[], None], seconds: float
) -> V:
    """Look until the task or graph has ended, `seconds` have passed, or the server stops."""
    deadline = time.monotonic() + seconds
    seen = await _thread(look)
    if _has_ended(seen) or not seconds:
        return seen
    with parts.feed.subscribe(topic) as listener:
        # Looked at again after listening began: it may have ended in between.
        while True:
            seen = await _thread(look)
            await _thread(check)
            left = deadline - time.monotonic()
            if _has_ended(seen) or left <= 0 or parts.feed.is_closed:
                return seen
            await listener.wait(left)


def _has_ended(seen: TaskResponse | Dag) -> bool:
    ended_at = seen.completed_at if isinstance(seen, TaskResponse) else seen.finished_at
    return ended_at is not None


async def _told(
    parts: Parts, listener: Subscription, *, after: int | None, check: Callable[[], None]
) -> AsyncIterator[str]:
    """Write the stream.

    It ends when nothing can follow, when the key that opened it no longer opens the door, and
    whenever the deployment must stop.
    """
    topic = listener.topic
    ends_at = time.monotonic() + LONGEST_SECONDS
    look = partial(last_event, parts.db, topic)
    yield f"retry: {AGAIN_AFTER_MILLISECONDS}\n\n"
    try:
        while parts.feed.horizon is None and not parts.feed.is_closed:
            if not await listener.wait(HEARTBEAT_SECONDS):
                yield BEAT
        cursor = after
        if cursor is None:
            cursor = parts.feed.horizon or 0
            # Known from the first moment on where to resume, even if nothing happens.
            yield f"id: {cursor}\n\n"
        while not parts.feed.is_closed and time.monotonic() < ends_at:
            last = await _thread(look) if topic.is_bounded else None
            async for event in _news(parts, topic, cursor, check):
                yield _frame(event)
                cursor = event.id
            if last is not None and cursor >= last:
                yield f"event: {END}\ndata: {{}}\n\n"
                return
            if not await listener.wait(HEARTBEAT_SECONDS):
                await _thread(check)
                yield BEAT
    except (DatabaseUnreachable, SQLAlchemyError, Unauthenticated):
        return  # the listener comes back to where it was, if the door opens


async def _news(
    parts: Parts, topic: Topic, after: int, check: Callable[[], None]
) -> AsyncIterator[Event]:
    """Read all that is certain after one event, a page at a time."""
    while True:
        until = parts.feed.horizon or 0
        page = await _thread(
            partial(read_events, parts.db, topic, after=after, until=until, limit=PAGE)
        )
        if page:
            # After the reading: what happened since the key was shut off is not told.
            await _thread(check)
        for event in page:
            yield event
        if len(page) < PAGE:
            return
        after = page[-1].id


def _frame(event: Event) -> str:
    data = event.model_dump_json()
    return f"id: {event.id}\nevent: {event.kind}\ndata: {data}\n\n"


def _task_id(text: str) -> TaskId:
    try:
        return parse_task(text)
    except MalformedId:
        raise TaskNotFound from None


def _dag_id(text: str) -> DagId:
    try:
        return parse_dag(text)
    except MalformedId:
        raise DagNotFound from None


def _event_id(text: str | None) -> int | None:
    """Read where to resume; browsers send an empty one where none was ever told."""
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and int(text) <= BIGGEST_ID):
        raise InvalidRequest("Last-Event-ID", "is no event", legal="the id of an event, or 0")
    return int(text)
