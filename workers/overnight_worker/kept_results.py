"""Results of runs as bytes, which a process keeps in memory until they are recorded."""

import json
from dataclasses import asdict
from typing import Any, Final

from overnight_server.domain.results import (
    Deferred,
    Interrupted,
    Raised,
    Result,
    Returned,
    StoppedByBudget,
    StoppedByCancel,
    TimedOut,
)

# The results that can be written as JSON; others are recorded at once.
KINDS: Final[dict[str, type[Any]]] = {
    kind.__name__: kind
    for kind in (
        Returned,
        Raised,
        TimedOut,
        StoppedByCancel,
        StoppedByBudget,
        Interrupted,
        Deferred,
    )
}


def encode(result: Result) -> bytes | None:
    """Return a result as bytes; None if it is of another kind, or its output is no JSON."""
    kind = type(result).__name__
    if kind not in KINDS:
        return None
    try:
        return json.dumps([kind, asdict(result)]).encode()
    except (TypeError, ValueError, RecursionError):
        return None


def decode(encoded: bytes) -> Result | None:
    """Return the result that `encode` wrote; None if the bytes are not one.

    A handler that damaged the memory of its process may have damaged them too.
    """
    try:
        kind, fields = json.loads(encoded)
        result: Result = KINDS[kind](**fields)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if isinstance(result, Returned):
        return Returned(**{**fields, "files_changed": tuple(result.files_changed)})
    return result
