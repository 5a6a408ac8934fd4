"""Connects one run with its runner: reports go one way, requests to stop the other."""

import time
from enum import Enum
from queue import SimpleQueue
from typing import Final

from overnight.handlers.control_exceptions import Snooze, Stopped
from overnight_server.domain.claims import Claim
from overnight_server.outcome.external_run import note_external_run
from overnight_server.outcome.validation import begin_validation
from overnight_server.store.db import DATABASE_ERRORS, Db
from overnight_worker.run_context import RunContext
from overnight_worker.stop_policy import FORCE_MARGIN_SECONDS, StopPolicy

# After how many seconds a run is tried again that could not be recorded.
DATABASE_PAUSE_SECONDS: Final = 10.0
# How long to wait before a move is tried again that could not be recorded.
RETRY_SECONDS: Final = 0.5


class RunSignal(Enum):
    """What a run that goes on is waited for."""

    ENDED = "ended"
    STOP = "stop"


class RunConnection:
    """One run as its runner sees it; its methods may be called from any thread."""

    def __init__(self, db: Db, claim: Claim, context: RunContext, stop_policy: StopPolicy) -> None:
        self.context = context
        self._db = db
        self._claim = claim
        self._stop_policy = stop_policy
        self._output: object = None
        self._raised: BaseException | None = None
        self._signals: SimpleQueue[RunSignal] = SimpleQueue()
        self._is_listening = False

    def note_id(self, external_id: str, *, sandbox: str | None = None) -> None:
        """Record where the run is executed, before it begins.

        Raise Stopped if the claim is lost, and Snooze if Postgres does not answer: the run must
        not begin then.
        """
        try:
            is_noted = note_external_run(self._db, self._claim, external_id, sandbox=sandbox)
        except DATABASE_ERRORS as error:
            message = f"the run could not be recorded before it began: {error}"
            raise Snooze(DATABASE_PAUSE_SECONDS, message) from error
        if not is_noted:
            raise Stopped("lost")

    def begin_validation(self) -> None:
        """Record that the run has returned and its output is validated.

        While Postgres does not answer, this tries again for as long as the run may go on. Raise
        Stopped if the claim is lost.
        """
        while True:
            try:
                is_held = begin_validation(self._db, self._claim)
            except DATABASE_ERRORS:
                self.context.check()
                time.sleep(RETRY_SECONDS)
            else:
                if not is_held:
                    raise Stopped("lost")
                return

    def end(self, output: object = None, raised: BaseException | None = None) -> None:
        """Report how the run ended: its output, or what was raised."""
        self._output, self._raised = output, raised
        self._signals.put(RunSignal.ENDED)

    def wait_for_end(self) -> bool:
        """Wait until the run has ended (True) or is requested to stop (False).

        A second request to stop, for a stronger reason, is returned too.
        """
        if not self._is_listening:
            self._is_listening = True
            self.context.on_stop(self._request_stop)
            if self.context.stop_reason is not None:
                self._request_stop(self.context.stop_reason)
        return self._signals.get() is RunSignal.ENDED

    def _request_stop(self, _reason: str) -> None:
        self._signals.put(RunSignal.STOP)

    def output(self) -> object:
        """Return the output of a run that has ended, or raise what it raised."""
        self.context.on_stop(None)
        if self._raised is not None:
            raise self._raised
        return self._output

    def grace(self, wanted: float) -> float:
        """Return how long a run that is requested to stop may take.

        That is what it wants, except after a shutdown and a lost lease: then the worker itself has
        less time, of which a margin is kept free to end the run.
        """
        forced_end_at = self._stop_policy.forced_end_at
        if forced_end_at is None:
            return wanted
        left = forced_end_at - time.monotonic() - FORCE_MARGIN_SECONDS
        return max(0.0, min(wanted, left))
