"""`QueueControllerV2`: queue, capacity and dispatch (interface of the user locks document)."""

import os
import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from overnight.models.admin import QueueOverview
from overnight_server.dispatch.publish import Publisher
from overnight_server.domain.claims import Claimed
from overnight_server.domain.ids import show_task
from overnight_server.domain.priority import score
from overnight_server.gate.claim import ClaimSettings, claim
from overnight_server.insight.queue_overview import queue_overview
from overnight_server.insight.tasks import get_task
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import NewTask
from overnight_server.intake.submit import submit
from overnight_server.outcome.settle import release
from overnight_server.services.user_locks import user_by_name
from overnight_server.settings import Settings
from overnight_server.store.db import Db

LONGEST_TITLE = 100
# In the document's scale 5 is normal and a lower number is high; on the wire 2 is high, 3 normal.
NORMAL_FROM = 5
HIGH, NORMAL = 2, 3


class QueueControllerV2:
    """Queues one user's prompts, and selects and dispatches tasks of all users.

    `select_next_task` claims the task: lock, slot and hours are taken in the same transaction, so a
    selected task can be dispatched without another check.
    """

    def __init__(self, db: Db, settings: Settings, *, user: str) -> None:
        self._db = db
        self._settings = settings
        self._user = user

    def enqueue(self, project: str, prompt: str, priority: int = NORMAL_FROM) -> tuple[str, int]:
        """Queue a prompt for a project; return the task id and its position in the user's queue."""
        user_id = user_by_name(self._db, self._user)
        task = NewTask(
            title=" ".join(prompt.split())[:LONGEST_TITLE],
            type=self._settings.default_type,
            project_id=project,
            spec={"prompt": prompt},
            priority=score(HIGH if priority < NORMAL_FROM else NORMAL),
        )
        made = submit(self._db, user_id, task, Caps.of(self._settings))
        position = get_task(self._db, user_id, made.task_id).queue_position
        return show_task(made.task_id), position or 0

    def get_queue_status(self) -> dict[str, Any]:
        """Return pending and active tasks and the held locks of all users."""
        return self._overview().model_dump()

    def read_capacity(self) -> dict[str, Any]:
        """Return the slots of all workers, and how many each user and project uses."""
        active = self._overview().active
        used, most = active.slots_used, active.slots_max
        return {
            "slots": {"max": most, "used": used, "available": max(0, most - used)},
            "by_project": active.by_project,
            "by_user": active.by_user,
        }

    def has_capacity(self, capacity: Mapping[str, Any]) -> bool:
        """Whether a slot was free when the capacity was read."""
        return bool(capacity["slots"]["available"] > 0)

    def select_next_task(self, capacity: Mapping[str, Any]) -> Claimed | None:
        """Claim the next task that the gate allows in this pool; None if there is none."""
        if not self.has_capacity(capacity):
            return None
        taken = claim(
            self._db,
            self._settings.pool,
            holder=f"{socket.gethostname()}:{os.getpid()}:controller",
            claim_settings=ClaimSettings.from_settings(self._settings),
            limit=1,
        )
        return taken.claims[0] if taken.claims else None

    def dispatch(self, task: Claimed) -> bool:
        """Publish a selected task; if that fails, release its claim and return False."""
        publisher = Publisher(self._settings)
        try:
            unsent = publisher.send(self._settings.pool, [task])
        finally:
            publisher.close()
        if unsent:
            release(self._db, unsent, reason="broker")
        return not unsent

    def _overview(self) -> QueueOverview:
        liveness = timedelta(seconds=self._settings.worker_liveness)
        return queue_overview(self._db, slots_max=self._settings.slots_max, liveness=liveness)
