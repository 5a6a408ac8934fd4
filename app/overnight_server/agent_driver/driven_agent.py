"""One HTTP agent as its driver sees it: its health, its runs, and when it may get a task."""

import asyncio
import random
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from overnight_server.agent_driver.agent_client import AgentClient, AgentUnreachable
from overnight_server.agent_driver.agent_rows import HealthCheckResult, HttpAgentRow, RunKey
from overnight_server.telemetry import LogEvent, emit

if TYPE_CHECKING:
    from overnight_server.agent_driver.http_run import HttpRun

# After a refused or failed task an agent gets no other one for a while, longer each time.
FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 30.0
# Checks of an agent that does not answer become rarer, up to this many intervals.
MAX_MISSED_INTERVALS = 12
HEALTHY = frozenset({"idle", "busy"})


class DrivenAgent:
    """An agent's row, its client, and what the driver knows of it."""

    def __init__(self, row: HttpAgentRow, client: AgentClient) -> None:
        self.row = row
        self.client = client
        self.runs: dict[RunKey, HttpRun] = {}
        self.boot_id = row.boot_id
        # The boot id in the database. Whoever continues a run must know which process got the task.
        self.recorded_boot_id: str | None = None
        self.health = "unknown"
        self._detail: str | None = None
        self._missed_checks = 0
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._paused_until = 0.0
        self._check_wanted = asyncio.Event()

    @property
    def is_healthy(self) -> bool:
        """Whether the agent answered the last check."""
        return self.health in HEALTHY

    @property
    def can_get_task(self) -> bool:
        """Whether the agent may get a task now.

        It is idle and healthy, has a free slot, is authorized, neither drains nor is paused, and
        the database has the id of its process.
        """
        return (
            self.health == "idle"
            and self.boot_id == self.recorded_boot_id
            and self.row.is_authorized
            and not self.row.registration.is_draining
            and len(self.runs) < self.row.slots
            and time.monotonic() >= self._paused_until
        )

    @property
    def last_check(self) -> HealthCheckResult:
        """What the last check found."""
        if not self.row.is_authorized:
            detail = "the key or token with which it was added is no longer valid"
            return HealthCheckResult(self.row.key, "unauthorized", detail)
        return HealthCheckResult(self.row.key, self.health, self._detail, self.boot_id)

    def update_row(self, row: HttpAgentRow) -> bool:
        """Use a row that was read again; return False, without it, if it names another agent."""
        is_same = (row.address, row.registration.agent_id) == (
            self.row.address,
            self.row.registration.agent_id,
        )
        if is_same:
            self.row = row
        return is_same

    def check_soon(self) -> None:
        """Check the agent now: a run has ended, so it may be idle."""
        self._check_wanted.set()

    async def wait_for_check(self, interval: float) -> None:
        """Wait until the next check is due; the time varies, so that checks do not coincide."""
        factor = min(2**self._missed_checks, MAX_MISSED_INTERVALS)
        seconds = interval * factor * random.uniform(0.8, 1.2)  # noqa: S311 - jitter
        with suppress(TimeoutError):
            # Not `wait_for`: in Python 3.11 it ignores a cancel that comes with the event.
            async with asyncio.timeout(seconds):
                await self._check_wanted.wait()
        self._check_wanted.clear()

    async def check(self) -> list[str]:
        """Ask the agent for its health; return the keys of the tasks that it works on."""
        try:
            answer = await self.client.health()
        except AgentUnreachable as error:
            self._missed_checks += 1
            self._set_health("unreachable", error.reason)
            return []
        self._missed_checks = 0
        self.boot_id = answer.boot_id
        self._set_health(answer.status)
        return answer.tasks

    def pause(self) -> None:
        """Give the agent no task for a while, because it did not take the last one."""
        self._paused_until = time.monotonic() + self._pause_seconds
        self._pause_seconds = min(2 * self._pause_seconds, MAX_PAUSE_SECONDS)

    def end_pause(self) -> None:
        """Note that the agent took a task."""
        self._pause_seconds = FIRST_PAUSE_SECONDS

    def _set_health(self, health: str, detail: str | None = None) -> None:
        if health != self.health and {health, self.health} & {"unreachable", "unknown"}:
            emit(LogEvent.AGENT_HEALTH, agent=self.row.url, health=health, error=detail)
        self.health, self._detail = health, detail
