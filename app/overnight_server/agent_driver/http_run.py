"""One run at an HTTP agent: send the task, follow it, and record how it ends.

The start is committed before the task is sent, under the key `task:epoch`, so whoever continues
after a crash can ask the agent for exactly this run. The lease is renewed only when the agent says
that it has the task. A claim is given back only after the agent agreed not to start it any more.
"""

import asyncio
import random
import time
from contextlib import suppress
from dataclasses import dataclass

from overnight_server.agent_driver import run_records
from overnight_server.agent_driver.agent_rows import RunKey, show_key
from overnight_server.agent_driver.answers import (
    CONFLICT,
    UNREADABLE_ANSWERS,
    Accepted,
    EndReason,
    NoAnswer,
    NotSent,
    Rejected,
    TaskAbsent,
    TaskPresent,
    UnreadableAnswer,
    after_absence,
    after_submission,
    after_unreadable,
    result_of,
)
from overnight_server.agent_driver.driven_agent import DrivenAgent
from overnight_server.domain.ids import show_task
from overnight_server.domain.lifecycle import LifecycleEvent
from overnight_server.domain.results import (
    Busy,
    Interrupted,
    Raised,
    Result,
    StoppedByBudget,
    StoppedByCancel,
    TimedOut,
)
from overnight_server.domain.verdicts import Verdict
from overnight_server.gate.dispatch_log import (
    AGENT_BUSY,
    log_dispatch_failed,
    log_dispatch_success,
)
from overnight_server.outcome.agent_claims import WINDOW_CLOSED, HeldClaim
from overnight_server.outcome.heartbeat import HeartbeatAnswer
from overnight_server.store.db_threads import DbThreads
from overnight_server.telemetry import LogEvent, emit

HEARTBEATS_PER_LEASE = 3
WITHDRAW_PAUSE_SECONDS = 1.0
STOPS = {
    HeartbeatAnswer.CANCEL: EndReason.CANCEL,
    HeartbeatAnswer.BUDGET: EndReason.BUDGET,
    HeartbeatAnswer.HAND_BACK: EndReason.WINDOW,
}


@dataclass(frozen=True)
class RunTiming:
    """The seconds between two polls, and for how long an agent is asked to stop a run."""

    poll: float
    stop_grace: float


