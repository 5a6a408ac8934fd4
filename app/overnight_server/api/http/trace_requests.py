"""A span for each request that changes something; what the request stores is below that span."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from overnight.trace_context import valid_traceparent
from overnight_server.traces import Traces, traceparent_of

HEADER = b"traceparent"
READING = frozenset({"GET", "HEAD", "OPTIONS"})


class TraceRequests:
    """Replaces the trace context of a request by that of a span of its own, below it."""

    def __init__(self, app: ASGIApp, traces: Traces) -> None:
        self._app = app
        self._traces = traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] in READING:
            await self._app(scope, receive, send)
            return
        method = scope["method"]
        given = dict(scope["headers"]).get(HEADER, b"").decode("latin-1")
        span = self._traces.start(
            method, parent=valid_traceparent(given), http__request__method=method
        )
        headers = [header for header in scope["headers"] if header[0] != HEADER]
        headers.append((HEADER, traceparent_of(span).encode()))

        async def send_and_note(message: Message) -> None:
            if message["type"] == "http.response.start":
                span.set_attribute("http.response.status_code", message["status"])
            await send(message)

        traced = {**scope, "headers": headers}
        try:
            await self._app(traced, receive, send_and_note)
        finally:
            # The path of the route, which names no task.
            route = getattr(traced.get("route"), "path", None)
            if route is not None:
                span.update_name(f"{method} {route}")
                span.set_attribute("http.route", route)
            span.end()
