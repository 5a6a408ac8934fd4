"""The findings of the audit, with what they mean and what a person does about them."""

from dataclasses import dataclass

from overnight.models.admin import AuditFinding
from overnight_server.domain.audit_rules import (
    AUDIT_RULES,
    FindingStatus,
    show_detail,
    show_subject,
)
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

# The areas that the audit checks: lanes, graphs, tasks, bulk operations and storage.
AREAS = 5


@dataclass(frozen=True)
class FindingCounts:
    """Open findings, those repaired in the last day, and the age of the last complete round.

    `seconds_since_round` is None until the audit has once checked everything.
    """

    open: int
    repaired: int
    seconds_since_round: float | None


def list_findings(db: Db, *, everything: bool = False, limit: int = 100) -> list[AuditFinding]:
    """Return the open findings, newest first; with `everything` also those that ended."""
    params = {"states": None if everything else [FindingStatus.OPEN.value], "limit": limit}
    rows = db.atomically(lambda tx: tx.execute(statement("view_findings"), params).mappings().all())
    return [
        AuditFinding(
            **{
                **row,
                "rule": row["check_name"],
                "problem": _sentence(row["check_name"], "problem"),
                "advice": _sentence(row["check_name"], "advice"),
                "subject": show_subject(row["check_name"], row["subject"]),
                "detail": show_detail(row["detail"]),
            }
        )
        for row in rows
    ]


def count_findings(db: Db) -> FindingCounts:
    """Return how many findings there are, and when everything was last checked."""
    params = {"areas": AREAS}
    row = db.atomically(lambda tx: tx.execute(statement("count_findings"), params).one())
    return FindingCounts(row.open, row.repaired, row.seconds_since_round)


def _sentence(rule: str, field: str) -> str:
    """Return a sentence about a rule; rules of another release are not known."""
    known = AUDIT_RULES.get(rule)
    return "a rule of another release" if known is None else str(getattr(known, field))
