"""The run of a Celery task in this thread, if one is going on.

What a task submits while it runs belongs to the run: it is a child of its task.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from overnight.handlers.context import Context

DIGEST_LENGTH = 12


@dataclass
class CurrentRun:
    """One run of a Celery task, and the retry that it asked for."""

    context: Context
    args: list[Any]
    kwargs: dict[str, Any]
    retry_after: float | None = None
    _sent: Counter[str] = field(default_factory=Counter)

    def key_of(self, content: Any) -> str:
        """Return the end of a child's key: the same for the same call in a repeated run.

        It depends on what is sent, so that a run that sends something else makes another child;
        and on how often this run has sent the same.
        """
        text = json.dumps(content, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]
        self._sent[digest] += 1
        return f"{digest}-{self._sent[digest]}"


_current: ContextVar[CurrentRun | None] = ContextVar("overnight_celery_run", default=None)


def current_run() -> CurrentRun | None:
    """Return the run that this thread carries out; None outside a task."""
    return _current.get()


@contextmanager
def carried_out(run: CurrentRun) -> Iterator[None]:
    """Make this the current run until the end of the block."""
    token = _current.set(run)
    try:
        yield
    finally:
        _current.reset(token)
