"""Spans of requests and runs, sent to an OpenTelemetry receiver if the settings name one.

Without the setting nothing of OpenTelemetry is imported. The receiver may be slow or gone: spans
are sent by a thread, and what it cannot take is dropped.
"""

import os
import time
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Final
from uuid import UUID

from overnight.trace_context import format_traceparent, valid_traceparent

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

# A pool process may be ended without notice; what it has not sent by then is lost.
SEND_EVERY_MILLISECONDS: Final = 1000
TIMEOUT_SECONDS: Final = 2.0
SAMPLED: Final = 1
LOWEST_64_BITS: Final = (1 << 64) - 1
NANOSECONDS: Final = 1_000_000_000


class TracesUnavailable(Exception):
    """The settings name a receiver for traces, and the extra is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "OVERNIGHT_TRACE_ENDPOINT needs the extra `otel`: pip install 'overnight[otel]'"
        )


class Traces:
    """Makes the spans of one process and sends them; `close` sends the last ones."""

    def __init__(self, endpoint: str, service: str) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
                OTLPSpanExporter,
            )
            from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
            from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
            from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        except ImportError as error:
            raise TracesUnavailable from error
        exporter = OTLPSpanExporter(
            endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=TIMEOUT_SECONDS
        )
        self._provider = TracerProvider(resource=Resource.create({"service.name": service}))
        self._provider.add_span_processor(
            BatchSpanProcessor(exporter, schedule_delay_millis=SEND_EVERY_MILLISECONDS)
        )
        self._tracer = self._provider.get_tracer("overnight")

    def start(
        self,
        name: str,
        *,
        parent: "str | Span | None",
        at: int | None = None,
        **attributes: str | int,
    ) -> "Span":
        """Start a span below another one or a trace context, now or at an instant in nanoseconds.

        In the names of attributes two underscores stand for a point.
        """
        return self._tracer.start_span(
            name,
            context=_context(parent),
            start_time=at,
            attributes={key.replace("__", "."): value for key, value in attributes.items()},
        )

    def close(self) -> None:
        """Send what is not sent yet, and end the thread."""
        self._provider.shutdown()


def open_traces(endpoint: str | None, service: str) -> Traces | None:
    """Return the traces of this process, None without an endpoint."""
    return None if endpoint is None else _open(endpoint, service, os.getpid())


@cache
def _open(endpoint: str, service: str, _process_id: int) -> Traces:
    # For each process anew: a fork has none of the threads of its parent.
    return Traces(endpoint, service)


def traceparent_of(span: "Span") -> str:
    """Return the trace context of a span."""
    context = span.get_span_context()
    return format_traceparent(context.trace_id, context.span_id, context.trace_flags)


def traceparent_of_task(task_id: UUID) -> str:
    """Return the context of a task that came without one: all its attempts are in one trace."""
    return format_traceparent(task_id.int, (task_id.int & LOWEST_64_BITS) or 1, SAMPLED)


def nanoseconds(at: datetime) -> int:
    """Return an instant as OpenTelemetry counts it."""
    return int(at.timestamp() * NANOSECONDS)


def now_nanoseconds() -> int:
    """Return the time of this machine, on which the length of a span is measured."""
    return time.time_ns()


def _context(parent: "str | Span | None") -> "Context":
    from opentelemetry import trace  # noqa: PLC0415
    from opentelemetry.context import Context  # noqa: PLC0415
    from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
        TraceContextTextMapPropagator,
    )

    if parent is None:
        return Context()
    if not isinstance(parent, str):
        return trace.set_span_in_context(parent, Context())
    carrier: Mapping[str, str] = {"traceparent": parent} if valid_traceparent(parent) else {}
    return TraceContextTextMapPropagator().extract(carrier, Context())
