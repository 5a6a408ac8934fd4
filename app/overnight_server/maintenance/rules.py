"""Apply the improvement rules of all users: file a task for each figure that is bad."""

from functools import partial

from sqlalchemy import Connection

from overnight.errors import Refused
from overnight_server.domain.event_templates import Unfit
from overnight_server.domain.ids import RuleId, UserId, show_rule
from overnight_server.intake.rules import apply_rule
from overnight_server.settings import Settings
from overnight_server.store.db import DatabaseUnreachable, Db
from overnight_server.store.pass_limit import PassLimit
from overnight_server.store.statements import statement
from overnight_server.telemetry import LogEvent, emit

#: The problem on the row of a rule that failed by an unexpected error; the log has the error.
UNEXPECTED = "INTERNAL_ERROR: the rule could not be applied"


def apply_rules(db: Db, settings: Settings) -> int:
    """Apply every rule; return how many tasks were filed.

    A rule that is refused or fails keeps the reason on its row and does not affect the others. A
    pass that takes long stops; the next one begins with what it left.
    """
    rules = db.atomically(_active_rules)
    limit, filed = PassLimit(), 0
    for user_id, rule_id in rules:
        filed += _apply(db, user_id, rule_id, settings)
        if limit.is_over:
            break
    return filed


def _active_rules(tx: Connection) -> list[tuple[UserId, RuleId]]:
    rows = tx.execute(statement("active_improvement_rules"))
    return [(UserId(row.user_id), RuleId(row.id)) for row in rows]


def _apply(db: Db, user_id: UserId, rule_id: RuleId, settings: Settings) -> int:
    filed, problem = 0, None
    try:
        filed = apply_rule(db, user_id, rule_id, settings)
    except DatabaseUnreachable:
        raise
    except Refused as refusal:
        problem = f"{refusal.code}: {refusal.message}"
    except Unfit as error:
        problem = str(error)
    except Exception as error:  # noqa: BLE001 - any error concerns this rule only
        emit(LogEvent.RULE_STUCK, rule_id=show_rule(rule_id), error=error)
        problem = UNEXPECTED
    db.atomically(partial(_note, rule_id=rule_id, problem=problem))
    return filed


def _note(tx: Connection, *, rule_id: RuleId, problem: str | None) -> None:
    tx.execute(statement("note_rule_applied"), {"rule_id": rule_id, "problem": problem})
