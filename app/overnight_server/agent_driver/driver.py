"""The agent driver: one process that serves all HTTP agents whose addresses it holds.

It checks their health, claims tasks for those that are idle, and follows their runs. Several
drivers share the addresses: each is held by one of them, and by another one soon after that one
has ended. A driver that ends leaves its runs at the agents; the next holder continues them.
"""

import asyncio
import os
import random
import resource
import signal
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta

from overnight_server.agent_driver import agent_rows
from overnight_server.agent_driver.agent_client import AgentClient
from overnight_server.agent_driver.agent_rows import AgentKey, HttpAgentRow, show_key
from overnight_server.agent_driver.agent_runs import AgentRuns
from overnight_server.agent_driver.driven_agent import DrivenAgent
from overnight_server.artifact_store.store import open_store
from overnight_server.control.agent_work import AgentWork, claim_next_work
from overnight_server.domain.ids import new_agent_id
from overnight_server.fault_points import arm
from overnight_server.gate.claim import ClaimSettings
from overnight_server.settings import Settings
from overnight_server.store.db import DISPATCHER, Db, Timeouts
from overnight_server.store.db_threads import RETRY_SECONDS, THREADS, DbThreads
from overnight_server.telemetry import LogEvent, configure, emit
from overnight_server.wakeups.agent_long_poll import pools_with_work
from overnight_server.wakeups.wake import CANCELS_CHANNEL, Waker, WakeUpListener

# A driver renews its hold on addresses, and reads what has changed, this often within the time for
# which a worker counts as alive after a heartbeat.
RENEWALS_PER_HOLD = 5
CLAIM_SECONDS = 0.25
# The most agents that one driver holds.
MAX_AGENTS = 2000
# A request may need a connection beside the one that an agent's client keeps.
DESCRIPTORS_PER_AGENT = 2
# What the driver opens besides: servers, logs, and the threads that resolve names.
OTHER_DESCRIPTORS = 200
# The first checks of this many agents are spread over a second.
CHECKS_PER_SECOND = 500
# Stop requests are read when a wake-up arrives, and at least this often.
STOP_POLL_SECONDS = 5.0
LEAVE_SECONDS = 5.0
RESOLVER_THREADS = 32


def run(settings: Settings) -> None:
    """Serve HTTP agents until SIGTERM or SIGINT."""
    configure(settings.log_format, settings.log_level, "agent-driver")
    arm(settings.fault)
    agents = agents_that_fit(allow_descriptors())
    if settings.database_url is None or settings.redis_url is None:
        raise SystemExit("the agent driver needs OVERNIGHT_DATABASE_URL and OVERNIGHT_REDIS_URL")
    waker = Waker(settings.redis_url, settings.redis_key_prefix)
    db = Db.connect(
        settings.database_url,
        role=DISPATCHER,
        application_name="overnight-agent-driver",
        pool_size=THREADS,
        timeouts=Timeouts(trust=1.0),
        wake_ups=waker,
    )
    emit(LogEvent.SERVICE_STARTED, role="agent-driver", pid=os.getpid())
    try:
        asyncio.run(_serve(db, settings, agents))
    finally:
        db.close()
        waker.close()
        emit(LogEvent.SERVICE_STOPPED, role="agent-driver", pid=os.getpid())


def allow_descriptors() -> int:
    """Let this process open as many files as it may, up to those it can need; return how many.

    The usual limit of 1,024 is too low for the connections of 500 agents: further ones fail.
    """
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_AGENTS * DESCRIPTORS_PER_AGENT + OTHER_DESCRIPTORS
    allowed = max(now, wanted if most == resource.RLIM_INFINITY else min(wanted, most))
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))
    return allowed


