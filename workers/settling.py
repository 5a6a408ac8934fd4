"""Recording how a run ended, also while Postgres is away for a moment."""

import time
from typing import Final

from sqlalchemy.exc import DataError, SQLAlchemyError

from app.domain.claims import Run
from app.domain.ids import show_task
from app.domain.results import Interrupted, Raised, Result, Returned
from app.outcome.settle import settle
from app.store.db import DatabaseUnreachable, Db
from app.telemetry import Event, emit, get
from workers.identity import WORKER_ID

FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 2.0

_log = get(__name__)


def settle_by(db: Db, run: Run, result: Result, *, deadline: float) -> bool:
    """Record a run's end before an instant of the monotonic clock; True if it counted.

    Past the deadline the lease may be over and the task someone else's: giving up leaves the
    rest to the reaper.
    """
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            return _report(run, result, won=settle(db, run, result, agent=WORKER_ID))
        except DataError as error:
            if not isinstance(result, Returned):
                raise
            result = _unfit(result, error)
        except (DatabaseUnreachable, SQLAlchemyError) as error:
            if time.monotonic() + pause >= deadline:
                _log.error("a run's end could not be recorded", queue_id=_name(run), error=error)
                return False
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)


def _unfit(result: Returned, error: DataError) -> Raised:
    """Turn an output that Postgres refuses into a failure, or it would never be settled."""
    return Raised(
        error_class="invalid_output",
        message=f"the output cannot be stored: {error.orig}",
        error_type="InvalidOutput",
        cost_usd=result.cost_usd,
        tokens=result.tokens,
    )


def _report(run: Run, result: Result, *, won: bool) -> bool:
    known = {"queue_id": _name(run), "epoch": run.claim.epoch}
    reason = result.error_class if isinstance(result, Raised) else None
    if not won:
        emit(Event.STALE_RESULT, **known, reason=type(result).__name__.lower(), worker=WORKER_ID)
    elif isinstance(result, Interrupted):
        emit(Event.TASK_HANDED_BACK, **known, reason=result.reason)
    else:
        emit(Event.TASK_SETTLED, **known, outcome=type(result).__name__.lower(), reason=reason)
    return won


def _name(run: Run) -> str:
    return show_task(run.claim.task_id)
