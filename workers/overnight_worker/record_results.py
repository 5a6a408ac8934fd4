"""Records how runs ended, and retries while Postgres is down for a moment."""

import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.exc import DataError

from overnight_server.domain.claims import Claim, Run
from overnight_server.domain.ids import show_task
from overnight_server.domain.results import Interrupted, Raised, Result
from overnight_server.outcome.settle import (
    UNSTORABLE,
    Ending,
    Settled,
    claims_by_token,
    hand_back,
    settle_all,
    unstorable,
)
from overnight_server.store.db import DATABASE_ERRORS, Db, is_transient
from overnight_server.telemetry import LogEvent, emit, get
from overnight_worker.identity import WORKER_ID

FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 2.0
# How long to try to hand back claims whose start was not confirmed; then their lease or TTL ends.
UNANSWERED_SECONDS: Final = 5.0
UNANSWERED: Final = "start_unanswered"
# How often to log that results still wait to be recorded.
LOG_EVERY_SECONDS: Final = 30.0

_log = get(__name__)


class NextClaim(Protocol):
    """Claims the slot's next tasks in the transaction that records its last results."""

    def claim(self, tx: Connection) -> None:
        """Claim, inside the transaction."""

    def committed(self) -> None:
        """Note that the transaction was committed."""


def settle_by(
    db: Db,
    results: Sequence[tuple[Run, Result]],
    *,
    deadline: float,
    next_claim: NextClaim | None = None,
) -> bool:
    """Record results; True if any of them was recorded while it still held its claim.

    While Postgres is down or busy this retries for as long as the worker lives. A lease may have
    ended by then, but a result still counts if no other worker has claimed the task. If Postgres
    rejects the data of a result, the results are recorded one by one, and a failure without that
    data is recorded instead. After any other permanent error the results are dropped at `deadline`
    (monotonic clock), and this returns False. `next_claim` joins the first try only, so that it can
    never prevent the recording.
    """
    pause = FIRST_PAUSE_SECONDS
    log_at = time.monotonic()
    while True:
        first_claim, next_claim = next_claim, None
        try:
            settled = settle_all(
                db, results, agent=WORKER_ID, then=first_claim.claim if first_claim else None
            )
        except DataError as error:
            if first_claim is not None:
                continue  # the claim may be the cause, not an output
            if len(results) > 1:
                # One output spoils the statement for all: record each alone to find it.
                recorded = [settle_by(db, [each], deadline=deadline) for each in results]
                return any(recorded)
            [(run, result)] = results
            if isinstance(result, Raised) and result.error_class == UNSTORABLE:
                ids = [show_task(run.claim.task_id)]
                _log.error("results could not be recorded", queue_ids=ids, error=error)
                return False
            results = [(run, unstorable(result, error))]
        except DATABASE_ERRORS as error:
            now, ids = time.monotonic(), [show_task(run.claim.task_id) for run, _ in results]
            if now + pause >= deadline and not is_transient(error):
                _log.error("results could not be recorded", queue_ids=ids, error=error)
                return False
            if now >= log_at:
                _log.warning("results wait to be recorded", queue_ids=ids, error=error)
                log_at = now + LOG_EVERY_SECONDS
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
        else:
            if first_claim is not None:
                first_claim.committed()
            return _report(settled)


def hand_back_by(db: Db, claims: Sequence[Claim], *, deadline: float) -> bool:
    """Hand back claims whose start was not confirmed; True if Postgres confirmed that in time.

    The start may have been committed. Without this, the task would spend an attempt although
    nobody ran it, and would wait until its lease ends.
    """
    if not claims:
        return True
    return _hand_back(db, lambda: claims, deadline=deadline)


def hand_back_token_by(db: Db, pool: str, token: UUID, *, deadline: float) -> bool:
    """Hand back whatever was claimed under a token; True if Postgres confirmed that in time."""
    return _hand_back(db, lambda: claims_by_token(db, pool, token), deadline=deadline)


def _hand_back(db: Db, find_claims: Callable[[], Sequence[Claim]], *, deadline: float) -> bool:
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            claims = find_claims()
            hand_back(db, claims, agent=WORKER_ID, reason=UNANSWERED)
        except DATABASE_ERRORS:
            if time.monotonic() + pause >= deadline:
                return False
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
        else:
            return True


def _report(settled: Settled) -> bool:
    for ending in settled.won:
        _report_recorded(ending)
    return bool(settled.won)


def _report_recorded(ending: Ending) -> None:
    result = ending.result
    if isinstance(result, Interrupted):
        emit(LogEvent.TASK_HANDED_BACK, **_log_fields(ending), reason=result.reason)
        return
    reason = result.error_class if isinstance(result, Raised) else None
    outcome = type(result).__name__.lower()
    emit(LogEvent.TASK_SETTLED, **_log_fields(ending), outcome=outcome, reason=reason)


def _log_fields(ending: Ending) -> dict[str, object]:
    return {"queue_id": show_task(ending.claim.task_id), "epoch": ending.claim.epoch}
