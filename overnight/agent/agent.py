"""Pull agents: processes outside the deployment that claim tasks over HTTP and run handlers.

@overnight.handler("greet")
def greet(ctx): ...

Agent("laptop").run()
"""

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Literal, TypeVar

from overnight import errors
from overnight.agent import calls
from overnight.agent.calls import MAX_CLAIM_WAIT_SECONDS
from overnight.agent.run import AgentContext, report_of
from overnight.client.client import Client
from overnight.client.retry import is_temporary
from overnight.handlers import registry
from overnight.handlers.control_exceptions import Fail
from overnight.handlers.invoke import invoke
from overnight.handlers.outcome import outcome_of
from overnight.models.agents import ClaimedTask, RegisteredAgent

T = TypeVar("T")
HEARTBEATS_PER_LEASE = 3
# The wait between two requests to a service that does not respond.
RETRY_SECONDS = 2.0
# How long the end of a run is reported to a service that does not respond.
REPORT_SECONDS = 600.0
# Progress is sent with a heartbeat soon, but not more often than this.
PROGRESS_SECONDS = 1.0
TICK_SECONDS = 0.05
_log = logging.getLogger("overnight.agent")


class Agent:
    """A named agent that claims tasks and runs registered handlers until it is stopped.

    It accepts the types of the registered handlers, or `types`, and offers the capabilities of
    the handlers and `capabilities`. Without a `client` it creates one with `Client()`.
    """

    def __init__(
        self,
        name: str,
        *,
        client: Client | None = None,
        slots: int = 1,
        capabilities: Iterable[str] = (),
        types: Iterable[str] | None = None,
        models: Iterable[str] = (),
        budget_usd: float | None = None,
        lease_seconds: int | None = None,
        claim_ttl_seconds: int | None = None,
        serves: Literal["me", "everyone"] = "me",
    ) -> None:
        self.name = name
        self.slots = slots
        self._client = client or Client()
        self._fields = {
            "name": name,
            "slots": slots,
            "capabilities": sorted({*capabilities, *registry.capabilities_offered()}),
            "types": sorted(registry.registered() if types is None else types),
            "models": list(models),
            "budget_usd": budget_usd,
            "lease_seconds": lease_seconds,
            "claim_ttl_seconds": claim_ttl_seconds,
            "serves": serves,
        }
        self._registered: RegisteredAgent | None = None
        self._stop = threading.Event()
        self._contexts: set[AgentContext] = set()
        self._tokens_in_use: set[str] = set()
        self._fatal_error: errors.OvernightError | None = None

    def register(self) -> RegisteredAgent:
        """Register the agent; a name that is registered already is updated."""
        self._registered = self._client.call(calls.register(self._fields))
        return self._registered

    def stop(self) -> None:
        """Claim no further tasks, request the handlers to stop, and hand their tasks back."""
        self._stop.set()
        for context in list(self._contexts):
            context.stop("shutdown")

    def run(self) -> None:
        """Run tasks until `stop` is called, SIGTERM or SIGINT arrives, or the agent is drained.

        Raises an error that no retry can help, for instance if the key was revoked.
        """
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._on_signal)
        agent = self._retry_while_away(self.register)
        if agent is None:
            return
        slots = [
            threading.Thread(target=self._run_slot, name=f"slot {number}", daemon=True)
            for number in range(self.slots)
        ]
        for slot in slots:
            slot.start()
        # Short sleeps let Python handle signals. After a stop, slots that only wait for a task are
        # not awaited: their threads are daemons and end with the process.
        while any(slot.is_alive() for slot in slots):
            if self._stop.is_set() and not self._tokens_in_use:
                break
            time.sleep(TICK_SECONDS)
        with contextlib.suppress(errors.OvernightError):
            self._client.call(calls.leave(agent.id))
        if self._fatal_error is not None:
            raise self._fatal_error

    def run_one(self, *, wait: int = 0) -> bool:
        """Claim one task and run it; return False if none came within `wait` seconds."""
        agent = self._registered or self.register()
        task = self._client.call(calls.claim(agent.id, wait=wait))
        if task is None:
            return False
        self._tokens_in_use.add(task.token)
        try:
            self._run_task(task)
        finally:
            self._tokens_in_use.discard(task.token)
        return True

    def _on_signal(self, _signal: int, _frame: FrameType | None) -> None:
        # In a thread, because the interrupted code may hold a lock that `stop` needs.
        threading.Thread(target=self.stop, daemon=True).start()

    def _run_slot(self) -> None:
        try:
            while not self._stop.is_set():
                has_run = self._retry_while_away(lambda: self.run_one(wait=MAX_CLAIM_WAIT_SECONDS))
                if has_run is False and self._retry_while_away(self._is_draining):
                    return
        except errors.OvernightError as error:
            # `run` raises it in the main thread; an exception of this thread would be lost.
            self._fatal_error = error

    def _is_draining(self) -> bool:
        agent = self._registered or self.register()
        return self._client.call(calls.send_heartbeat(agent.id)).status == "draining"

    def _retry_while_away(self, request: Callable[[], T]) -> T | None:
        """Return the result of a request, repeated while the service is down; None once stopped."""
        while not self._stop.is_set():
            try:
                return request()
            except errors.AgentOffline:
                self._registered = None
            except Exception as error:
                if self._stop.is_set():
                    # `run` has returned and its caller may have closed the client.
                    return None
                if not isinstance(error, errors.OvernightError) or not is_temporary(error):
                    self.stop()
                    raise
                _log.warning("the service does not respond: %s", error)
                self._stop.wait(RETRY_SECONDS)
        return None

    def _run_task(self, task: ClaimedTask) -> None:
        """Start a claimed task, run its handler, and report the result; a lost claim is dropped."""
        if self._stop.is_set():
            self._report(task, "release", {})
            return
        try:
            self._client.call(calls.start(task.task_id, task.token))
        except errors.StaleAttempt:
            return
        context = AgentContext(self._client, task)
        ended = threading.Event()
        if self._stop.is_set():
            context.stop("shutdown")
        heartbeats = threading.Thread(
            target=self._send_heartbeats, args=(context, task, ended), daemon=True
        )
        self._contexts.add(context)
        heartbeats.start()
        output, raised = None, None
        try:
            output = invoke(_handler(task.type), context)
        except BaseException as error:  # noqa: BLE001 - any exception of a handler ends its run only
            raised = error
        finally:
            ended.set()
            context.wake_heartbeat.set()
            self._contexts.discard(context)
        context.send_log()
        outcome = outcome_of(output, raised, context.stop_reason)
        self._report(task, *report_of(context, outcome))

    def _send_heartbeats(
        self, context: AgentContext, task: ClaimedTask, ended: threading.Event
    ) -> None:
        interval = task.lease_seconds / HEARTBEATS_PER_LEASE
        pause = min(PROGRESS_SECONDS, interval / 2)
        while not ended.wait(pause):
            context.wake_heartbeat.wait(interval - pause)
            if ended.is_set():
                return
            context.wake_heartbeat.clear()
            context.send_heartbeat()
            context.send_log()

    def _report(self, task: ClaimedTask, action: str, fields: dict[str, object]) -> None:
        """Report the end of a run, repeatedly while the service does not respond.

        After an outage the service still accepts the report if no other run took the task. An agent
        that is stopped gives up when the lease is over.
        """
        ended_at = time.monotonic()
        while True:
            try:
                self._client.call(calls.report(task.task_id, task.token, action, fields))
            except errors.StaleAttempt:
                _log.warning("%s is held by another run; its result was discarded", task.task_id)
            except errors.OvernightError as error:
                passed = time.monotonic() - ended_at
                longest = 0.0 if self._stop.is_set() else REPORT_SECONDS
                if is_temporary(error) and passed < max(longest, task.lease_seconds):
                    time.sleep(RETRY_SECONDS)
                    continue
                _log.warning("the result of %s could not be reported: %s", task.task_id, error)
            return


def _handler(kind: str) -> registry.Handler:
    handlers = registry.registered()
    if kind not in handlers:
        types = ", ".join(sorted(handlers)) or "none"
        raise Fail(f"no handler for type {kind!r}; registered: {types}", error_class="no_handler")
    return handlers[kind]
