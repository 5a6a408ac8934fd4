"""The live stream of the dashboard: it names the tasks and graphs that have changed, nothing more.

A page asks for its parts anew (`dashboard.parts`) when the stream names what they show. So HTML is
made in one place, and what the page may see is judged there, each time.
"""

import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from http import HTTPStatus

from anyio.to_thread import run_sync as _thread
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from overnight.client.calls import HEARTBEAT_SECONDS
from overnight.errors import Refused
from overnight.models.tasks import Event
from overnight_server.api.http.dependencies import Dependencies
from overnight_server.dashboard.serve import find_visitor
from overnight_server.event_log.feed import Subscription
from overnight_server.event_log.reader import Topic, read_events
from overnight_server.store.db import DATABASE_ERRORS

#: Changes that are named one by one; of more, a message says only that there are many.
MAX_NAMED = 500
MAX_STREAM_SECONDS = 15 * 60
HEADERS = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}
RECONNECT_MILLISECONDS = 1000
KEEP_ALIVE = ": beat\n\n"


class LiveStream(StreamingResponse):
    """A stream that subscribes to the feed before its first byte, so that nothing is missed."""

    def __init__(self, request: Request, deps: Dependencies, topic: Topic) -> None:
        super().__init__((), media_type="text/event-stream", headers=HEADERS)
        self._request = request
        self._deps = deps
        self._topic = topic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send changes until the browser closes the stream, or the session ends."""
        with self._deps.feed.subscribe(self._topic) as subscription:
            self.body_iterator = _messages(self._request, self._deps, subscription)
            await super().__call__(scope, receive, send)


async def stream_changes(request: Request) -> Response:
    """Serve the stream of the signed-in user's changes; without a session, respond 401."""
    deps: Dependencies = replace(request.app.state.dependencies)
    try:
        visitor = await _thread(find_visitor, request, deps)
    except Refused as error:
        return Response(status_code=error.status)
    if visitor is None or not visitor.caller.may("tasks:read"):
        return Response(status_code=HTTPStatus.UNAUTHORIZED)
    deps.act_for(visitor.caller.served)
    return LiveStream(request, deps, Topic(visitor.caller.user_id))


async def _messages(
    request: Request, deps: Dependencies, subscription: Subscription
) -> AsyncIterator[str]:
    """Yield the stream as text; it ends with the session, and when the database fails.

    The first message tells the page that the stream reaches it, and after which event it begins.
    """
    ends_at = time.monotonic() + MAX_STREAM_SECONDS
    yield f"retry: {RECONNECT_MILLISECONDS}\n\n"
    try:
        while deps.feed.horizon is None and not deps.feed.is_closed:
            if not await subscription.wait(HEARTBEAT_SECONDS):
                yield KEEP_ALIVE
        cursor = _first(request, deps.feed.horizon or 0)
        yield f"id: {cursor}\nevent: hello\ndata: {{}}\n\n"
        while not deps.feed.is_closed and time.monotonic() < ends_at:
            events = await _thread(partial(_read, deps, subscription.topic, cursor))
            if events:
                # Checked after reading: a revoked session learns nothing after its revocation.
                if await _thread(find_visitor, request, deps) is None:
                    return
                cursor = events[-1].id
                yield message_of(events)
                if len(events) == MAX_NAMED:
                    continue
            if not await subscription.wait(HEARTBEAT_SECONDS):
                if await _thread(find_visitor, request, deps) is None:
                    return
                yield KEEP_ALIVE
    except (*DATABASE_ERRORS, Refused):
        return  # the browser reconnects and resumes


def _first(request: Request, newest: int) -> int:
    """Return the event after which to begin: the last one that the browser has seen, or now."""
    for text in (request.headers.get("last-event-id"), request.query_params.get("after")):
        if text and text.isascii() and text.isdigit() and int(text) <= newest:
            return int(text)
    return newest


def _read(deps: Dependencies, topic: Topic, after: int) -> list[Event]:
    until = deps.feed.horizon or 0
    return read_events(deps.db, topic, after=after, until=until, limit=MAX_NAMED)


def message_of(events: list[Event]) -> str:
    """Return one message: which tasks and graphs have changed."""
    tasks = dict.fromkeys(event.task_id for event in events if event.task_id is not None)
    graphs = dict.fromkeys(event.dag_id for event in events)
    data = json.dumps({"changed": [*tasks, *graphs]})
    return f"id: {events[-1].id}\nevent: change\ndata: {data}\n\n"
