"""Dependencies of tasks that have ended."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Connection

from overnight_server.domain.lifecycle import LifecycleEvent, sources, target
from overnight_server.store.batched_statements import StatementCall, execute_batch
from overnight_server.store.uuids import as_array


def resolve_dependents(tx: Connection, ended: Sequence[UUID]) -> None:
    """Make ready the tasks whose dependencies these ended tasks met; cancel those that cannot run.

    Cancelling continues down the graph. The caller has ended the tasks in this transaction and
    holds their users' lanes. Repeating the call changes nothing.
    """
    if ended:
        params = {
            "ended": as_array(ended),
            "sources": sources(LifecycleEvent.UNBLOCK),
            "target": target(LifecycleEvent.UNBLOCK),
            "cancelled": target(LifecycleEvent.CANCEL),
        }
        execute_batch(tx, StatementCall("resolve_dependents", params))
