"""Why a task waits for others, or waited in vain: its edges, said in words."""

from collections.abc import Mapping, Sequence
from typing import Any

from overnight_server.domain.graphs import Because, Condition, OnUnmet
from overnight_server.domain.ids import show_task
from overnight_server.domain.lifecycle import FINAL, State
from overnight_server.domain.reasons import Code, Reason, at, listed

Row = Mapping[str, Any]


def blocked(task: Row, parents: Sequence[Row]) -> Reason:
    """Say which parents a task waits for, and what each edge wants of its own."""
    unmet = task["unmet"]
    edges = [_edge(row) for row in parents]
    named = listed([_said(one) for one in edges], unmet) if edges else unmet
    many = "tasks" if unmet != 1 else "task"
    return Reason(
        Code.DEPENDENCY,
        f"it waits for {unmet} other {many}: {named}",
        {"unmet": unmet, "tasks": edges},
    )


def in_vain(task: Row, parents: Sequence[Row]) -> Reason:
    """Say which parents a cancelled task waited for in vain, and what would bring it back."""
    edges = [_edge(row) for row in parents if State(row["state"]) in FINAL]
    why = task["failure_reason"]
    awaited = f": it waited in vain for {listed([_said(one) for one in edges])}" if edges else ""
    again = (
        "nothing went wrong, so it was not needed"
        if why == Because.NOT_NEEDED
        else "retry what it waited for, and it comes back"
    )
    return Reason(
        Code.STATE,
        f"it ended as cancelled at {at(task['finished_at'])} ({why}){awaited}; {again}",
        {
            "state": task["state"],
            "since": task["finished_at"],
            "failure_reason": why,
            "tasks": edges,
        },
    )


def _edge(row: Row) -> dict[str, Any]:
    shown = {name: row[name] for name in ("state", "condition", "on_unmet")}
    return {"id": show_task(row["id"]), **shown}


def _said(edge: Row) -> str:
    return f"{edge['id']} ({edge['state']}) {_wanted(edge)}"


def _wanted(edge: Row) -> str:
    if edge["on_unmet"] == OnUnmet.CONTINUE:
        return "to end"
    return {
        Condition.SUCCESS: "to complete",
        Condition.FINISHED: "to end",
        Condition.FAILURE: "to fail",
    }[Condition(edge["condition"])]
