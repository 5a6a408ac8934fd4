"""Noting how long runs take: the quick can then travel together, and forecasts know the rest."""

import json
import time
from math import ceil

from sqlalchemy.exc import SQLAlchemyError

from overnight_server.store.db import DatabaseUnreachable, Db
from overnight_server.store.statements import statement
from overnight_server.telemetry import get

REPORT_EVERY_SECONDS = 1.0
# Of many quick runs a few tell enough, and leave room for what other workers saw.
SHOWN = 20

_log = get(__name__)


class Pace:
    """What this process saw since its last report: the mean per type, or a slow run's time."""

    def __init__(self) -> None:
        self._seen: dict[str, list[float]] = {}
        self._reported = 0.0

    def note(self, type_: str, seconds: float) -> None:
        """Remember one run."""
        self._seen.setdefault(type_, []).append(seconds)

    def report(self, db: Db) -> None:
        """Tell the deployment, at most once a second; a lost report is no loss."""
        now = time.monotonic()
        if not self._seen or now - self._reported < REPORT_EVERY_SECONDS:
            return
        self._reported = now
        seen = [
            {
                "type": type_,
                "seconds": max(sum(spans) / len(spans), max(spans) / 10),
                "recent": spans[:: ceil(len(spans) / SHOWN)],
            }
            for type_, spans in self._seen.items()
        ]
        self._seen.clear()
        try:
            db.atomically(lambda tx: tx.execute(statement("note_pace"), {"seen": json.dumps(seen)}))
        except (DatabaseUnreachable, SQLAlchemyError) as error:
            _log.debug("a report on paces was lost", error=error)
