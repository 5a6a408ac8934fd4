"""A worker of agents shows itself: what it can do, that it lives, and that it leaves.

Everything here happens in the main process, which forks: it may own no thread and no connection,
so each word to Postgres opens a connection of its own and closes it again.
"""

from collections.abc import Callable
from typing import Any, Final

from celery.bootsteps import StartStopStep
from sqlalchemy.exc import SQLAlchemyError

from app.dispatch.celery_settings import agent_queue
from app.outcome.presence import AgentCard, beat, join, leave
from app.settings import Settings, current
from app.store.db import DISPATCHER, DatabaseUnreachable, Db, Timeouts
from app.telemetry import Event, emit
from overnight.handlers import capabilities_offered, registered
from workers.child import database_url
from workers.identity import WORKER_ID
from workers.loading import HandlersNotLoaded, load_handlers

BEAT_SECONDS: Final = 5.0
# Celery looks for dead children every five seconds; half of them it misses until then.
POOL_CHECK_SECONDS: Final = 0.5
# The main loop stands still meanwhile.
PATIENCE: Final = Timeouts(connect=2, statement=2.0, lock=1.0, idle=2.0)


def card_of(settings: Settings, *, slots: int) -> AgentCard:
    """Write the card of this worker: what it was told it can do, and what its handlers can."""
    offered = {*settings.capabilities, *capabilities_offered(), f"agent:{settings.pool}"}
    return AgentCard(
        id=WORKER_ID,
        pool=settings.pool,
        capabilities=tuple(sorted(offered)),
        slots=slots,
        types=tuple(sorted(registered())),
    )


class Presence(StartStopStep):
    """The part of Celery's start that only a worker of agents has, not one of maintenance."""

    requires = ("celery.worker.components:Timer", "celery.worker.components:Pool")

    def include_if(self, parent: Any) -> bool:  # noqa: ANN401 - as above
        """Be part of the start only where agents' tasks are taken."""
        return _serves_agents(parent)

    def create(self, parent: Any) -> None:  # noqa: ANN401 - as above
        """Load the handlers before any child is forked; without them no worker starts."""
        self._timers: list[Any] = []
        self._settings = current()
        try:
            load_handlers(self._settings.handlers)
        except HandlersNotLoaded as error:
            raise SystemExit(f"overnight worker: {error}") from error
        self._card = card_of(self._settings, slots=parent.concurrency)

    def start(self, parent: Any) -> None:  # noqa: ANN401 - as above
        """Be seen from now on.

        The timers first fire when the worker listens to Redis, and rest while it cannot.
        """
        self._timers = [
            parent.timer.call_after(0, self.announce),
            parent.timer.call_repeatedly(BEAT_SECONDS, self.say_alive),
            parent.timer.call_repeatedly(POOL_CHECK_SECONDS, parent.pool.maintain_pool),
        ]

    def close(self, parent: Any) -> None:  # noqa: ANN401, ARG002 - Celery's signature
        """Be seen no more, so that nothing new is sent here while the last runs end."""
        for timer in self._timers:
            timer.cancel()
        if self._speak(lambda db: leave(db, WORKER_ID)):
            emit(Event.WORKER_LEFT, worker=WORKER_ID, pool=self._card.pool, reason="shutdown")

    def announce(self) -> None:
        """Offer this worker's slots."""
        if self._speak(lambda db: join(db, self._card)):
            emit(
                Event.WORKER_JOINED,
                worker=WORKER_ID,
                pool=self._card.pool,
                slots=self._card.slots,
                capabilities=self._card.capabilities,
            )

    def say_alive(self) -> None:
        """Beat; a worker that was given up meanwhile comes anew."""
        known: list[bool] = []
        if self._speak(lambda db: known.append(beat(db, WORKER_ID))) and known != [True]:
            self.announce()

    def _speak(self, word: Callable[[Db], None]) -> bool:
        """Say one word to Postgres; if it is away, the next beat says the same again."""
        db = Db.connect(
            database_url(self._settings),
            role=DISPATCHER,
            application_name="overnight-presence",
            pool_size=1,
            timeouts=PATIENCE,
        )
        try:
            word(db)
        except (DatabaseUnreachable, SQLAlchemyError) as error:
            emit(Event.DATABASE_UNREACHABLE, error=error)
            return False
        finally:
            db.close()
        return True


def _serves_agents(worker: Any) -> bool:  # noqa: ANN401 - as above
    return agent_queue(current().pool) in worker.app.amqp.queues.consume_from
