"""The single queue of prompts, in the words of its design; reached as `client.queue`."""

from collections.abc import Mapping
from typing import Any, TypedDict, Unpack
from urllib.parse import quote

from overnight.client.account_calls import asked, read, send
from overnight.client.operations import D, Group, operation
from overnight.client.task_calls import Call
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
    """The fields of QueueSubmit besides its prompt, for editors; None counts as left out."""

    model: str | None
    timeout_seconds: int | None
    session_id: str | None
    project: str | Mapping[str, Any] | None
    env: Mapping[str, str] | None
    thinking: bool | None
    source: str | None
    source_job: str | None


class Queue(Group[D]):
    """Prompts for whichever agent is free first; reached as `client.queue`.

    A submit that may have been lost on its way is not made one by a key, as a task is: look at the
    queue before you send it again.
    """

    @operation
    def submit(self, prompt: str, **fields: Unpack[PromptFields]) -> Call[QueueAccepted]:
        """Queue a prompt and return its entry's name and place."""
        given = {name: value for name, value in fields.items() if value is not None}
        body = asked(QueueSubmit, {"prompt": prompt, **given})
        return send(QueueAccepted, "POST", f"{QUEUE}/task", body)

    @operation
    def list(self, *, limit: int = 100) -> Call[QueueListing]:
        """Return how full the queue is, and your entries that have not ended."""
        return read(QueueListing, QUEUE, limit=limit)

    @operation
    def get(self, queue_id: str) -> Call[QueuedTask]:
        """Return one entry: its place while it waits, and who has it once it is dispatched."""
        return read(QueuedTask, f"{QUEUE}/{quote(queue_id, safe='')}")

    @operation
    def cancel(self, queue_id: str) -> Call[QueueCancelled]:
        """Cancel an entry; one that an agent has is stopped at its next heartbeat."""
        return send(QueueCancelled, "POST", f"{QUEUE}/{quote(queue_id, safe='')}/cancel")

    @operation
    def status(self) -> Call[ServiceStatus]:
        """Return what the service is, and how full its queue is."""
        return read(ServiceStatus, "/status")
