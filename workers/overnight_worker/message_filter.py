"""Drops messages that the service did not send, before Celery holds or trips over them.

Whoever can write to Redis can put anything into a queue. Celery keeps a message with a later start
(`eta`) in memory, and after a few of them reads no other message; text that is no message ends the
worker. Here such messages are dropped and counted. A dropped message loses no task: the claim that
it may have carried expires, and the task is dispatched again.
"""

from collections.abc import Callable
from typing import Final

from overnight_server.dispatch.celery_settings import EXECUTE, MAINTENANCE_QUEUE, agent_queue
from overnight_server.telemetry import LogEvent, emit
from overnight_worker.identity import WORKER_ID

# Beginning of the names of the sweeps' tasks.
SWEEPS: Final = "sweep."


def refusal(message: object) -> str | None:
    """Return why a message of a queue of ours must be dropped; None for one that we could send.

    >>> refusal({"properties": {}})
    'malformed'
    """
    match message:
        case {
            "body": str(),
            "headers": {"id": str(), "task": str(task)} as headers,
            "properties": {"delivery_tag": str(), "delivery_info": dict()},
        }:
            pass
        case _:
            return "malformed"
    if headers.get("eta") is not None:
        return "eta"
    if headers.get("timelimit") not in (None, [None, None]):
        return "time limit"
    if task != EXECUTE and not task.startswith(SWEEPS):
        return "unknown task"
    return None


class MessageFilter:
    """Looks at each message that Redis delivers; `dropped` counts the messages that it dropped."""

    def __init__(self) -> None:
        self.dropped = 0
        self._readers: dict[str, Callable[[], None]] = {}

    def read_queue(self, queue: str, reader: Callable[[], None]) -> None:
        """Call `reader` for each message of a queue, instead of passing the message on."""
        self._readers[queue] = reader

    def passes(self, message: object, queue: str) -> bool:
        """Return whether Celery gets a message; count it if it is dropped."""
        if queue in self._readers:
            self._readers[queue]()
            return False
        if queue != MAINTENANCE_QUEUE and not queue.startswith(agent_queue("")):
            # Remote control and events.
            return True
        reason = refusal(message)
        if reason is not None:
            self.drop(reason)
        return reason is None

    def drop(self, reason: str) -> None:
        """Count a dropped message; of many, the log shows the 1st, 10th, 100th and so on."""
        self.dropped += 1
        if self.dropped == 10 ** (len(str(self.dropped)) - 1):
            emit(LogEvent.MESSAGE_DROPPED, worker=WORKER_ID, reason=reason, dropped=self.dropped)


MESSAGE_FILTER: Final = MessageFilter()