class HttpRun:
    """A claimed task, the agent that runs it, and what is known of the run."""

    def __init__(
        self,
        agent: DrivenAgent,
        held_claim: HeldClaim,
        threads: DbThreads,
        timing: RunTiming,
        *,
        ran_seconds: float = 0.0,
        boot_id: str | None = None,
    ) -> None:
        self.agent = agent
        # Set once it is known what became of the request that sends the task.
        self.submitted = asyncio.Event()
        self._held_claim = held_claim
        self._threads = threads
        self._timing = timing
        self._ends_at = time.monotonic() + held_claim.run.granted_seconds - ran_seconds
        # The process of the agent that the task was sent to, as far as it is known.
        self._boot_id = boot_id
        self._was_accepted = False
        self._unreadable = 0
        self._lease_began_at = time.monotonic()
        self._reported: object = None
        self._stop_reason: EndReason | None = None
        self._woken = asyncio.Event()

    @property
    def key(self) -> RunKey:
        """The task and the epoch of the run."""
        claim = self._held_claim.run.claim
        return claim.task_id, claim.epoch

    def stop(self, reason: EndReason) -> None:
        """End the run at its agent soon; the first reason counts."""
        self._stop_reason = self._stop_reason or reason
        self._woken.set()

    async def begin(self, body: bytes, headers: dict[str, str]) -> None:
        """Start the run, send the task to the agent, and follow it to its end."""
        if not await self._threads.call(run_records.start_run, self._threads.db, self._held_claim):
            return
        self._boot_id = self.agent.boot_id
        if await self._submit(body, headers):
            await self.follow(asks_at_once=not self._was_accepted)

    async def follow(self, *, asks_at_once: bool) -> None:
        """Ask the agent until the run has ended, is stopped, or has lost its claim."""
        self.submitted.set()
        if not asks_at_once:
            await self._wait_for_poll()
        while not await self._poll_once():
            await self._wait_for_poll()

    async def _submit(self, body: bytes, headers: dict[str, str]) -> bool:
        """Send the task; return whether the agent has it, or may have it."""
        submission = await self.agent.client.submit(self._name, body, headers)
        match submission:
            case Accepted():
                self._note_accepted()
                return True
            case NoAnswer():
                self.agent.pause()
                return True
            case Rejected() | NotSent():
                self.agent.pause()
                if isinstance(submission, Rejected) and submission.status != CONFLICT:
                    # A proxy may have answered for an agent that has begun.
                    await self.agent.client.withdraw(self._name)
                await self._end_undispatched(after_submission(submission))
                return False

    async def _poll_once(self) -> bool:
        """Ask the agent once, and record what follows; return whether the run has ended."""
        if time.monotonic() >= self._ends_at:
            self.stop(EndReason.TIMEOUT)
        if self._stop_reason is not None:
            await self._end_by_request(self._stop_reason)
            return True
        lookup = await self.agent.client.get_task_state(self._name)
        if not isinstance(lookup, UnreadableAnswer):
            self._unreadable = 0
        match lookup:
            case TaskPresent(task) if task.has_ended:
                self._note_accepted()
                await self._end(result_of(task, self._held_claim.run))
                return True
            case TaskPresent(task):
                self._note_accepted()
                return await self._extend(task.progress, task.cost_usd)
            case TaskAbsent():
                return await self._end_absent(lookup)
            case UnreadableAnswer():
                return await self._end_unreadable(lookup)
            case NoAnswer():
                return await self._has_lost_lease()

    async def _extend(self, progress: dict[str, object] | None, cost_usd: float) -> bool:
        """Renew the lease if that is due, or if there is news; return whether the run is over."""
        lease = self._held_claim.lease.total_seconds()
        reported = (progress, cost_usd)
        is_due = time.monotonic() - self._lease_began_at >= lease / HEARTBEATS_PER_LEASE
        if not is_due and reported == self._reported:
            return False
        self._lease_began_at, self._reported = time.monotonic(), reported
        answer = await self._threads.call(
            run_records.extend_run, self._threads.db, self._held_claim, progress, cost_usd
        )
        if answer is HeartbeatAnswer.LOST:
            await self._leave_lost()
            return True
        if answer in STOPS:
            await self._end_by_request(STOPS[answer])
            return True
        return False

    async def _has_lost_lease(self) -> bool:
        """Return whether the claim has ended while the agent did not answer."""
        if time.monotonic() - self._lease_began_at < self._held_claim.lease.total_seconds():
            return False
        if await self._threads.call(run_records.is_held, self._threads.db, self._held_claim):
            return False
        await self._leave_lost()
        return True

    async def _leave_lost(self) -> None:
        """Stop a run whose claim has ended, unless its agent has reported the end itself."""
        claim = self._held_claim.run.claim
        if await self._threads.call(run_records.was_reported, self._threads.db, claim):
            return
        emit(
            LogEvent.RUN_LOST,
            queue_id=show_task(claim.task_id),
            epoch=claim.epoch,
            worker=self.agent.row.url,
        )
        await self.agent.client.withdraw(self._name)

    async def _end_absent(self, absence: TaskAbsent) -> bool:
        """End a run that the agent does not have, once the agent agreed not to start it."""
        if not await self.agent.client.withdraw(self._name):
            return await self._has_lost_lease()
        result = after_absence(absence, was_accepted=self._was_accepted, boot_id=self._boot_id)
        await self._end_undispatched(result)
        return True

    async def _end_unreadable(self, answer: UnreadableAnswer) -> bool:
        self._unreadable += 1
        if not answer.too_large and self._unreadable < UNREADABLE_ANSWERS:
            return await self._has_lost_lease()
        await self.agent.client.withdraw(self._name)
        await self._end(after_unreadable(answer))
        return True

    async def _end_by_request(self, reason: EndReason) -> None:
        """Ask the agent to stop, for as long as the grace lasts, and end the run."""
        gives_up_at = time.monotonic() + self._timing.stop_grace
        while not await self.agent.client.withdraw(self._name):
            if time.monotonic() >= gives_up_at:
                break
            await asyncio.sleep(WITHDRAW_PAUSE_SECONDS)
        await self._end(self._stopped(reason))

    def _stopped(self, reason: EndReason) -> Result:
        match reason:
            case EndReason.CANCEL:
                return StoppedByCancel()
            case EndReason.BUDGET:
                return StoppedByBudget()
            case EndReason.TIMEOUT:
                return TimedOut(by_plan=self._held_claim.run.plan_limited)
            case EndReason.WINDOW:
                return self._held_claim.handed_back(WINDOW_CLOSED, cost_usd=0.0, tokens={})
            case EndReason.REMOVED:
                return Interrupted(reason.value)

    async def _end(self, result: Result) -> Verdict | None:
        return await self._threads.call(
            run_records.end_run, self._threads.db, self._held_claim, result
        )

    async def _end_undispatched(self, result: Result) -> None:
        """End a run that its agent did not take, or has lost, and log it."""
        verdict = await self._end(result)
        if verdict is None:
            return
        message = result.message if isinstance(result, Raised) else str(verdict.message)
        run = self._held_claim.run
        log_dispatch_failed(
            run.claim.task_id,
            AGENT_BUSY if isinstance(result, Busy) else message,
            attempt=run.attempt,
            max_attempts=run.max_attempts,
            is_final=verdict.event is LifecycleEvent.DEAD_LETTER,
        )

    def _note_accepted(self) -> None:
        if not self._was_accepted:
            self._was_accepted = True
            self.agent.end_pause()
            log_dispatch_success([self._held_claim.run.claim.task_id])

    async def _wait_for_poll(self) -> None:
        """Wait for the next poll, or until the run is stopped or out of time."""
        seconds = self._timing.poll * random.uniform(0.8, 1.2)  # noqa: S311 - jitter
        left = max(0.0, self._ends_at - time.monotonic())
        with suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, left)):
                await self._woken.wait()

    @property
    def _name(self) -> str:
        return show_key(*self.key)
