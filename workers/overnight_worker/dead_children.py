"""Telling the deployment what died with a process, instead of letting leases run out."""

import time
from dataclasses import dataclass
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from overnight_server.fault_points import fault
from overnight_server.maintenance.reap import end_runs_of_the_dead
from overnight_server.settings import Settings
from overnight_server.store.db import Db
from overnight_server.telemetry import Event, emit
from overnight_worker.claim_registry import CLAIM_REGISTRY, ClaimRegistry, OrphanedClaims
from overnight_worker.one_shot_connection import say
from overnight_worker.shutdown import DRAIN

# The main loop stands still while it speaks, so what cannot be said is tried ever less often.
FIRST_PAUSE_SECONDS: Final = 2.0
LONGEST_PAUSE_SECONDS: Final = 30.0


@dataclass(eq=False)
class Notice:
    """A death that has not been told yet, and when to try again."""

    estate: OrphanedClaims
    due: float = 0.0
    pause: float = FIRST_PAUSE_SECONDS

    def put_off(self, now: float) -> None:
        """Try again later, and later still after that."""
        self.due = now + self.pause
        self.pause = min(self.pause * 2, LONGEST_PAUSE_SECONDS)


class DeadChildren:
    """The deaths in one pool, kept in its main process until the deployment knows of them."""

    def __init__(self, holding: ClaimRegistry) -> None:
        self._holding = holding
        self._notices: list[Notice] = []

    def note(self) -> None:
        """Write down who is gone, before anybody is given their places."""
        self._notices += [Notice(estate) for estate in self._holding.left_by_the_dead()]

    def tell(self, settings: Settings) -> None:
        """Settle what the dead had in hand; what one of them keeps does not hold up the others."""
        self.note()
        now = time.monotonic()
        due = [notice for notice in self._notices if notice.due <= now]
        if not due:
            return
        fault("obituary.before_word")
        for notice in due:
            notice.put_off(now)

        def word(db: Db) -> None:
            for notice in due:
                self._settle(db, notice)

        say(settings, word)

    def _settle(self, db: Db, notice: Notice) -> None:
        estate = notice.estate
        # Whatever ends while the worker shuts down, ends because of that.
        taken_away = estate.taken_away or DRAIN.begun
        try:
            end_runs_of_the_dead(db, estate.claims, handling=estate.handling, taken_away=taken_away)
        except SQLAlchemyError as error:
            emit(Event.DATABASE_UNREACHABLE, error=error)
        else:
            self._notices.remove(notice)


DEAD_CHILDREN: Final = DeadChildren(CLAIM_REGISTRY)
