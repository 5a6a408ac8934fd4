"""Reasons that come from a task's edges: parents that have not ended, or ended differently."""

from collections.abc import Mapping, Sequence
from typing import Any

from overnight.models.explain import Reason
from overnight_server.domain.graphs import CancelReason, Condition, OnUnmet
from overnight_server.domain.ids import show_task
from overnight_server.domain.lifecycle import FINAL, State
from overnight_server.domain.reasons import ReasonCode, ReasonScope, format_instant, join_names
from overnight_server.explain.audience import Audience

Row = Mapping[str, Any]


def dependency_reason(task: Row, parents: Sequence[Row]) -> Reason:
    """Return the reason that names the parents a task waits for, and how each must end."""
    unmet = task["unmet"]
    edges = [_edge(row) for row in parents]
    names = join_names([_describe(edge) for edge in edges], unmet) if edges else unmet
    noun = "tasks" if unmet != 1 else "task"
    return Reason(
        code=ReasonCode.DEPENDENCY,
        scope=ReasonScope.TASK,
        message=f"it waits for {unmet} other {noun}: {names}",
        details={"unmet": unmet, "tasks": edges},
    )


def cancelled_by_parent_reason(task: Row, parents: Sequence[Row], audience: Audience) -> Reason:
    """Return the reason of a task that was cancelled because parents ended differently."""
    edges = [_edge(row) for row in parents if State(row["state"]) in FINAL]
    failure = task["failure_reason"]
    awaited = f": it waited for {join_names([_describe(edge) for edge in edges])}" if edges else ""
    advice = (
        "nothing failed, so it was not needed"
        if failure == CancelReason.NOT_NEEDED
        else audience.advice_for_owner("run those that failed again", "overnight retry")
        + ", and it is restored with them"
    )
    return Reason(
        code=ReasonCode.STATE,
        scope=ReasonScope.TASK,
        message=f"it was cancelled at {format_instant(task['finished_at'])} ({failure}){awaited};"
        f" {advice}",
        details={
            "state": task["state"],
            "since": task["finished_at"],
            "failure_reason": failure,
            "tasks": edges,
        },
    )


def _edge(row: Row) -> dict[str, Any]:
    fields = {name: row[name] for name in ("state", "condition", "on_unmet")}
    return {"id": show_task(row["id"]), **fields}


def _describe(edge: Row) -> str:
    return f"{edge['id']} ({edge['state']}) {_required_end(edge)}"


def _required_end(edge: Row) -> str:
    if edge["on_unmet"] == OnUnmet.CONTINUE:
        return "to end"
    return {
        Condition.SUCCESS: "to complete",
        Condition.FINISHED: "to end",
        Condition.FAILURE: "to fail",
    }[Condition(edge["condition"])]
