"""Deletes rows that are older than they are kept.

A pass goes through the rules by age, then through graphs, lone tasks and old partitions of events.
It works in short transactions, skips rows that others have locked, locks no lane, and ends after
some seconds; its position says where the next pass goes on.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Connection, Row, TextClause

from overnight_server.domain.retention import RULES, TASKS, days_of_tasks
from overnight_server.maintenance.partitions import IN_USE, old_partitions
from overnight_server.maintenance.task_retention import (
    FIRST_ID,
    TaskTerms,
    Walk,
    Walked,
    delete_graphs,
    delete_lone_tasks,
)
from overnight_server.store.db import Db
from overnight_server.store.pass_limit import PassLimit
from overnight_server.store.statements import statement
from overnight_server.store.sweep_positions import set_sweep_position, sweep_position

NAME: Final = "prune"
# Rows of one transaction.
BATCH: Final = 500
# A partition of events is dropped when no more tasks of it are left than this.
MAX_KEPT_TASKS: Final = 1_000
# A dry run counts the rows of a rule up to this number.
MOST_COUNTED: Final = 1_000_000

# A step gets the position within it, and returns where to go on; None when it is done.
Step = Callable[[str], str | None]


@dataclass
class Pruned:
    """How many rows a pass has deleted, by rule, and where the next one goes on.

    The position is None when a round is complete.
    """

    deleted: Counter[str] = field(default_factory=Counter)
    position: str | None = None


def delete_old_rows(db: Db, days: Mapping[str, int | None]) -> int:
    """Continue where the last pass of the sweep stopped; return how many rows were deleted."""
    pruned = prune(db, days, position=sweep_position(db, NAME))
    set_sweep_position(db, NAME, pruned.position)
    return pruned.deleted.total()


def prune(
    db: Db,
    days: Mapping[str, int | None],
    *,
    position: str | None = None,
    is_dry_run: bool = False,
) -> Pruned:
    """Delete what the rules no longer keep, from a position that an earlier pass returned.

    `days` has the days of each rule; a rule without days keeps its rows. A dry run counts what
    would be deleted.
    """
    one_pass = _Pass(db, days, is_dry_run=is_dry_run)
    steps = one_pass.steps()
    first, _, after = (position or "").partition(":")
    names = list(steps)
    following = names[names.index(first) if first in steps else 0 :]
    for name in following:
        # Every pass does a part of one step, however long that takes.
        if name != following[0] and one_pass.limit.is_over:
            return Pruned(one_pass.deleted, f"{name}:")
        left = steps[name](after if name == first else "")
        if left is not None:
            return Pruned(one_pass.deleted, f"{name}:{left}")
    return Pruned(one_pass.deleted)


class _Pass:
    """The steps of one pass, and what they share."""

    def __init__(self, db: Db, days: Mapping[str, int | None], *, is_dry_run: bool) -> None:
        self.db = db
        self.days = days
        self.terms = TaskTerms(days_of_tasks(days))
        self.is_dry_run = is_dry_run
        self.deleted: Counter[str] = Counter()
        self.limit = PassLimit()

    def steps(self) -> dict[str, Step]:
        """Return the steps by name, in their order."""
        steps: dict[str, Step] = {
            rule.name: partial(self._by_age, rule.name, older_than=timedelta(days=days))
            for rule in RULES
            if rule.name != TASKS
            and rule.setting is None
            and (days := self.days.get(rule.name)) is not None
        }
        if self.terms.days:
            steps["graphs"] = partial(self._tasks, delete_graphs)
            steps["lone_tasks"] = partial(self._tasks, delete_lone_tasks)
            if not self.is_dry_run:
                steps["events"] = self._events
        return steps

    def _by_age(self, rule: str, _after: str, *, older_than: timedelta) -> str | None:
        params = {"rule": rule, "older_than": older_than}
        if self.is_dry_run:
            self.deleted[rule] += self._one(
                statement("count_old_rows"), params, limit=MOST_COUNTED
            )[0]
            return None
        while True:
            deleted = self._one(statement("delete_old_rows"), params, limit=BATCH)[0]
            self.deleted[rule] += deleted
            if deleted < BATCH:
                return None
            if self.limit.is_over:
                return ""

    def _tasks(self, delete: Callable[[Db, Walk], Walked], after: str) -> str | None:
        start = UUID(after.rpartition(":")[2]) if after else FIRST_ID
        walked = delete(self.db, Walk(self.terms, self.limit, start, self.is_dry_run))
        self.deleted[TASKS] += walked.deleted
        return None if walked.position is None else str(walked.position)

    def _events(self, after: str) -> str | None:
        """Drop partitions of events whose tasks are gone; of the others delete such events."""
        begun, _, last = after.partition(":")
        for partition in old_partitions(self.db, "events", age=self.terms.shortest):
            params: dict[str, object] = {"partition": partition, "max_kept": MAX_KEPT_TASKS}
            if self._one(statement("drop_events_partition"), params)[0] != IN_USE:
                continue
            next_id = UUID(last) if last and partition == begun else FIRST_ID
            while next_id is not None:
                if self.limit.is_over:
                    return f"{partition}:{next_id}"
                params["after_id"] = next_id
                next_id = self._one(
                    statement("delete_events_of_gone_tasks"), params, limit=BATCH
                ).last_id
        return None

    def _one(self, clause: TextClause, params: Mapping[str, object], **more: object) -> Row[Any]:
        def work(tx: Connection) -> Row[Any]:
            return tx.execute(clause, {**params, **more}).one()

        return self.db.atomically(work)
