"""Triggers: a graph that is let in when another has ended."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from overnight.errors import DagNotFound, InvalidRequest, TriggerNotFound
from overnight_server.domain.graphs import When
from overnight_server.domain.ids import DagId, TriggerId, UserId, new_trigger_id
from overnight_server.intake.submit import (
    Caps,
    Edge,
    NewGraph,
    NewTask,
    check_graph,
    check_size,
    insert_graph,
)
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.run_rows import policy_of
from overnight_server.store.statements import statement

# What is said of tasks that another graph's end brought in.
SOURCE = "dag"


def add_trigger(
    db: Db,
    user_id: UserId,
    dag_id: DagId,
    graph: NewGraph,
    caps: Caps,
    *,
    actor: str,
    when: When | str = When.COMPLETED,
) -> TriggerId:
    """Have `graph` let in once a graph of the user's ends so; return the trigger's id.

    A graph that has ended already sets it off at once; to wait for a failure that can come no more
    is refused. It fires once, though the other graph may be retried and end again. What is wrong
    with `graph` in itself is refused now; the caps on waiting work hold when it fires, and one that
    is refused then is tried again. Another user's graph looks exactly like none.
    """
    if when not in set(When):
        raise InvalidRequest("when", f"{when!r} is no such word", legal=", ".join(When))
    if not graph.tasks:
        raise InvalidRequest("tasks", "a graph of no tasks", legal="at least one task")
    check_graph(graph)
    trigger_id = new_trigger_id()

    def work(tx: Connection) -> None:
        # An end is recorded under the lane: it comes before, and is seen, or after, and sets off.
        lanes.lock(tx, [user_id])
        check_size(tx, user_id, graph.size, caps)
        _check_may_come(tx, user_id, dag_id, When(when))
        tx.execute(statement("act_as"), {"actor": actor})
        added = tx.execute(
            statement("add_trigger"),
            {
                "trigger_id": trigger_id,
                "user_id": user_id,
                "dag_id": dag_id,
                "condition": str(when),
                "graph": json.dumps(stored(graph), default=_plain),
                "actor": actor,
            },
        )
        if added.one_or_none() is None:
            raise DagNotFound

    db.atomically(work)
    return trigger_id


def _check_may_come(tx: Connection, user_id: UserId, dag_id: DagId, when: When) -> None:
    """Refuse to wait for the failure of a graph that has completed."""
    named = {"dag_id": dag_id, "user_id": user_id}
    if when is When.FAILED and tx.scalar(statement("is_over_for_good"), named):
        legal = f"{When.COMPLETED} or {When.FINISHED}, which set it off at once"
        raise InvalidRequest("when", "the graph has completed and can fail no more", legal=legal)


def drop_trigger(db: Db, user_id: UserId, trigger_id: TriggerId, *, actor: str) -> None:
    """Take a trigger back that has not fired; another user's looks exactly like none."""

    def work(tx: Connection) -> None:
        lanes.lock(tx, [user_id])
        tx.execute(statement("act_as"), {"actor": actor})
        named = {"user_id": user_id, "trigger_id": trigger_id}
        if tx.execute(statement("drop_trigger"), named).one_or_none() is None:
            raise TriggerNotFound

    db.atomically(work)


def fire(tx: Connection, user_id: UserId, trigger_id: TriggerId, caps: Caps) -> DagId | None:
    """Let a due trigger's graph in, once; None if somebody did, or it was dropped meanwhile."""
    lanes.lock(tx, [user_id])
    row = tx.execute(statement("due_trigger"), {"trigger_id": trigger_id}).one_or_none()
    if row is None:
        return None
    tx.execute(statement("act_as"), {"actor": row.created_by})
    graph = restored(row.graph)
    check_graph(graph)
    made = insert_graph(tx, user_id, graph, caps)
    dag_id = made[0].dag_id
    tx.execute(statement("trigger_fired"), {"trigger_id": trigger_id, "dag_id": dag_id})
    return dag_id


def stored(graph: NewGraph) -> dict[str, Any]:
    """Return a graph as a trigger keeps it; `restored` reads it again."""
    return {
        "title": graph.title or graph.tasks[0].title,
        "budget_usd": graph.budget_usd,
        "tasks": [asdict(replace(task, source=SOURCE)) for task in graph.tasks],
        "edges": [asdict(edge) for edge in graph.edges],
    }


def restored(kept: Mapping[str, Any]) -> NewGraph:
    """Return the graph that a trigger has kept, perhaps under another release."""
    try:
        return NewGraph(
            [_task(task) for task in kept["tasks"]],
            [Edge(**edge) for edge in kept["edges"]],
            kept["title"],
            kept["budget_usd"],
        )
    except (KeyError, TypeError, ValueError) as error:
        legal = "drop the trigger and add it again"
        raise InvalidRequest("graph", f"cannot be read any more: {error}", legal=legal) from error


def _task(kept: Mapping[str, Any]) -> NewTask:
    deadline = kept["deadline_at"]
    return NewTask(
        **{
            **kept,
            "retry": policy_of(json.dumps(kept["retry"])),
            "deadline_at": None if deadline is None else datetime.fromisoformat(deadline),
        }
    )


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} cannot be stored")
