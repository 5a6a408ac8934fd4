"""Registers a worker of agents in Postgres, and sends its own heartbeats.

Everything here runs on Celery's timer in the main process. The main process forks, so it must have
no other thread.
"""

from datetime import timedelta
from typing import Any, Final, TypeAlias

from billiard.compat import mem_rss
from celery.bootsteps import StartStopStep

from overnight.handlers.registry import capabilities_offered, registered
from overnight_server.dispatch.celery_settings import agent_queue
from overnight_server.domain.capabilities import (
    COMMAND,
    PYTHON,
    RUNNER_PREFIX,
    runner_capability,
)
from overnight_server.fault_points import fault
from overnight_server.outcome.presence import (
    WorkerDescription,
    join,
    leave,
    mark_deaf,
    record_heartbeat,
)
from overnight_server.settings import Settings, current
from overnight_server.store.db import Db
from overnight_server.telemetry import LogEvent, emit
from overnight_worker.canary import CANARY_QUEUE, Canary, canary_queue
from overnight_worker.claim_registry import CLAIM_REGISTRY
from overnight_worker.dead_pool_processes import DEAD_POOL_PROCESSES
from overnight_worker.identity import WORKER_ID
from overnight_worker.load_handlers import HandlersNotLoaded, load_handlers
from overnight_worker.message_filter import MESSAGE_FILTER
from overnight_worker.one_shot_connection import with_connection
from overnight_worker.pool_guard import POOL_GUARD
from overnight_worker.resources import NoDatabase, database_url
from overnight_worker.restart import RESTART
from overnight_worker.run_directory import remove_left_workspaces
from overnight_worker.runners.choose import RUNNERS
from overnight_worker.sandbox_report import report_sandbox

# Celery's worker, whose parts are set as it starts.
CeleryWorker: TypeAlias = Any

# Two heartbeats may be lost before a worker's slots no longer count.
HEARTBEATS_PER_LIVENESS: Final = 3
# Celery checks for dead pool processes only every five seconds.
POOL_CHECK_SECONDS: Final = 0.5
DRAINING: Final = "draining"


class HandlersTooLarge(Exception):
    """The handlers' modules alone use the memory after which a pool process is replaced."""

    def __init__(self, used_mb: int, limit_mb: int) -> None:
        super().__init__(
            f"with its handlers imported, the worker uses {used_mb} MB of memory, so every pool "
            f"process would be replaced after each message; set OVERNIGHT_MAX_MEMORY_PER_CHILD_MB "
            f"above {used_mb} (it is {limit_mb})"
        )


def check_memory(settings: Settings) -> None:
    """Raise HandlersTooLarge if a new pool process would already be at its memory limit."""
    used_mb = mem_rss() // 1024
    if used_mb >= settings.max_memory_per_child_mb:
        raise HandlersTooLarge(used_mb, settings.max_memory_per_child_mb)


def describe_worker(settings: Settings, *, slots: int) -> WorkerDescription:
    """Return how this worker registers: its pool, slots, capabilities and task types."""
    # A runner is offered by a worker that has it, never by its settings.
    named = {name for name in settings.capabilities if not name.startswith(RUNNER_PREFIX)}
    offered = {*named, *capabilities_offered(), f"agent:{settings.pool}"}
    offered.add(runner_capability(PYTHON))
    types = set(registered())
    if RUNNERS.has_command:
        offered.add(runner_capability(COMMAND))
        types.add(COMMAND)
    return WorkerDescription(
        id=WORKER_ID,
        pool=settings.pool,
        capabilities=tuple(sorted(offered)),
        slots=slots,
        types=tuple(sorted(types)),
        budget_usd=settings.agent_budget_usd,
    )


