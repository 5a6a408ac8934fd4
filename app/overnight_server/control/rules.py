"""Improvement rules: add and remove them."""

import json

from sqlalchemy import Connection

from overnight.errors import RuleExists, RuleNotFound
from overnight.models.rules import RuleCreate
from overnight_server.domain.ids import RuleId, UserId, new_rule_id
from overnight_server.intake.event_work import Template, check_template
from overnight_server.intake.rules import DEFAULT_TASK, EVIDENCE
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

#: How many rules a user may have.
MAX_RULES = 50


def add_rule(db: Db, user_id: UserId, wanted: RuleCreate, *, actor: str) -> RuleId:
    """Add an improvement rule; raise InvalidTemplate for a task that cannot be filed."""
    fields = {**DEFAULT_TASK, **wanted.task}
    if isinstance(payload := fields["payload"], dict):
        fields["payload"] = {**payload, **EVIDENCE}
    template = Template(fields, is_graph=False)
    check_template(template)
    rule_id = new_rule_id()
    params = {
        "rule_id": rule_id,
        "user_id": user_id,
        "name": wanted.name,
        "figure": wanted.figure,
        "grouped_by": wanted.by,
        "subject": wanted.subject,
        "threshold": wanted.above,
        "window_seconds": wanted.window_seconds,
        "min_tasks": wanted.min_tasks,
        "template": json.dumps(template.fields),
        "actor": actor,
    }

    def work(tx: Connection) -> None:
        lanes.lock_for_actor(tx, user_id, actor)
        named = {"user_id": user_id, "name": wanted.name}
        counts = tx.execute(statement("count_improvement_rules"), named).one()
        if counts.same:
            raise RuleExists(f"{wanted.name} is the name of another rule; choose another name")
        if counts.total >= MAX_RULES:
            raise RuleExists(f"there are {MAX_RULES} rules already; remove one of them")
        tx.execute(statement("add_improvement_rule"), params)

    db.atomically(work)
    return rule_id


def remove_rule(db: Db, user_id: UserId, rule_id: RuleId, *, actor: str) -> None:
    """Remove an improvement rule; raise RuleNotFound if the user has no such one."""

    def work(tx: Connection) -> None:
        lanes.lock_for_actor(tx, user_id, actor)
        params = {"user_id": user_id, "rule_id": rule_id}
        if tx.execute(statement("remove_improvement_rule"), params).one_or_none() is None:
            raise RuleNotFound

    db.atomically(work)
