"""What one process of a worker owns: its ways to Postgres and to whoever waits for news."""

from dataclasses import dataclass, field
from functools import cache, cached_property

from overnight_server.dispatch.celery_settings import agent_queue
from overnight_server.settings import Settings, current
from overnight_server.store.db import DISPATCHER, Db, Timeouts
from overnight_server.wakeups.idle_slot_listener import SlotSubscription
from overnight_server.wakeups.wake import Waker
from overnight_worker.duration_stats import Pace

# The run and its heartbeat may be writing at the same moment.
CONNECTIONS = 2


@dataclass(frozen=True)
class WorkerResources:
    """The connections of a process; opened when first used, which is after the fork."""

    settings: Settings
    db: Db
    waker: Waker
    pace: Pace = field(default_factory=Pace)

    @cached_property
    def ear(self) -> SlotSubscription:
        """What a slot of this process hears with while it lingers."""
        settings, pool = self.settings, self.settings.pool
        return SlotSubscription(
            settings.redis_url or "", settings.redis_key_prefix, pool, agent_queue(pool)
        )


@cache
def worker_resources() -> WorkerResources:
    """Return this process's connections; the main process of a pool must never ask."""
    settings = current()
    return WorkerResources(
        settings=settings,
        db=Db.connect(
            database_url(settings),
            role=DISPATCHER,
            application_name="overnight-worker",
            pool_size=CONNECTIONS,
            timeouts=Timeouts(
                statement=settings.lease_seconds / 3,
                lock=settings.lease_seconds / 6,
                # A process that stands still must not keep a lane for longer than its lease.
                idle=min(Timeouts.idle, settings.lease_seconds / 3),
                trust=1.0,
            ),
        ),
        waker=Waker(settings.redis_url or "", settings.redis_key_prefix),
    )


class NoDatabase(Exception):
    """No Postgres is named, so there is no task to run."""

    def __init__(self) -> None:
        super().__init__(
            "OVERNIGHT_DATABASE_URL is not set; name a Postgres, or let `overnight up` start one"
        )


def database_url(settings: Settings) -> str:
    """Return where Postgres is, or say that nobody said."""
    if settings.database_url is None:
        raise NoDatabase
    return settings.database_url
