"""The W3C trace context of what runs now, so that one trace follows a task from its producer on."""

import os
import re
import sys

VARIABLE = "TRACEPARENT"
_TRACEPARENT = re.compile("00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def current_traceparent() -> str | None:
    """Return the context of the active span, else that of the variable TRACEPARENT, else None.

    Nothing is imported: if a span is active, its program has imported OpenTelemetry.
    """
    trace = sys.modules.get("opentelemetry.trace")
    if trace is not None:
        context = trace.get_current_span().get_span_context()
        if context.is_valid:
            return format_traceparent(context.trace_id, context.span_id, context.trace_flags)
    return valid_traceparent(os.environ.get(VARIABLE))


def format_traceparent(trace_id: int, span_id: int, flags: int) -> str:
    """Return a context as text.

    >>> format_traceparent(1, 2, 1)
    '00-00000000000000000000000000000001-0000000000000002-01'
    """
    return f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}"


def valid_traceparent(text: str | None) -> str | None:
    """Return the text if it is a trace context, else None.

    >>> valid_traceparent("00-00000000000000000000000000000000-0000000000000002-01")
    """
    return text if text is not None and _TRACEPARENT.fullmatch(text) else None
