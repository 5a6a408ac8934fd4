"""Triggers: submit a stored graph when another graph has ended."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from overnight.errors import DagNotFound, InvalidRequest, TriggerNotFound
from overnight_server.domain.graphs import TriggerCondition
from overnight_server.domain.ids import DagId, TriggerId, UserId, new_trigger_id
from overnight_server.intake.caps import Caps, check_graph_size
from overnight_server.intake.new_graph import Edge, NewGraph, NewTask, check_graph
from overnight_server.intake.submit import insert_graph
from overnight_server.intake.task_rows import as_json
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.run_rows import policy_of
from overnight_server.store.statements import statement

# The source of tasks that a trigger submits.
SOURCE = "dag"


def add_trigger(
    db: Db,
    user_id: UserId,
    dag_id: DagId,
    graph: NewGraph,
    caps: Caps,
    *,
    actor: str,
    when: TriggerCondition | str = TriggerCondition.COMPLETED,
) -> TriggerId:
    """Store `graph`, to be submitted once the user's graph `dag_id` ends as `when` says.

    The trigger fires once, also if the other graph is retried and ends again. If the other graph
    has ended already, the trigger is due at once. An invalid graph, or a condition that can no
    longer come true, raises InvalidRequest now. Caps on waiting work are checked when the trigger
    fires. Raises DagNotFound if the user has no such graph.
    """
    if when not in set(TriggerCondition):
        raise InvalidRequest(
            "when", f"{when!r} is not a condition", legal=", ".join(TriggerCondition)
        )
    if not graph.tasks:
        raise InvalidRequest("tasks", "a graph of no tasks", legal="at least one task")
    check_graph(graph)
    trigger_id = new_trigger_id()

    def work(tx: Connection) -> None:
        # The end of a graph is recorded under the lane. So it either came before, and the insert
        # below makes the trigger due, or it comes later and finds the trigger.
        lanes.lock(tx, [user_id])
        check_graph_size(lanes.read(tx, user_id), graph.size, caps)
        _check_can_still_happen(tx, user_id, dag_id, TriggerCondition(when))
        tx.execute(statement("set_actor"), {"actor": actor})
        added = tx.execute(
            statement("add_trigger"),
            {
                "trigger_id": trigger_id,
                "user_id": user_id,
                "dag_id": dag_id,
                "condition": str(when),
                "graph": as_json(graph_to_json(graph)),
                "actor": actor,
            },
        )
        if added.one_or_none() is None:
            raise DagNotFound

    db.atomically(work)
    return trigger_id


def drop_trigger(db: Db, user_id: UserId, trigger_id: TriggerId, *, actor: str) -> None:
    """Withdraw a trigger that has not fired; raise TriggerNotFound if there is no such one."""

    def work(tx: Connection) -> None:
        lanes.lock(tx, [user_id])
        tx.execute(statement("set_actor"), {"actor": actor})
        params = {"user_id": user_id, "trigger_id": trigger_id}
        if tx.execute(statement("drop_trigger"), params).one_or_none() is None:
            raise TriggerNotFound

    db.atomically(work)


def fire_trigger(
    tx: Connection, user_id: UserId, trigger_id: TriggerId, caps: Caps
) -> DagId | None:
    """Submit the graph of a due trigger; None if the trigger has fired or was withdrawn."""
    lanes.lock(tx, [user_id])
    row = tx.execute(statement("lock_due_trigger"), {"trigger_id": trigger_id}).one_or_none()
    if row is None:
        return None
    tx.execute(statement("set_actor"), {"actor": row.created_by})
    graph = graph_from_json(row.graph)
    check_graph(graph)
    submitted = insert_graph(tx, user_id, graph, caps)
    dag_id = submitted[0].dag_id
    tx.execute(statement("mark_trigger_fired"), {"trigger_id": trigger_id, "dag_id": dag_id})
    return dag_id


def graph_to_json(graph: NewGraph) -> dict[str, Any]:
    """Return a graph as a trigger's row stores it; `graph_from_json` is the inverse."""
    return {
        "title": graph.title or graph.tasks[0].title,
        "budget_usd": graph.budget_usd,
        "tasks": [asdict(replace(task, source=SOURCE)) for task in graph.tasks],
        "edges": [asdict(edge) for edge in graph.edges],
    }


def graph_from_json(stored: Mapping[str, Any]) -> NewGraph:
    """Return the graph that a trigger's row stores; raise InvalidRequest if it is unreadable.

    The row may have been written by another release.
    """
    try:
        return NewGraph(
            [_task_from_json(task) for task in stored["tasks"]],
            [Edge(**edge) for edge in stored["edges"]],
            stored["title"],
            stored["budget_usd"],
        )
    except (KeyError, TypeError, ValueError) as error:
        legal = "drop the trigger and add it again"
        raise InvalidRequest("graph", f"cannot be read any more: {error}", legal=legal) from error


def _task_from_json(stored: Mapping[str, Any]) -> NewTask:
    instants = {name: stored.get(name) for name in ("deadline_at", "start_at")}
    return NewTask(
        **{
            **stored,
            "retry": policy_of(json.dumps(stored["retry"])),
            **{
                name: None if text is None else datetime.fromisoformat(text)
                for name, text in instants.items()
            },
        }
    )


def _check_can_still_happen(
    tx: Connection, user_id: UserId, dag_id: DagId, when: TriggerCondition
) -> None:
    """Raise InvalidRequest if the trigger waits for the failure of a graph that has completed."""
    params = {"dag_id": dag_id, "user_id": user_id}
    if when is TriggerCondition.FAILED and tx.scalar(statement("is_over_for_good"), params):
        legal = (
            f"{TriggerCondition.COMPLETED} or {TriggerCondition.FINISHED}, which are due at once"
        )
        raise InvalidRequest("when", "the graph has completed and cannot fail", legal=legal)
