"""A worker of agents shows itself: what it can do, that it lives, and that it leaves.

Everything here happens in the main process, on its own timer: it forks, so it may own no thread.
"""

from datetime import timedelta
from typing import Any, Final, TypeAlias

from celery.bootsteps import StartStopStep

from overnight.handlers.registry import capabilities_offered, registered
from overnight_server.dispatch.celery_settings import agent_queue
from overnight_server.fault_points import fault
from overnight_server.outcome.presence import AgentCard, beat, join, leave
from overnight_server.settings import Settings, current
from overnight_server.store.db import Db
from overnight_server.telemetry import Event, emit
from overnight_worker.dead_children import DEAD_CHILDREN
from overnight_worker.identity import WORKER_ID
from overnight_worker.load_handlers import HandlersNotLoaded, load_handlers
from overnight_worker.one_shot_connection import say
from overnight_worker.resources import NoDatabase, database_url

# Celery's worker, which gains its parts only as it starts.
CeleryWorker: TypeAlias = Any

# Two beats may get lost before a worker's slots no longer count.
BEATS_PER_LIVENESS: Final = 3
# Celery looks for dead children every five seconds; half of them it misses until then.
POOL_CHECK_SECONDS: Final = 0.5
DRAINING: Final = "draining"


def card_of(settings: Settings, *, slots: int) -> AgentCard:
    """Write the card of this worker: what it was told it can do, and what its handlers can."""
    offered = {*settings.capabilities, *capabilities_offered(), f"agent:{settings.pool}"}
    return AgentCard(
        id=WORKER_ID,
        pool=settings.pool,
        capabilities=tuple(sorted(offered)),
        slots=slots,
        types=tuple(sorted(registered())),
        budget_usd=settings.agent_budget_usd,
    )


class Presence(StartStopStep):
    """The part of Celery's start that only a worker of agents has, not one of maintenance."""

    requires = ("celery.worker.components:Timer", "celery.worker.components:Pool")

    def include_if(self, parent: CeleryWorker) -> bool:
        """Be part of the start only where agents' tasks are taken."""
        return _serves_agents(parent)

    def create(self, parent: CeleryWorker) -> None:
        """Check what no run can do without, before any child is forked: handlers and Postgres."""
        self._timers: list[Any] = []
        self._worker = parent
        self._deaf = False
        self._settings = current()
        try:
            database_url(self._settings)
            load_handlers(self._settings.handlers)
        except (NoDatabase, HandlersNotLoaded) as error:
            raise SystemExit(f"overnight worker: {error}") from error
        self._card = card_of(self._settings, slots=parent.concurrency)

    def start(self, parent: CeleryWorker) -> None:
        """Be seen from now on.

        The timers first fire when the worker listens to Redis, and rest while it cannot.
        """
        self._timers = [
            parent.timer.call_after(0, self.say_alive),
            parent.timer.call_repeatedly(
                self._settings.worker_liveness / BEATS_PER_LIVENESS, self.say_alive
            ),
            parent.timer.call_repeatedly(POOL_CHECK_SECONDS, self.see_to_the_pool),
        ]

    def close(self, parent: CeleryWorker) -> None:  # noqa: ARG002 - Celery's signature
        """Be seen no more, so that nothing new is sent here while the last runs end."""
        for timer in self._timers:
            timer.cancel()
        fault("presence.before_leave")
        if say(self._settings, lambda db: leave(db, WORKER_ID)):
            emit(Event.WORKER_LEFT, worker=WORKER_ID, pool=self._card.pool, reason="shutdown")

    def say_alive(self) -> None:
        """Tell the deployment that this worker lives, and hear whether it should take more work."""
        fault("presence.before_beat")
        liveness = timedelta(seconds=self._settings.worker_liveness)
        heard: list[str] = []
        if say(self._settings, lambda db: heard.append(show_up(db, self._card, liveness=liveness))):
            self._listen(draining=heard[-1] == DRAINING)
        fault("presence.after_beat")

    def see_to_the_pool(self) -> None:
        """Replace the children that died, and tell what died with them."""
        self._worker.pool.maintain_pool()
        DEAD_CHILDREN.tell(self._settings)

    def _listen(self, *, draining: bool) -> None:
        """Take messages, or leave them to the others of the pool while the last runs end."""
        if draining == self._deaf:
            return
        queue = agent_queue(self._card.pool)
        if draining:
            self._worker.consumer.cancel_task_queue(queue)
        else:
            self._worker.consumer.add_task_queue(queue)
        self._deaf = draining
        emit(Event.WORKER_DRAINING if draining else Event.WORKER_JOINED, **self._known())

    def _known(self) -> dict[str, object]:
        return {"worker": WORKER_ID, "pool": self._card.pool, "slots": self._card.slots}


def show_up(db: Db, card: AgentCard, *, liveness: timedelta) -> str:
    """Beat, or join if away for long; return whether the worker is `active` or `draining`."""
    status = beat(db, card.id, liveness=liveness)
    if status is not None:
        return status
    status = join(db, card)
    emit(
        Event.WORKER_JOINED,
        worker=card.id,
        pool=card.pool,
        slots=card.slots,
        capabilities=card.capabilities,
    )
    return status


def _serves_agents(worker: CeleryWorker) -> bool:
    return agent_queue(current().pool) in worker.app.amqp.queues.consume_from
