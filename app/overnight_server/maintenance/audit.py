"""Check that rows agree with each other; repair what is certain, and report the rest once.

A pass checks the next slice of each area and stores where it stopped, so that its time does not
grow with the deployment. A violation is looked at again with the user's lane locked before it is
repaired or reported: a change in progress is no finding.
"""

import json
import time
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from overnight_server.domain.audit_rules import show_detail, show_subject
from overnight_server.fault_points import fault
from overnight_server.maintenance.audit_checks import (
    AREAS,
    CHECKS,
    FIRST_ID,
    LAST_ID,
    POOL_PAUSES,
    AuditArea,
    AuditCheck,
    Violation,
)
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.statements import statement
from overnight_server.telemetry import LogEvent, emit

# A pass begins no further area after this time. Each area has a limit of its own, and the end of a
# round over the lanes takes about 0.6 s with a million users.
PASS_SECONDS: Final = 0.6
# How many findings a pass checks again, and how many violations it confirms per check and slice:
# the lane of a user is locked for each. The next round finds what is left.
MAX_CHECKED_AGAIN: Final = 20
MAX_CONFIRMED: Final = 100
# A check with this many open findings adds no more.
MAX_OPEN: Final = 1_000
MAX_DELETED: Final = 1_000
RETENTION: Final = timedelta(days=90)


@dataclass(frozen=True)
class PassBounds:
    """What bounds a pass: its time, and the rows of a slice (None: the number of each area)."""

    seconds: float = PASS_SECONDS
    rows: int | None = None
    max_confirmed: int | None = MAX_CONFIRMED


EVERYTHING: Final = PassBounds(float("inf"), max_confirmed=None)


def audit(db: Db, bounds: PassBounds | None = None, *, retention: timedelta = RETENTION) -> int:
    """Check the next slices; return how many findings are new or were repaired, ideally 0.

    Findings that ended longer than `retention` ago are deleted.
    """
    _check_again(db, MAX_CHECKED_AGAIN)
    findings = _check_areas(db, bounds or PassBounds())
    params = {"older_than": retention, "limit": MAX_DELETED}
    db.atomically(lambda tx: tx.execute(statement("delete_ended_findings"), params))
    return findings


def audit_all(db: Db) -> int:
    """Check everything, from the start; return how many findings are new or were repaired."""
    db.atomically(lambda tx: tx.execute(statement("restart_audit")))
    _check_again(db, MAX_OPEN * len(CHECKS))
    return _check_areas(db, EVERYTHING)


def _check_areas(db: Db, bounds: PassBounds) -> int:
    ends_at, findings = time.monotonic() + bounds.seconds, 0
    for area in AREAS:
        # The first area is always checked, so that every pass makes progress.
        if area is AREAS[0] or time.monotonic() < ends_at:
            findings += audit_area(db, area, bounds)
    return findings


def audit_area(db: Db, area: AuditArea, bounds: PassBounds) -> int:
    """Check slices of an area until its time is over, or its end is reached.

    Returns how many findings are new or were repaired.
    """
    seconds = bounds.seconds if bounds is EVERYTHING else min(area.seconds, bounds.seconds)
    ends_at, findings = time.monotonic() + seconds, 0
    next_id = _read_position(db, area)
    while True:
        last = _end_of_slice(db, area, next_id, bounds.rows or area.rows)
        findings += _check_slice(db, area, next_id, last, bounds.max_confirmed)
        if last == LAST_ID:
            _write_position(db, area, None)
            return findings + (_check_deployment(db) if area is AREAS[0] else 0)
        next_id = UUID(int=last.int + 1)
        if time.monotonic() >= ends_at:
            _write_position(db, area, next_id)
            return findings


def _read_position(db: Db, area: AuditArea) -> UUID:
    params = {"area": area.name}
    position = db.atomically(lambda tx: tx.execute(statement("audit_position"), params).scalar())
    return position or FIRST_ID


def _write_position(db: Db, area: AuditArea, next_id: UUID | None) -> None:
    """Store where the next pass continues; None ends a round."""
    params = {"area": area.name, "next_id": next_id, "round_ended": next_id is None}
    db.atomically(lambda tx: tx.execute(statement("set_audit_position"), params))


def _end_of_slice(db: Db, area: AuditArea, first: UUID, rows: int) -> UUID:
    """Return the last id of a slice; `LAST_ID` after the last row, for rows about missing ones."""
    params = {"first": first, "max_rows": rows, "max_weight": area.max_weight}
    last = db.atomically(lambda tx: tx.execute(statement(area.slice), params).scalar())
    return last or LAST_ID


def _check_slice(
    db: Db, area: AuditArea, first: UUID, last: UUID, max_confirmed: int | None
) -> int:
    """Check the rows of a slice; return how many findings are new or were repaired."""
    suspects = db.atomically(lambda tx: [check.find(tx, first, last) for check in area.checks])
    fault("audit.after_search")
    return sum(
        _confirm(db, check, violation)
        for check, violations in zip(area.checks, suspects, strict=True)
        for violation in _unknown(db, check, violations)[:max_confirmed]
    )


