"""Helpers for tests of bulk operations."""

from typing import Any
from uuid import UUID

from overnight.models.bulk import BulkOperation, TaskFilter
from overnight_server.control.bulk import BulkOrder, start
from overnight_server.domain.bulk import Action
from overnight_server.domain.ids import BulkId, TaskId, UserId
from overnight_server.domain.results import Raised
from overnight_server.insight.bulk import get_bulk
from overnight_server.maintenance.bulk import run_bulks
from tests.support.deployment import Deployment

ME = "human:me"
FATAL = Raised("auth_failure", "wrong key")


def order(action: Action | str, priority: int | None = None, **fields: Any) -> BulkOrder:
    """Return the order for an action on the tasks that match these filter fields."""
    return BulkOrder(Action(action), TaskFilter(**fields), priority)


def begin(deployment: Deployment, user: UserId, wanted: BulkOrder, **options: Any) -> BulkId:
    """Start an operation as the user; return its id."""
    return start(deployment.app, user, wanted, actor=ME, **options).bulk_id


def get_operation(deployment: Deployment, user: UserId, bulk_id: BulkId) -> BulkOperation:
    """Return the current state of an operation."""
    return get_bulk(deployment.app, user, bulk_id)


def counts(view: BulkOperation) -> tuple[int, int, int, dict[str, int]]:
    """Return the counts of an operation: total, changed, skipped, refused."""
    return view.total, view.changed, view.skipped, dict(view.refused)


def finish(deployment: Deployment) -> int:
    """Run all operations to their end; return how many tasks were changed."""
    total = 0
    while deployment.rows("SELECT 1 FROM bulk_operations WHERE state = 'running'"):
        total += run_bulks(deployment.dispatcher)
    return total


def dead(deployment: Deployment, user: UserId, **fields: Any) -> TaskId:
    """Create a task and dead-letter it."""
    run = deployment.running(user, max_attempts=1, **fields)
    deployment.settle(run, FATAL)
    return run.claim.task_id


def moves(deployment: Deployment, task: UUID, to_state: str) -> list[str]:
    """Return who moved a task into a state, in order."""
    sql = "SELECT actor FROM events WHERE task_id = :id AND to_state = :state ORDER BY seq"
    return [row["actor"] for row in deployment.rows(sql, id=task, state=to_state)]
