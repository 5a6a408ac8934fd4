"""The runs of a driver's agents: begin them, continue those of an earlier driver, stop them."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from overnight.errors import StaleAttempt
from overnight_server.agent_driver import agent_rows
from overnight_server.agent_driver.agent_rows import OpenClaim, RunKey
from overnight_server.agent_driver.answers import EndReason
from overnight_server.agent_driver.driven_agent import DrivenAgent
from overnight_server.agent_driver.http_run import HttpRun, RunTiming
from overnight_server.control.agent_work import AgentWork
from overnight_server.domain.ids import show_task
from overnight_server.outcome.agent_claims import read_claim
from overnight_server.outcome.settle import hand_back
from overnight_server.settings import Settings
from overnight_server.store.db_threads import DbThreads
from overnight_server.telemetry import LogEvent, emit

CALLBACK_HEADER = "X-Overnight-Callback"
RESTARTED = "driver_restarted"


class AgentRuns:
    """The runs that this process follows, each in an asyncio task of its own."""

    def __init__(self, threads: DbThreads, settings: Settings) -> None:
        self._threads = threads
        self._timing = RunTiming(settings.completion_poll_interval, settings.cancel_grace)
        self._api_url = settings.url
        self._tasks: dict[RunKey, asyncio.Task[None]] = {}
        self._runs: dict[RunKey, HttpRun] = {}

    def send(self, agent: DrivenAgent, work: AgentWork) -> None:
        """Begin the run of a claimed task at an agent."""
        run = HttpRun(agent, work.held_claim, self._threads, self._timing)
        headers = {}
        if self._api_url is not None:
            task = show_task(work.held_claim.run.claim.task_id)
            headers[CALLBACK_HEADER] = f"{self._api_url}/api/v1/tasks/{task}"
        self._follow(run, run.begin(work.body, headers))

    async def resume(self, agent: DrivenAgent, open_claim: OpenClaim) -> None:
        """Follow a run of an earlier driver; a task that was never sent is given back."""
        db, claim = self._threads.db, open_claim.claim
        if (claim.task_id, claim.epoch) in self._runs:
            return  # it is just being ended at the agent's earlier address
        if not open_claim.has_begun:
            agent_id = agent.row.registration.agent_id
            await self._threads.call(hand_back, db, [claim], agent=agent_id, reason=RESTARTED)
            return
        try:
            held_claim = await self._threads.call(
                read_claim, db, claim, agent.row.registration.lease
            )
        except StaleAttempt:
            return
        run = HttpRun(
            agent,
            held_claim,
            self._threads,
            self._timing,
            ran_seconds=open_claim.ran_seconds,
            boot_id=agent.row.boot_id if open_claim.same_boot else None,
        )
        self._follow(run, run.follow(asks_at_once=True))

    async def stop_cancelled(self) -> None:
        """Stop the runs whose owners have asked for it."""
        agent_ids = sorted({run.agent.row.registration.agent_id for run in self._runs.values()})
        if not agent_ids:
            return
        requests = await self._threads.call(agent_rows.stop_requests, self._threads.db, agent_ids)
        for key in requests & self._runs.keys():
            self._runs[key].stop(EndReason.CANCEL)

    async def end_at(self, agent: DrivenAgent) -> None:
        """End all runs of an agent that was removed, and give their tasks back."""
        tasks = [self._tasks[key] for key in agent.runs]
        for run in agent.runs.values():
            run.stop(EndReason.REMOVED)
        if tasks:
            await asyncio.wait(tasks)

    async def leave(self, agent: DrivenAgent) -> None:
        """Follow the runs of an agent no more; another driver does."""
        await self._cancel([self._tasks[key] for key in agent.runs])

    async def leave_all(self, grace: float) -> None:
        """Follow no run any more; wait a little for the answers to tasks that were just sent."""
        waits = [asyncio.ensure_future(run.submitted.wait()) for run in list(self._runs.values())]
        if waits:
            await asyncio.wait(waits, timeout=grace)
            await self._cancel(waits)
        await self._cancel(list(self._tasks.values()))

    async def _cancel(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _follow(self, run: HttpRun, work: Coroutine[object, object, None]) -> None:
        self._runs[run.key] = run.agent.runs[run.key] = run
        self._tasks[run.key] = asyncio.get_running_loop().create_task(
            self._log_errors_of(run, work)
        )

    async def _log_errors_of(self, run: HttpRun, work: Coroutine[object, object, None]) -> None:
        """Await a run's work; an error affects this run alone."""
        try:
            await work
        except Exception as error:  # noqa: BLE001 - the lease ends, and the reaper takes it back
            task_id, epoch = run.key
            emit(
                LogEvent.RUN_NOT_FOLLOWED,
                queue_id=show_task(task_id),
                epoch=epoch,
                error=f"{type(error).__name__}: {error}",
            )
        finally:
            run.submitted.set()
            del self._runs[run.key], self._tasks[run.key], run.agent.runs[run.key]
            run.agent.check_soon()