def agents_that_fit(descriptors: int) -> int:
    """Return how many agents a driver can hold that may open so many files.

    >>> agents_that_fit(1024)
    412
    """
    return min(MAX_AGENTS, max(1, (descriptors - OTHER_DESCRIPTORS) // DESCRIPTORS_PER_AGENT))


async def _serve(db: Db, settings: Settings, max_agents: int) -> None:
    driver = AgentDriver(db, settings, max_agents=max_agents)
    loop = asyncio.get_running_loop()
    # Names of hosts are resolved in these threads; some name servers answer slowly.
    loop.set_default_executor(ThreadPoolExecutor(RESOLVER_THREADS))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, driver.stop)
    await driver.serve()


class AgentDriver:
    """The agents that this process holds, and the loops that serve them."""

    def __init__(self, db: Db, settings: Settings, *, max_agents: int = MAX_AGENTS) -> None:
        # A new name with every start: what an earlier process held is not held by this one.
        self.name = f"{socket.gethostname()}:{os.getpid()}:{new_agent_id()}"
        self.agents: dict[AgentKey, DrivenAgent] = {}
        self._settings = settings
        self._threads = DbThreads(db)
        self._runs = AgentRuns(self._threads, settings)
        self._hold = timedelta(seconds=settings.worker_liveness)
        self._max_agents = max_agents
        self._claim_settings = ClaimSettings.from_settings(settings)
        self._artifact_store = open_store(settings.artifact_store)
        self._tls = ssl.create_default_context()
        self._stopped = asyncio.Event()
        self._is_stopped = threading.Event()
        self._watchers: dict[AgentKey, asyncio.Task[None]] = {}
        self._closing_tasks: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """End the driver soon; runs stay at their agents."""
        self._is_stopped.set()
        self._stopped.set()

    async def serve(self) -> None:
        """Hold addresses, claim and follow until `stop` is called."""
        listener = WakeUpListener(
            str(self._settings.redis_url), self._settings.redis_key_prefix, CANCELS_CHANNEL
        )
        steps = (
            (self._hold_addresses, self._hold.total_seconds() / RENEWALS_PER_HOLD),
            (self._claim_for_idle, CLAIM_SECONDS),
            (lambda: self._stop_cancelled(listener), 0.0),
        )
        loops = [asyncio.create_task(self._repeat(*step)) for step in steps]
        await self._stopped.wait()
        # A pass that waits for the database is not awaited for longer.
        _, unfinished = await asyncio.wait(loops, timeout=LEAVE_SECONDS)
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        listener.close()
        await self._end()

    async def _end(self) -> None:
        """Leave runs and addresses to the next driver."""
        await self._runs.leave_all(self._settings.shutdown_grace)
        background_tasks = [*self._watchers.values(), *self._closing_tasks]
        for task in background_tasks:
            task.cancel()
        await asyncio.gather(*background_tasks, return_exceptions=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._threads.call(agent_rows.release_addresses, self._threads.db, self.name)
        for agent in self.agents.values():
            await agent.client.close()
        self._threads.close()

    async def _repeat(self, step: Callable[[], Awaitable[None]], seconds: float) -> None:
        """Repeat a step until the driver is stopped; an error of one pass is logged."""
        while not self._stopped.is_set():
            pause = seconds
            try:
                await step()
            except Exception as error:  # noqa: BLE001 - the other agents must still be served
                _log_failed_step(error)
                pause = RETRY_SECONDS
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopped.wait()

    # -- addresses --------------------------------------------------------------------------------

    async def _hold_addresses(self) -> None:
        """Renew the hold on addresses, record health, and begin or end to serve agents."""
        db, call = self._threads.db, self._threads.call
        agents = list(self.agents.values())
        healthy = [agent.row.registration for agent in agents if agent.is_healthy]
        await call(agent_rows.send_heartbeats, db, healthy)
        checks = [agent.last_check for agent in agents if agent.health != "unknown"]
        await call(agent_rows.record_checks, db, self.name, checks)
        for check in checks:
            self.agents[check.key].recorded_boot_id = check.boot_id
        removed = await call(agent_rows.release_removed, db, self.name)
        rows = await call(
            agent_rows.hold_addresses, db, self.name, hold=self._hold, limit=self._max_agents
        )
        rows_by_key = {row.key: row for row in rows}
        for agent in agents:
            row = rows_by_key.get(agent.row.key)
            if row is None or not agent.update_row(row):
                has_moved = row is not None or agent.row.key in removed
                self._stop_serving(agent, ends_runs=has_moved)
        new = [row for row in rows if row.key not in self.agents]
        if new:
            await self._begin_to_serve(new)

    def _stop_serving(self, agent: DrivenAgent, *, ends_runs: bool) -> None:
        """Serve an agent no more: end its runs there, or leave them to its new holder."""
        del self.agents[agent.row.key]
        self._watchers.pop(agent.row.key).cancel()
        closing = self._close_agent(agent, ends_runs=ends_runs)
        task = asyncio.get_running_loop().create_task(closing)
        self._closing_tasks.add(task)
        task.add_done_callback(self._closing_tasks.discard)

    async def _close_agent(self, agent: DrivenAgent, *, ends_runs: bool) -> None:
        await (self._runs.end_at(agent) if ends_runs else self._runs.leave(agent))
        await agent.client.close()

    async def _begin_to_serve(self, rows: Sequence[HttpAgentRow]) -> None:
        """Serve agents that are new to this driver, and continue the runs that they have."""
        agents = {row.registration.agent_id: DrivenAgent(row, self._client(row)) for row in rows}
        claims = await self._threads.call(agent_rows.open_claims, self._threads.db, list(agents))
        for claim in claims:
            await self._runs.resume(agents[claim.agent_id], claim)
        for agent in agents.values():
            self.agents[agent.row.key] = agent
            watcher = asyncio.get_running_loop().create_task(self._watch(agent, len(agents)))
            self._watchers[agent.row.key] = watcher

    def _client(self, row: HttpAgentRow) -> AgentClient:
        return AgentClient(
            row.url,
            row.secret,
            private_allowed=row.private_allowed,
            submit_seconds=self._settings.dispatch_timeout,
            tls=self._tls,
        )

    # -- health -----------------------------------------------------------------------------------

    async def _watch(self, agent: DrivenAgent, new_agents: int) -> None:
        """Check an agent again and again, and stop what it works on without a claim."""
        await asyncio.sleep(random.uniform(0, new_agents / CHECKS_PER_SECOND))  # noqa: S311
        while True:
            try:
                keys = await agent.check()
                await self._withdraw_ended(agent, keys)
            except Exception as error:  # noqa: BLE001 - the next check may succeed
                _log_failed_step(error)
            await agent.wait_for_check(self._settings.completion_poll_interval)

    async def _withdraw_ended(self, agent: DrivenAgent, keys: Sequence[str]) -> None:
        """Stop the tasks among those that an agent works on whose claims have ended."""
        own = {show_key(*key) for key in agent.runs}
        keys = [key for key in keys if key not in own]
        if not keys:
            return
        ended = await self._threads.call(
            agent_rows.ended_runs, self._threads.db, agent.row.registration.agent_id, keys
        )
        for key in ended - agent.runs.keys():
            await agent.client.withdraw(show_key(*key))

    # -- tasks ------------------------------------------------------------------------------------

    async def _claim_for_idle(self) -> None:
        """Claim for the agents that are idle, and send the tasks to them."""
        idle = [agent for _, agent in sorted(self.agents.items()) if agent.can_get_task]
        if not idle:
            return
        registrations = [
            (agent.row.registration.pool, agent.row.registration.serves) for agent in idle
        ]
        pools = await self._threads.call(pools_with_work, self._threads.db, registrations)
        by_kind: dict[object, list[DrivenAgent]] = {}
        for agent in idle:
            if agent.row.registration.pool in pools:
                by_kind.setdefault(agent.row.kind, []).append(agent)
        await asyncio.gather(*(self._fill_all(agents) for agents in by_kind.values()))

    async def _fill_all(self, agents: Sequence[DrivenAgent]) -> None:
        """Claim for agents of one kind, in the order of their names.

        If the gate has nothing for one of them, it has nothing for the others.
        """
        for agent in agents:
            if not await self._fill(agent):
                return

    async def _fill(self, agent: DrivenAgent) -> bool:
        """Claim for each free slot of an agent; return False if the gate had too few tasks."""
        while agent.can_get_task and not self._stopped.is_set():
            work = await self._claim_one(agent)
            if work is None:
                return False
            self._runs.send(agent, work)
        return True

    async def _claim_one(self, agent: DrivenAgent) -> AgentWork | None:
        db = self._threads.db
        return await self._threads.call(
            claim_next_work,
            db,
            db,
            agent.row.registration,
            self._claim_settings,
            self._artifact_store,
            logged_as=agent.row.url,
        )

    async def _stop_cancelled(self, listener: WakeUpListener) -> None:
        await asyncio.to_thread(listener.wait, STOP_POLL_SECONDS, self._is_stopped)
        await self._runs.stop_cancelled()


def _log_failed_step(error: Exception) -> None:
    emit(LogEvent.DRIVER_STEP_FAILED, error=f"{type(error).__name__}: {error}")