def _check_deployment(db: Db) -> int:
    """Check what belongs to no user, at the end of a round over the lanes."""
    pools = db.atomically(lambda tx: POOL_PAUSES.find(tx, FIRST_ID, LAST_ID))
    confirmed = sum(_confirm(db, POOL_PAUSES, pool) for pool in _unknown(db, POOL_PAUSES, pools))
    return confirmed + _repair_depth(db)


def _unknown(db: Db, check: AuditCheck, violations: list[Violation]) -> list[Violation]:
    """Return the violations that no finding reports yet, one for each subject."""
    if not violations:
        return []
    by_subject = {violation.subject: violation for violation in reversed(violations)}
    params = {"check_name": check.rule, "subjects": list(by_subject), "max_open": MAX_OPEN}
    row = db.atomically(lambda tx: tx.execute(statement("known_findings"), params).one())
    if row.is_full and check.repair is None:
        return []
    return [one for subject, one in by_subject.items() if subject not in row.subjects]


def _confirm(db: Db, check: AuditCheck, suspect: Violation) -> bool:
    """Look again with the lane locked; repair and report what is still there.

    Returns False if the rule is kept now, or another process reports the same.
    """

    def work(tx: Connection) -> tuple[Violation, bool] | None:
        if suspect.user_id is not None:
            lanes.lock(tx, [suspect.user_id])
        violation = _find_one(tx, check, suspect.subject)
        if violation is None:
            return None
        is_repaired = _repair(tx, check, violation)
        is_new = tx.execute(
            statement("record_finding"),
            {
                "check_name": check.rule,
                "subject": violation.subject,
                "user_id": violation.user_id,
                "detail": json.dumps(violation.detail),
                "repaired": is_repaired,
                "max_open": MAX_OPEN,
            },
        ).one_or_none()
        return None if is_new is None else (violation, is_repaired)

    confirmed = db.atomically(work)
    if confirmed is not None:
        violation, is_repaired = confirmed
        _report(check.rule, violation, is_repaired=is_repaired)
    return confirmed is not None


def _find_one(tx: Connection, check: AuditCheck, subject: str) -> Violation | None:
    """Return how one row breaks a rule, or None if it keeps it."""
    first, last = (FIRST_ID, LAST_ID) if check is POOL_PAUSES else (UUID(subject),) * 2
    return next((one for one in check.find(tx, first, last) if one.subject == subject), None)


def _repair(tx: Connection, check: AuditCheck, violation: Violation) -> bool:
    """Repair a violation if its check can; return whether the rule is kept now.

    Rows that contradict each other in more than one way may refuse a repair; they stay as they are.
    """
    if check.repair is None:
        return False
    try:
        with tx.begin_nested():
            check.repair(tx, violation)
    except IntegrityError:
        return False
    return _find_one(tx, check, violation.subject) is None


def _repair_depth(db: Db) -> int:
    """Merge the depth counters of closed connections; correct and report a wrong sum."""
    params = {"check_name": "queue_depth", "subject": "queue", "user_id": None}

    def work(tx: Connection) -> int:
        correction = int(tx.execute(statement("repair_depth")).scalar_one())
        if correction:
            detail = json.dumps({"correction": correction})
            tx.execute(
                statement("record_finding"),
                {**params, "detail": detail, "repaired": True, "max_open": MAX_OPEN},
            )
        return correction

    correction = db.atomically(work)
    if correction:
        _report(
            "queue_depth", Violation("queue", None, {"correction": correction}), is_repaired=True
        )
    return int(correction != 0)


def _report(rule: str, violation: Violation, *, is_repaired: bool) -> None:
    emit(
        LogEvent.AUDIT_FINDING,
        rule=rule,
        subject=show_subject(rule, violation.subject),
        user_id=violation.user_id,
        repaired=is_repaired,
        detail=json.dumps(show_detail(violation.detail)),
    )


def _check_again(db: Db, limit: int) -> None:
    """Check findings again, those that were not checked for longest first; end those that are gone.

    The rule of a finding from another release may be unknown here; such a finding ends too.
    """
    params = {"limit": limit}
    rows = db.atomically(lambda tx: tx.execute(statement("findings_to_check"), params).all())
    for row in rows:
        if db.atomically(partial(_update_finding, row.id, CHECKS.get(row.check_name), row.subject)):
            subject = show_subject(row.check_name, row.subject)
            emit(LogEvent.AUDIT_FINDING_GONE, rule=row.check_name, subject=subject)


def _update_finding(
    finding_id: int, check: AuditCheck | None, subject: str, tx: Connection
) -> bool:
    """Check one finding again; return whether it is gone."""
    is_gone = check is None or _find_one(tx, check, subject) is None
    tx.execute(statement("update_finding"), {"finding_id": finding_id, "gone": is_gone})
    return is_gone
