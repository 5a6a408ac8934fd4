"""The single queue of prompts for agents; available as `client.queue`."""

from collections.abc import Mapping
from typing import Any, TypedDict, Unpack
from urllib.parse import quote

from overnight.client.calls import Call, read, send, without_none
from overnight.client.operations import D, Group, operation
from overnight.models.field_errors import validate
from overnight.models.queue import (
    QueueAccepted,
    QueueCancelled,
    QueuedTask,
    QueueListing,
    QueueSubmit,
    ServiceStatus,
)

QUEUE = "/api/queue"


class PromptFields(TypedDict, total=False):
    """The fields of QueueSubmit besides `prompt`, for type checkers; None means not given."""

    model: str | None
    timeout_seconds: int | None
    session_id: str | None
    project: str | Mapping[str, Any] | None
    env: Mapping[str, str] | None
    thinking: bool | None
    source: str | None
    source_job: str | None


class Queue(Group[D]):
    """Prompts for the first free agent; available as `client.queue`.

    A submit has no idempotency key. If its response was lost, read the queue before you send the
    prompt again.
    """

    @operation
    def submit(self, prompt: str, **fields: Unpack[PromptFields]) -> Call[QueueAccepted]:
        """Submit a prompt and return the id and position of its entry."""
        body = validate(QueueSubmit, {"prompt": prompt, **without_none(fields)})
        return send(QueueAccepted, "POST", f"{QUEUE}/task", body)

    @operation
    def list(self, *, limit: int = 100) -> Call[QueueListing]:
        """Return the size of the queue, and your entries that have not ended."""
        return read(QueueListing, QUEUE, limit=limit)

    @operation
    def get(self, queue_id: str) -> Call[QueuedTask]:
        """Return one entry: its position while it waits, its agent once it is dispatched."""
        return read(QueuedTask, f"{QUEUE}/{quote(queue_id, safe='')}")

    @operation
    def cancel(self, queue_id: str) -> Call[QueueCancelled]:
        """Cancel an entry; an agent that works on it is requested to stop."""
        return send(QueueCancelled, "POST", f"{QUEUE}/{quote(queue_id, safe='')}/cancel")

    @operation
    def status(self) -> Call[ServiceStatus]:
        """Return the version of the service and the size of its queue."""
        return read(ServiceStatus, "/status")
