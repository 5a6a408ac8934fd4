"""A history with rows of every kind, and the statements that corrupt it."""

import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.engine import make_url

from overnight.models.bulk import TaskFilter
from overnight.models.enums import PlanTier
from overnight_server.control.bulk import BulkOrder
from overnight_server.control.bulk import start as start_bulk
from overnight_server.control.cancel import cancel
from overnight_server.control.claim_tokens import token_of
from overnight_server.control.dead_letters import retry
from overnight_server.control.schedules import run_now
from overnight_server.domain.bulk import Action
from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import DagId, TaskId
from overnight_server.domain.results import Interrupted, Raised, Returned
from overnight_server.intake.new_graph import NewGraph, NewTask
from overnight_server.intake.triggers import add_trigger
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.maintenance.bulk import run_bulks
from overnight_server.maintenance.promote import promote
from overnight_server.maintenance.reap import reap
from overnight_server.maintenance.triggers import fire_due
from overnight_server.store.db import Db
from tests.support.deployment import LOOSE, Deployment
from tests.support.graphs import begin, end, graph
from tests.support.invariants import record_plan_history
from tests.support.notifications import add_channel
from tests.support.recorded_actions import RecordedAction, token_suffix
from tests.support.schedules import SETTINGS
from tests.support.schedules import add as add_schedule

FOLDER = Path(__file__).parent
NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


def read_corruptions() -> dict[str, list[str]]:
    """Return the statements that violate each invariant and each rule of the audit."""
    _, *parts = NAME.split((FOLDER / "corrupt_rows.sql").read_text())
    return {
        code: [sql.strip() for sql in statements.split(";") if sql.strip()]
        for code, statements in zip(parts[::2], parts[1::2], strict=True)
    }


# The working time of a run that waited some minutes in its bundle.
TURN_SECONDS = 7.0
MOVE_UP = BulkOrder(Action.REPRIORITISE, TaskFilter(type="echo"), priority=20)


@dataclass(frozen=True)
class History:
    """A deployment with tasks in every state, and their names."""

    deployment: Deployment
    names: dict[str, UUID]

    @property
    def tasks(self) -> list[TaskId]:
        return [TaskId(row["id"]) for row in self.deployment.rows("SELECT id FROM tasks")]

    @property
    def recorded_actions(self) -> list[RecordedAction]:
        """Return the record that the handlers would have written; the lost run has no end."""
        runs = self.deployment.rows(
            "SELECT task_id, epoch, token, outcome, extract(epoch FROM ended_at - started_at) AS s"
            "  FROM attempts WHERE started_at IS NOT NULL"
        )
        return [
            RecordedAction(
                TaskId(run["task_id"]),
                run["epoch"],
                token_suffix(token_of(Claim(run["task_id"], run["epoch"], run["token"]))),
                self._worked(run["task_id"], run["s"], run["outcome"]),
                run["outcome"] and run["outcome"] == "completed",
            )
            for run in runs
        ]

    def _worked(self, task_id: UUID, lasted: float | None, outcome: str | None) -> float | None:
        if task_id == self.names["bundled"]:
            return TURN_SECONDS
        return None if lasted is None or outcome == "worker_lost" else float(lasted)


def make_history(deployment: Deployment) -> History:
    """Let tasks of two users end in every way that leaves rows of every kind."""
    record_plan_history(deployment.owner)
    user, other = deployment.user(PlanTier.PRO), deployment.user(PlanTier.FREE)
    add_channel(deployment, user)
    deployment.agent()
    done = deployment.running(user, timeout_seconds=600)
    deployment.move_clock(timedelta(minutes=5))
    deployment.settle(done, Returned(cost_usd=0.5))
    bundled = deployment.running(user, timeout_seconds=600)
    deployment.move_clock(timedelta(minutes=5))
    deployment.settle(bundled, Returned(ran_seconds=TURN_SECONDS))
    lost = deployment.running(user, timeout_seconds=600)
    deployment.move_clock(timedelta(minutes=5))
    assert (reap(deployment.dispatcher), promote(deployment.dispatcher)) == (1, 1)
    end(deployment, lost.claim.task_id, Returned())
    dead = deployment.running(user, max_attempts=1)
    deployment.settle(dead, Raised("error", "no luck"))
    revived = deployment.running(user, max_attempts=1)
    deployment.settle(revived, Raised("error", "no luck"))
    retry(deployment.app, revived.claim.task_id, actor="human:operator")
    cancel(deployment.app, user, revived.claim.task_id, actor=f"user:{user}")
    handed_back = deployment.running(user)
    deployment.settle(handed_back, Interrupted())
    [again] = begin(deployment, handed_back.claim.task_id)
    deployment.settle(again, Returned())
    parent, child = graph(deployment, user, 2, [(0, 1)])
    end(deployment, parent, Returned())
    begin(deployment, child)
    first, member = graph(deployment, user, 2, [(0, 1)])
    end(deployment, first, Returned())
    end(deployment, member, Returned(cost_usd=0.25))
    add_trigger(
        deployment.app,
        user,
        DagId(deployment.row(member)["dag_id"]),
        NewGraph([NewTask("after it", "echo")]),
        LOOSE,
        actor="human:me",
    )
    assert fire_due(deployment.dispatcher, LOOSE) == 1
    half_a_month = deployment.running(other, timeout_seconds=60)
    deployment.run(
        "INSERT INTO usage_ledger (user_id, period_started_at, kind, seconds)"
        " SELECT user_id, cycle_started_at, 'adjustment', 18000 FROM lanes WHERE user_id = :user",
        user=other,
    )
    deployment.settle(half_a_month, Returned())
    running = deployment.running(user)
    _, blocked = graph(deployment, user, 2, [(0, 1)])
    names = {
        "user": user,
        "other": other,
        "done": done.claim.task_id,
        "bundled": bundled.claim.task_id,
        "lost": lost.claim.task_id,
        "dead": dead.claim.task_id,
        "revived": revived.claim.task_id,
        "handed_back": handed_back.claim.task_id,
        "child": child,
        "member": member,
        "running": running.claim.task_id,
        "blocked": blocked,
        "waiting": deployment.task(other),
    }
    start_bulk(deployment.app, other, MOVE_UP, actor=f"user:{other}")
    assert run_bulks(deployment.dispatcher) == 1
    schedule = add_schedule(deployment, other, "every day at 22:00")
    run_now(deployment.app, other, schedule, SETTINGS, actor="human:me")
    return History(deployment, names)


def without_constraints(postgres: EmbeddedPostgres, database_url: str) -> Db:
    """Return the test's database as its superuser, without constraints that could refuse a row."""
    database = make_url(database_url).database
    url = make_url(postgres.superuser_url).set(database=database)
    db = Db.connect(url.render_as_string(hide_password=False), role=None)
    with db.engine.begin() as tx:
        tx.execute(text((FOLDER / "no_guards.sql").read_text()))
    return db
