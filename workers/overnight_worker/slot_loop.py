"""Quick work after quick work: a slot that settles quick tasks takes the next ones with it.

The round over the dispatcher, Redis and Celery costs more than the quick tasks themselves. The gate
is the same, so nobody is served sooner than fairness says. Settling, claiming and starting are one
transaction: the slot passes from task to task and is never seen free in between, and a
process that dies leaves nothing claimed that nobody runs.

When nothing is left the slot lingers, as does one that was invited: it listens for pings, and takes
the first task that comes; what is left goes with its end. Meanwhile it is seen free by all, and
competes with the dispatcher under the pool's lock; as soon as a message is sent to the pool it
leaves, for Celery may need its process for it. When its time is up the dispatcher invites another.
"""

import time
from datetime import timedelta
from typing import Self
from uuid import UUID, uuid4

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from overnight_server.domain.claims import Run
from overnight_server.fault_points import fault
from overnight_server.gate.claim import Begun, Terms, take_first, take_next, trip_for_first
from overnight_server.store.batched_statements import Trip
from overnight_server.store.db import DatabaseUnreachable, Standby
from overnight_server.telemetry import Event, emit
from overnight_server.wakeups.idle_slot_listener import Heard, SlotSubscription
from overnight_worker.identity import WORKER_ID
from overnight_worker.record_results import UNANSWERED_SECONDS, give_up_by, give_up_taken_by
from overnight_worker.resources import WorkerResources
from overnight_worker.shutdown import DRAIN

# How long a slot that lingers may be deaf to a shutdown.
SLICE_SECONDS = 0.5
# How long it keeps a connection before it asks whether the server is still there.
TRUST_SECONDS = 2.0
# How long it may go on after a message if it mostly lingers.
LISTEN_SECONDS = 60.0


class Refill:
    """Follows one message: what its slot takes after it, for a while."""

    def __init__(self, resources: WorkerResources) -> None:
        self._resources = resources
        self._terms = Terms.of(resources.settings)
        self._lease = timedelta(seconds=resources.settings.lease_seconds)
        # Then Celery has its process back, to look after it and to show that it goes on: soon
        # after much work, later if there was little.
        self._until = time.monotonic() + resources.settings.refill_seconds
        self._leaves = max(self._until, time.monotonic() + LISTEN_SECONDS)
        self._bundle = uuid4()
        self._next = Begun()
        self._confirmed = False
        # So is whatever an invited slot may take.
        self._was_quick = True
        self.began = 0.0

    def after(self, run: Run, began: float) -> Self | None:
        """Get ready to follow runs, the last of them begun then; None if it ends here."""
        self._was_quick = time.monotonic() - began < self._resources.settings.bundle_seconds
        if not self._goes_on:
            return None
        # A bundle goes by the message's name, under which Celery can be asked to end it.
        self._bundle = run.bundle or self._bundle
        return self

    @property
    def _goes_on(self) -> bool:
        return self._was_quick and time.monotonic() < self._until and not DRAIN.begun

    def claim(self, tx: Connection) -> None:
        """Claim and begin the next runs in the transaction that settles the last ones."""
        settings = self._resources.settings
        # Before the start is requested: the leases count from some moment after this.
        self.began = time.monotonic()
        self._next = Begun()
        self._next = take_next(
            tx,
            settings.pool,
            agent=WORKER_ID,
            bundle=self._bundle,
            terms=self._terms,
            lease=self._lease,
        )
        fault("refill.before_commit")

    def confirm(self) -> None:
        """Hear that the transaction was committed."""
        self._confirmed = True

    def take(self) -> list[Run]:
        """Return the next runs, none if it ends here."""
        begun, self._next = self._next, Begun()
        confirmed, self._confirmed = self._confirmed, False
        if not confirmed:
            # The transaction brought no answer, but it may have counted.
            claims = [run.claim for run in begun.runs]
            give_up_by(self._resources.db, claims, deadline=time.monotonic() + UNANSWERED_SECONDS)
            return []
        if begun.runs:
            fault("refill.after_commit")
            if begun.idle and len(begun.runs) > 1:
                # Others could take some of what this slot found; one alone was all there was.
                self._resources.waker.wake()
        return list(begun.runs)

    def linger(self) -> list[Run]:
        """Stay for what comes next; return it, or none if it is time to leave."""
        if not self._goes_on:
            return []
        try:
            with self._resources.ear as ear:
                while time.monotonic() < self._leaves and not DRAIN.begun:
                    heard, runs = self._listen(ear)
                    if runs:
                        span = self._resources.settings.refill_seconds
                        self._until = min(time.monotonic() + span, self._leaves)
                    if runs or heard is Heard.LEAVE:
                        return runs
        except (DatabaseUnreachable, SQLAlchemyError) as error:
            emit(Event.DATABASE_UNREACHABLE, error=error)
            return []
        if not DRAIN.begun:
            # Its time is up, but somebody should be listening.
            self._resources.waker.wake()
        return []

    def _listen(self, ear: SlotSubscription) -> tuple[Heard, list[Run]]:
        """Listen for as long as a connection can be trusted, or until something comes of it."""
        until = time.monotonic() + TRUST_SECONDS
        with self._resources.db.standing_by() as standby:
            trip, token = self._prepared(standby)
            while time.monotonic() < until and not DRAIN.begun:
                heard = ear.wait(SLICE_SECONDS)
                if heard is Heard.LEAVE:
                    return heard, []
                # One that brought nothing can be made again: nothing was taken under its name.
                if heard is not Heard.NOTHING and (runs := self._look(standby, trip, token)):
                    return heard, runs
                if heard is Heard.CALL:
                    ear.pass_on()
        return Heard.NOTHING, []

    def _prepared(self, standby: Standby) -> tuple[Trip, UUID]:
        """Do before a word comes what need not wait for it."""
        token = uuid4()
        trip = trip_for_first(
            standby,
            self._resources.settings.pool,
            agent=WORKER_ID,
            token=token,
            terms=self._terms,
            lease=self._lease,
        )
        return trip, token

    def _look(self, standby: Standby, trip: Trip, token: UUID) -> list[Run]:
        self.began = time.monotonic()
        try:
            run = take_first(standby, trip)
        except (DatabaseUnreachable, SQLAlchemyError):
            # It may have counted all the same.
            db, pool = self._resources.db, self._resources.settings.pool
            give_up_taken_by(db, pool, token, deadline=time.monotonic() + UNANSWERED_SECONDS)
            raise
        if run is None:
            return []
        fault("refill.after_commit")
        return [run]
