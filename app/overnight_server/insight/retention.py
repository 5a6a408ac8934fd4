"""Read how long rows are kept, and how many are older."""

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from sqlalchemy import Connection

from overnight.models.admin import RetentionRule
from overnight_server.domain.retention import RULES, TASKS, Rule, days_of_tasks
from overnight_server.settings.field_types import env_of
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

MOST_COUNTED: Final = 10_000
SETTING: Final = "retention_days"


def list_retention(
    db: Db, days: Mapping[str, int | None], days_by_setting: Mapping[str, int]
) -> Sequence[RetentionRule]:
    """Return every rule with its days and the number of rows that are older.

    `days_by_setting` has the days of the rules with a setting of their own. Rules for tasks of one
    plan or state follow those for all tasks.
    """

    def work(tx: Connection) -> list[RetentionRule]:
        shown = []
        for rule in RULES:
            of_rule = days_by_setting[rule.setting] if rule.setting else days.get(rule.name)
            shown.append(_show(tx, rule, of_rule, days))
        return shown

    rules = db.atomically(work)
    kinds = [
        RetentionRule(
            name=name,
            deletes=f"tasks that are {kind}, or of users with that plan",
            days=number,
            setting=env_of(SETTING),
            past_rows=None,
        )
        for name, number in sorted(days_of_tasks(days).items())
        for kind in [name.partition(".")[2]]
        if kind
    ]
    return [*rules[:1], *kinds, *rules[1:]]


def _show(
    tx: Connection, rule: Rule, of_rule: int | None, days: Mapping[str, int | None]
) -> RetentionRule:
    past_rows = None
    if of_rule is not None:
        past_rows = _count(tx, rule, of_rule, days)
    return RetentionRule(
        name=rule.name,
        deletes=rule.what,
        days=of_rule,
        setting=env_of(rule.setting or SETTING),
        past_rows=past_rows,
    )


def _count(tx: Connection, rule: Rule, of_rule: int, days: Mapping[str, int | None]) -> int:
    params: dict[str, object] = {"limit": MOST_COUNTED, "older_than": timedelta(days=of_rule)}
    if rule.name == TASKS:
        of_tasks = days_of_tasks(days)
        shortest = timedelta(days=min(of_tasks.values()))
        params |= {"days": json.dumps(of_tasks), "shortest": shortest}
        counted = tx.execute(statement("count_old_tasks"), params)
    elif rule.setting is not None:
        counted = tx.execute(statement("count_old_rows_of_sweep"), params | {"rule": rule.name})
    else:
        counted = tx.execute(statement("count_old_rows"), params | {"rule": rule.name})
    return int(counted.scalar_one())
