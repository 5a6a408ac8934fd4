"""Find users who are not served although the gate could serve them, and report each."""

from uuid import UUID

from sqlalchemy import Connection

from overnight_server.gate.claim import ClaimSettings
from overnight_server.insight.fairness_report import starving_users
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.telemetry import LogEvent, emit


def report_starving_users(db: Db, claim_settings: ClaimSettings) -> int:
    """Log every user who starves, and let all pools consider the lane again; return their number.

    There should be none. A lane that pools skip by mistake is served by the next pass.
    """
    starving = db.atomically(lambda tx: starving_users(tx, claim_settings))
    for user_id, user in starving.items():
        _unskip(db, user_id)
        emit(LogEvent.USER_STARVING, user_id=user_id, waited_seconds=round(user.waited_seconds))
    return len(starving)


def _unskip(db: Db, user_id: UUID) -> None:
    def work(tx: Connection) -> None:
        lanes.lock(tx, [user_id])
        lanes.unskip_lane(tx, user_id)

    db.atomically(work)
