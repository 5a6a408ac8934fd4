"""Agents outside the deployment: they ask for work over HTTP and run the same handlers as a worker.

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
from overnight.agent.run import OutsideContext, report_of
from overnight.client.client import Client
from overnight.client.retry import is_temporary
from overnight.handlers import registry
from overnight.handlers.control_exceptions import Fail
from overnight.handlers.outcome import outcome_of
from overnight.models.agents import Agent as AgentCard
from overnight.models.agents import ClaimedTask

T = TypeVar("T")
BEATS_PER_LEASE = 3
# A service that is gone is asked again without haste.
PATIENCE_SECONDS = 2.0
TICK_SECONDS = 0.05
_log = logging.getLogger("overnight.agent")


class Agent:
    """An agent with a name of its own, that runs registered handlers until it is told to stop.

    It takes the types it has handlers for, unless `types` says otherwise, and offers what the
    handlers can do and whatever `capabilities` adds. Address and key come from `client`, or as for
    `Client`.
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
        self._card: AgentCard | None = None
        self._stop = threading.Event()
        self._running: set[OutsideContext] = set()
        self._busy: set[str] = set()
        self._refused: errors.OvernightError | None = None

    def register(self) -> AgentCard:
        """Announce the agent; the same name again is the same agent."""
        self._card = self._client.call(calls.register(self._fields))
        return self._card

    def stop(self) -> None:
        """Claim nothing more, and ask what runs to hand its task back."""
        self._stop.set()
        for context in list(self._running):
            context.stop("shutdown")

    def run(self) -> None:
        """Work until `stop` is called, SIGTERM or SIGINT comes, or the agent is drained.

        A refusal that no waiting helps, such as of a key that was revoked meanwhile, is raised.
        """
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._hear)
        card = self._patiently(self.register)
        if card is None:
            return
        slots = [
            threading.Thread(target=self._fill_slot, name=f"slot {number}", daemon=True)
            for number in range(self.slots)
        ]
        for slot in slots:
            slot.start()
        # In slices, so that a signal is heard. A slot that only waits for work is not waited for.
        while any(slot.is_alive() for slot in slots):
            if self._stop.is_set() and not self._busy:
                break
            time.sleep(TICK_SECONDS)
        with contextlib.suppress(errors.OvernightError):
            self._client.call(calls.leave(card.id))
        if self._refused is not None:
            raise self._refused

    def run_one(self, *, wait: int = 0) -> bool:
        """Claim one task and run it to its end; False if there was none within `wait` seconds."""
        card = self._card or self.register()
        work = self._client.call(calls.claim(card.id, wait=wait))
        if work is None:
            return False
        self._busy.add(work.token)
        try:
            self._carry_out(work)
        finally:
            self._busy.discard(work.token)
        return True

    def _hear(self, _signal: int, _frame: FrameType | None) -> None:
        # Not here: a signal may come while a lock is held that stopping needs.
        threading.Thread(target=self.stop, daemon=True).start()

    def _fill_slot(self) -> None:
        try:
            while not self._stop.is_set():
                found = self._patiently(lambda: self.run_one(wait=MAX_CLAIM_WAIT_SECONDS))
                if found is False and self._patiently(self._is_draining):
                    return
        except errors.OvernightError as error:
            # Told by whoever called `run`: nobody waits for what a thread raises.
            self._refused = error

    def _is_draining(self) -> bool:
        card = self._card or self.register()
        return self._client.call(calls.send_heartbeat(card.id)).status == "draining"

    def _patiently(self, work: Callable[[], T]) -> T | None:
        """Do something, as often as it takes while the service is away; None once stopped."""
        while not self._stop.is_set():
            try:
                return work()
            except errors.AgentOffline:
                self._card = None
            except Exception as error:
                if self._stop.is_set():
                    # Whoever only waited for work is left behind, and its client may be closed.
                    return None
                if not isinstance(error, errors.OvernightError) or not is_temporary(error):
                    self.stop()
                    raise
                _log.warning("the service is away: %s", error)
                self._stop.wait(PATIENCE_SECONDS)
        return None

    def _carry_out(self, work: ClaimedTask) -> None:
        """Start a claim, run its handler, and say how it ended; a lost claim is let go."""
        if self._stop.is_set():
            self._report(work, "release", {})
            return
        try:
            self._client.call(calls.start(work.task_id, work.token))
        except errors.StaleAttempt:
            return
        context = OutsideContext(self._client, work)
        over = threading.Event()
        if self._stop.is_set():
            context.stop("shutdown")
        pulse = threading.Thread(target=self._keep_pulse, args=(context, work, over), daemon=True)
        self._running.add(context)
        pulse.start()
        output, raised = None, None
        try:
            output = _handler(work.type)(context)
        except BaseException as error:  # noqa: BLE001 - whatever a handler does ends its run only
            raised = error
        finally:
            over.set()
            self._running.discard(context)
        outcome = outcome_of(output, raised, context.stop_reason)
        self._report(work, *report_of(context, outcome))

    def _keep_pulse(
        self, context: OutsideContext, work: ClaimedTask, over: threading.Event
    ) -> None:
        pause = work.lease_seconds / BEATS_PER_LEASE
        while not over.wait(pause):
            context.beat()

    def _report(self, work: ClaimedTask, what: str, said: dict[str, object]) -> None:
        """Say it until it is heard, or until nobody can be listening any more."""
        until = time.monotonic() + work.lease_seconds
        while True:
            try:
                self._client.call(calls.report(work.task_id, work.token, what, said))
            except errors.StaleAttempt:
                _log.warning("%s is no longer ours; its end was not counted", work.task_id)
            except errors.OvernightError as error:
                if is_temporary(error) and time.monotonic() < until:
                    time.sleep(PATIENCE_SECONDS)
                    continue
                _log.warning("the end of %s was not heard: %s", work.task_id, error)
            return


def _handler(kind: str) -> registry.HandlerFunction:
    known = registry.registered()
    if kind not in known:
        listed = ", ".join(sorted(known)) or "none"
        raise Fail(f"no handler for type {kind!r}; registered: {listed}", error_class="no_handler")
    return known[kind].function
