"""Edges: what follows in a graph from tasks that have ended."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Connection

from overnight_server.domain.lifecycle import Event, sources, target
from overnight_server.store.batched_statements import Call, ask
from overnight_server.store.uuids import as_array


def follow(tx: Connection, ended: Sequence[UUID]) -> None:
    """Release what waited for these ends, and cancel what now waits in vain, however far down.

    The caller has moved the tasks in this transaction and holds their owners' lanes. Doing it twice
    changes nothing.
    """
    if ended:
        what = {
            "ended": as_array(ended),
            "sources": sources(Event.UNBLOCK),
            "target": target(Event.UNBLOCK),
            "cancelled": target(Event.CANCEL),
        }
        ask(tx, Call("follow", what))
