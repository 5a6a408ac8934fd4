"""The connections of one worker process: to Postgres, and to Redis for wake-ups."""

from dataclasses import dataclass, field
from functools import cache, cached_property

from overnight_server.artifact_store.store import ArtifactStore, open_store
from overnight_server.dispatch.celery_settings import agent_queue
from overnight_server.settings import Settings, current
from overnight_server.store.db import DISPATCHER, Db, Timeouts
from overnight_server.traces import Traces, open_traces
from overnight_server.wakeups.idle_slot_listener import SlotSubscription
from overnight_server.wakeups.wake import CANCELS_CHANNEL, Waker, WakeUpListener
from overnight_worker.duration_stats import DurationStats
from overnight_worker.run_log import LogWriter

# The run and its heartbeat may write at the same moment.
CONNECTIONS = 2


@dataclass(frozen=True)
class WorkerResources:
    """The connections of a process; each is opened when first used, which is after the fork."""

    settings: Settings
    db: Db
    waker: Waker
    durations: DurationStats = field(default_factory=DurationStats)

    @cached_property
    def slot_subscription(self) -> SlotSubscription:
        """The subscription that wakes a slot of this process while it is idle."""
        settings, pool = self.settings, self.settings.pool
        return SlotSubscription(
            settings.redis_url or "", settings.redis_key_prefix, pool, agent_queue(pool)
        )

    @cached_property
    def artifact_store(self) -> ArtifactStore | None:
        """Where large artifacts are kept, None for Postgres."""
        return open_store(self.settings.artifact_store)

    @cached_property
    def log_writer(self) -> LogWriter:
        """Writes the logs of this process's runs."""
        return LogWriter(self.db, self.waker.log_grew)

    @cached_property
    def traces(self) -> Traces | None:
        """Sends spans of runs, None if the settings name no receiver."""
        return open_traces(self.settings.trace_endpoint, "overnight-worker")

    def cancel_listener(self) -> WakeUpListener | None:
        """Return a new listener for cancels, None without Redis; each lease has its own thread."""
        url, prefix = self.settings.redis_url, self.settings.redis_key_prefix
        return WakeUpListener(url, prefix, CANCELS_CHANNEL) if url else None


@cache
def worker_resources() -> WorkerResources:
    """Return this process's connections; the main process of a pool must not call this."""
    settings = current()
    waker = Waker(settings.redis_url or "", settings.redis_key_prefix)
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
                # A process that stands still must not lock a lane for longer than its lease.
                idle=min(Timeouts.idle, settings.lease_seconds / 3),
                trust=1.0,
            ),
            wake_ups=waker,
        ),
        waker=waker,
    )


class NoDatabase(Exception):
    """The settings name no Postgres, so there is no task to run."""

    def __init__(self) -> None:
        super().__init__(
            "OVERNIGHT_DATABASE_URL is not set; set it, or let `overnight up` start a Postgres"
        )


def database_url(settings: Settings) -> str:
    """Return the URL of Postgres; raise NoDatabase if the settings have none."""
    if settings.database_url is None:
        raise NoDatabase
    return settings.database_url
