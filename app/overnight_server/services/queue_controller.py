"""`QueueControllerV2`: queue, capacity and dispatch under the names of the locks' design."""

import os
import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from overnight_server.dispatch.publish import Publisher
from overnight_server.domain.claims import Claimed
from overnight_server.domain.ids import show_task
from overnight_server.domain.priority import score
from overnight_server.gate.claim import Terms, claim
from overnight_server.insight.queue_overview import queue_overview
from overnight_server.insight.tasks import get_task
from overnight_server.intake.submit import Caps, NewTask, submit
from overnight_server.outcome.settle import release
from overnight_server.services.user_locks import known
from overnight_server.settings import Settings
from overnight_server.store.db import Db

LONGEST_TITLE = 100
# Its own scale: 5 is normal and less is high. Ours: 2 is high and 3 normal.
NORMAL_FROM = 5
HIGH, NORMAL = 2, 3


class QueueControllerV2:
    """One user's way into the queue, and the daemon's way through it.

    What it selects is claimed: lock, slot and hours are taken in the same instant, so that what is
    selected can be dispatched and nothing else has to be asked.
    """

    def __init__(self, db: Db, settings: Settings, *, user: str) -> None:
        self._db = db
        self._settings = settings
        self._user = user

    def enqueue(self, project: str, prompt: str, priority: int = NORMAL_FROM) -> tuple[str, int]:
        """Queue a prompt for a project; return the task and its place in the user's queue."""
        user_id = known(self._db, self._user)
        task = NewTask(
            title=" ".join(prompt.split())[:LONGEST_TITLE],
            type=self._settings.default_type,
            project_id=project,
            spec={"prompt": prompt},
            priority=score(HIGH if priority < NORMAL_FROM else NORMAL),
        )
        made = submit(self._db, user_id, task, Caps.of(self._settings))
        place = get_task(self._db, user_id, made.task_id).queue_position
        return show_task(made.task_id), place or 0

    def get_queue_status(self) -> dict[str, Any]:
        """Return what waits, what runs and which locks are held, in the whole deployment."""
        return queue_overview(
            self._db, slots_max=self._settings.slots_max, liveness=self._liveness
        ).document()

    def read_capacity(self) -> dict[str, Any]:
        """Return the slots of the whole deployment, and who uses them."""
        return queue_overview(
            self._db, slots_max=self._settings.slots_max, liveness=self._liveness
        ).capacity()

    def has_capacity(self, capacity: Mapping[str, Any]) -> bool:
        """Whether a slot was free when the capacity was read."""
        return bool(capacity["slots"]["available"] > 0)

    def select_next_task(self, capacity: Mapping[str, Any]) -> Claimed | None:
        """Claim the next task that may start in this pool, users and locks considered."""
        if not self.has_capacity(capacity):
            return None
        taken = claim(
            self._db,
            self._settings.pool,
            holder=f"{socket.gethostname()}:{os.getpid()}:controller",
            terms=Terms.of(self._settings),
            limit=1,
        )
        return taken.claims[0] if taken.claims else None

    def dispatch(self, task: Claimed) -> bool:
        """Send a selected task to the workers; one that cannot be sent goes back at once."""
        publisher = Publisher(self._settings)
        try:
            unsent = publisher.send(self._settings.pool, [task])
        finally:
            publisher.close()
        if unsent:
            release(self._db, unsent, reason="broker")
        return not unsent

    @property
    def _liveness(self) -> timedelta:
        return timedelta(seconds=self._settings.worker_liveness)
