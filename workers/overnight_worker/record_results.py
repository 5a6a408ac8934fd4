"""Recording how a run ended, also while Postgres is away for a moment."""

import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.exc import DataError, DBAPIError, SQLAlchemyError

from overnight_server.domain.claims import Claim, Run
from overnight_server.domain.ids import show_task
from overnight_server.domain.results import Interrupted, Raised, Result, Returned
from overnight_server.outcome.settle import Ending, Settled, give_up, settle_all, taken_under
from overnight_server.store.db import DatabaseUnreachable, Db, sqlstate
from overnight_server.telemetry import Event, emit, get
from overnight_worker.identity import WORKER_ID

FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 2.0
# How long to try to give back what nobody may ever run; then the lease or the claim runs out.
UNANSWERED_SECONDS: Final = 5.0
UNANSWERED: Final = "start_unanswered"
# How often to say that an end still waits.
SAY_SECONDS: Final = 30.0
# What passes, by Postgres's classes of errors: a server that may only read, a lost race, no room, a
# lock that is held, a statement that took too long, a disk that fails.
PASSING: Final = ("25", "40", "53", "55", "57", "58")

_log = get(__name__)


class Follow(Protocol):
    """What a settling transaction may do besides."""

    def claim(self, tx: Connection) -> None:
        """Do it, in the transaction."""

    def confirm(self) -> None:
        """Hear that the transaction was committed."""


def settle_by(
    db: Db,
    ends: Sequence[tuple[Run, Result]],
    *,
    deadline: float,
    then: Follow | None = None,
) -> bool:
    """Record runs' ends; True if any of them counted.

    While Postgres is away or busy it is tried for as long as the worker lives. A lease may be over
    by then, but what took hours to make still counts if nobody took the task meanwhile. What
    Postgres refuses for good is given up at the deadline, an instant of the monotonic clock. `then`
    joins the first try only: an end must not be lost over it.
    """
    pause = FIRST_PAUSE_SECONDS
    say_at = time.monotonic()
    while True:
        first, then = then, None
        try:
            settled = settle_all(db, ends, agent=WORKER_ID, then=first.claim if first else None)
        except DataError as error:
            if first is not None:
                continue  # what came besides may be to blame, and not an output
            if len(ends) > 1:
                # One output spoils the statement for all: each by itself shows whose it is.
                alone = [settle_by(db, [one], deadline=deadline) for one in ends]
                return any(alone)
            ends = [_unfit(*ends[0], error)]
        except (DatabaseUnreachable, SQLAlchemyError) as error:
            now, names = time.monotonic(), [show_task(run.claim.task_id) for run, _ in ends]
            if now + pause >= deadline and not _passes(error):
                _log.error("ends could not be recorded", queue_ids=names, error=error)
                return False
            if now >= say_at:
                _log.warning("ends wait to be recorded", queue_ids=names, error=error)
                say_at = now + SAY_SECONDS
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
        else:
            if first is not None:
                first.confirm()
            return _report(settled)


def _passes(error: Exception) -> bool:
    """Whether Postgres may take later what it did not take now."""
    if isinstance(error, DBAPIError):
        return (sqlstate(error) or "").startswith(PASSING)
    return isinstance(error, DatabaseUnreachable)


def give_up_by(db: Db, claims: Sequence[Claim], *, deadline: float) -> bool:
    """Give back claims whose start brought no answer; True if that was answered in time.

    The start may have been counted. Its run would then spend an attempt although nobody ran it,
    and hold up its task until the lease is over.
    """
    if not claims:
        return True
    return _given_back(
        lambda: give_up(db, claims, agent=WORKER_ID, reason=UNANSWERED), deadline=deadline
    )


def give_up_taken_by(db: Db, pool: str, token: UUID, *, deadline: float) -> bool:
    """Do the same with whatever was taken under a token."""

    def give_back() -> int:
        return give_up(db, taken_under(db, pool, token), agent=WORKER_ID, reason=UNANSWERED)

    return _given_back(give_back, deadline=deadline)


def _given_back(give_back: Callable[[], int], *, deadline: float) -> bool:
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            given_up = give_back()
        except (DatabaseUnreachable, SQLAlchemyError):
            if time.monotonic() + pause >= deadline:
                return False
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
        else:
            _log.info("starts without an answer were given back", count=given_up)
            return True


def _unfit(run: Run, result: Result, error: DataError) -> tuple[Run, Result]:
    """Turn an output that Postgres refuses into a failure, or it would never be settled."""
    if not isinstance(result, Returned):
        raise error
    failure = Raised(
        error_class="invalid_output",
        message=f"the output cannot be stored: {error.orig}",
        error_type="InvalidOutput",
        cost_usd=result.cost_usd,
        tokens=result.tokens,
        ran_seconds=result.ran_seconds,
    )
    return run, failure


def _report(settled: Settled) -> bool:
    for ending in settled.won:
        _report_won(ending)
    for ending in settled.stale:
        kind = type(ending.result).__name__.lower()
        emit(Event.STALE_RESULT, **_known(ending), reason=kind, worker=WORKER_ID)
    return bool(settled.won)


def _report_won(ending: Ending) -> None:
    result = ending.result
    if isinstance(result, Interrupted):
        emit(Event.TASK_HANDED_BACK, **_known(ending), reason=result.reason)
        return
    reason = result.error_class if isinstance(result, Raised) else None
    kind = type(result).__name__.lower()
    emit(Event.TASK_SETTLED, **_known(ending), outcome=kind, reason=reason)


def _known(ending: Ending) -> dict[str, object]:
    return {"queue_id": show_task(ending.claim.task_id), "epoch": ending.claim.epoch}
