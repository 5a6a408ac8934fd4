"""What improvement rules measure now, and the rules themselves, as their owner sees them."""

from sqlalchemy import Connection

from overnight.errors import RuleNotFound
from overnight.models.rules import ImprovementRule, RuleFigure
from overnight_server.domain.ids import RuleId, UserId, show_rule, show_task
from overnight_server.intake.rules import Measure, measure, read_rule
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


def list_rules(db: Db, user_id: UserId, rule_id: RuleId | None = None) -> list[ImprovementRule]:
    """Return a user's improvement rules by name, or one of them."""
    params = {"user_id": user_id, "rule_id": rule_id}
    rows = db.atomically(
        lambda tx: tx.execute(statement("view_improvement_rules"), params).mappings().all()
    )
    return [
        ImprovementRule(
            **{
                **row,
                "id": show_rule(row["id"]),
                "above": row["threshold"],
                "by": row["grouped_by"],
                "task": row["template"],
                "last_task_id": None
                if row["last_task_id"] is None
                else show_task(row["last_task_id"]),
            }
        )
        for row in rows
    ]


def get_rule(db: Db, user_id: UserId, rule_id: RuleId) -> ImprovementRule:
    """Return one improvement rule; raise RuleNotFound if the user has no such one."""
    rules = list_rules(db, user_id, rule_id)
    if not rules:
        raise RuleNotFound
    return rules[0]


def get_figures(db: Db, user_id: UserId, rule_id: RuleId) -> list[RuleFigure]:
    """Return what a rule measures now; raise RuleNotFound if the user has no such one."""

    def read(tx: Connection) -> list[Measure]:
        rule = read_rule(tx, user_id, rule_id)
        if rule is None:
            raise RuleNotFound
        return measure(tx, user_id, rule)

    return [
        RuleFigure(
            subject=found.subject,
            value=found.value,
            tasks=found.tasks,
            runs=found.runs,
            failures=found.failures,
            is_bad=found.is_bad,
            open_task_id=None if found.open_task_id is None else show_task(found.open_task_id),
        )
        for found in db.atomically(read)
    ]
