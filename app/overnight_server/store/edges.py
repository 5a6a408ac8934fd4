"""Dependencies of tasks that have ended."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Connection

from overnight_server.domain.lifecycle import Event, sources, target
from overnight_server.store.batched_statements import Call, execute_batch
from overnight_server.store.uuids import as_array


def resolve_dependents(tx: Connection, ended: Sequence[UUID]) -> None:
    """Make ready the tasks whose dependencies these ended tasks met; cancel those that cannot run.

    Cancelling continues down the graph. The caller has ended the tasks in this transaction and
    holds their users' lanes. Repeating the call changes nothing.
    """
    if ended:
        params = {
            "ended": as_array(ended),
            "sources": sources(Event.UNBLOCK),
            "target": target(Event.UNBLOCK),
            "cancelled": target(Event.CANCEL),
        }
        execute_batch(tx, Call("resolve_dependents", params))