class Presence(StartStopStep):
    """The step of Celery's start that registers a worker of agents; maintenance has none."""

    requires = ("celery.worker.components:Timer", "celery.worker.components:Pool")

    def include_if(self, parent: CeleryWorker) -> bool:
        """Return whether this worker takes messages of agents' tasks."""
        return _serves_agents(parent)

    def create(self, parent: CeleryWorker) -> None:
        """Load the handlers and check the database setting, before any pool process is forked."""
        self._timers: list[Any] = []
        self._worker = parent
        self._is_draining = False
        self._settings = current()
        try:
            database_url(self._settings)
            load_handlers(self._settings.handlers, demo=self._settings.demo_handlers)
            check_memory(self._settings)
        except (NoDatabase, HandlersNotLoaded, HandlersTooLarge) as error:
            raise SystemExit(f"overnight worker: {error}") from error
        report_sandbox(self._settings)
        RUNNERS.find(self._settings)
        remove_left_workspaces()
        POOL_GUARD.prepare()
        self._description = describe_worker(self._settings, slots=parent.concurrency)
        self._canary = Canary(self._settings)
        parent.app.amqp.queues.select_add(canary_queue())
        MESSAGE_FILTER.read_queue(CANARY_QUEUE, self._canary.on_read)

    def start(self, parent: CeleryWorker) -> None:
        """Start the timers.

        They first fire when the worker is connected to Redis, and pause while it is not.
        """
        self._timers = [
            parent.timer.call_after(0, self.send_heartbeat),
            parent.timer.call_repeatedly(
                self._settings.worker_liveness / HEARTBEATS_PER_LIVENESS, self.send_heartbeat
            ),
            parent.timer.call_repeatedly(POOL_CHECK_SECONDS, self.check_pool),
        ]

    def close(self, parent: CeleryWorker) -> None:  # noqa: ARG002 - Celery's signature
        """Withdraw the slots, so that nothing new is sent here while the last runs end."""
        for timer in self._timers:
            timer.cancel()
        fault("presence.before_leave")
        if with_connection(self._settings, lambda db: leave(db, WORKER_ID)):
            reason = "deaf" if self._canary.is_deaf else "shutdown"
            emit(LogEvent.WORKER_LEFT, worker=WORKER_ID, pool=self._description.pool, reason=reason)

    def send_heartbeat(self) -> None:
        """Send the worker's heartbeat, and start or stop draining as its row says."""
        fault("presence.before_heartbeat")
        liveness = timedelta(seconds=self._settings.worker_liveness)
        statuses: list[str] = []
        if with_connection(
            self._settings,
            lambda db: statuses.append(
                heartbeat_or_join(
                    db,
                    self._description,
                    liveness=liveness,
                    dropped_messages=MESSAGE_FILTER.dropped,
                )
            ),
        ):
            self._set_draining(is_draining=statuses[-1] == DRAINING)
        self._check_hearing()
        fault("presence.after_heartbeat")

    def _check_hearing(self) -> None:
        """Start a deaf worker anew once its runs have ended; until then it drains."""
        if not self._canary.is_deaf:
            self._canary.check(slots=self._description.slots)
            if self._canary.is_deaf:
                emit(LogEvent.WORKER_DEAF, worker=WORKER_ID, pool=self._description.pool)
        if self._canary.is_deaf:
            with_connection(self._settings, lambda db: mark_deaf(db, WORKER_ID))
            if not CLAIM_REGISTRY.has_claims() and not RESTART.is_requested:
                RESTART.request()

    def check_pool(self) -> None:
        """Replace pool processes that died, and settle their claims."""
        self._worker.pool.maintain_pool()
        DEAD_POOL_PROCESSES.settle(self._settings)

    def _set_draining(self, *, is_draining: bool) -> None:
        """Stop taking messages while the worker drains; take them again afterwards."""
        if is_draining == self._is_draining:
            return
        queue = agent_queue(self._description.pool)
        if is_draining:
            self._worker.consumer.cancel_task_queue(queue)
        else:
            self._worker.consumer.add_task_queue(queue)
        self._is_draining = is_draining
        fields = {
            "worker": WORKER_ID,
            "pool": self._description.pool,
            "slots": self._description.slots,
        }
        emit(LogEvent.WORKER_DRAINING if is_draining else LogEvent.WORKER_JOINED, **fields)


def heartbeat_or_join(
    db: Db, description: WorkerDescription, *, liveness: timedelta, dropped_messages: int = 0
) -> str:
    """Send a heartbeat, or register if the row is missing or wrong; return the worker's status."""
    status = record_heartbeat(
        db,
        description.id,
        liveness=liveness,
        slots=description.slots,
        dropped_messages=dropped_messages,
    )
    if status is not None:
        return status
    status = join(db, description)
    emit(
        LogEvent.WORKER_JOINED,
        worker=description.id,
        pool=description.pool,
        slots=description.slots,
        capabilities=description.capabilities,
    )
    return status


def _serves_agents(worker: CeleryWorker) -> bool:
    return agent_queue(current().pool) in worker.app.amqp.queues.consume_from
