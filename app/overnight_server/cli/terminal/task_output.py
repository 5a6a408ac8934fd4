"""How tasks look on the screen and in JSON."""

from typing import TYPE_CHECKING, Any

from overnight_server.cli.terminal import output

if TYPE_CHECKING:
    from pydantic import BaseModel

    from overnight import Task
    from overnight.models.dags import DagTaskState
    from overnight.models.tasks import UserLimits

WAITS = {"approval": "asks for money", "children": "waits for its children"}
HEADERS = ("ID", "STATE", "TYPE", "CREATED", "TITLE")


def plain(model: "BaseModel") -> dict[str, object]:
    """Return a model as JSON knows it."""
    return model.model_dump(mode="json")


def show_task(task: "Task", *, as_json: bool) -> None:
    """Print one task, whole."""
    if as_json:
        output.document(plain(task))
        return
    output.record(
        {
            "id": task.id,
            "title": task.title,
            "state": standing(task),
            "type": task.type,
            "priority": f"{task.priority} (score {task.priority_score})",
            "position": task.queue_position,
            "project": task.project_id,
            "locks": task.locks or None,
            "tags": task.tags,
            "attempts": f"{task.attempts} of {task.max_attempts}",
            "timeout": _timeout(task),
            "deadline": task.deadline_at,
            "created": task.created_at,
            "started": task.started_at,
            "ended": task.completed_at,
            "retry at": task.retry_at,
            "stop asked": task.cancel_requested_at,
            "agent": task.agent_name,
            "cost": f"${task.cost_usd:.4f}" if task.cost_usd else None,
            "may cost": None if task.max_cost_usd is None else f"${task.max_cost_usd:.4f}",
            "estimated": (
                None if task.estimated_cost_usd is None else f"${task.estimated_cost_usd:.4f} a run"
            ),
            "progress": _progress(task.progress),
            "payload": task.payload,
            "summary": task.result_summary,
            "files": task.files_changed,
            "failure": task.failure_reason,
            "error": task.error,
            "output": task.output,
        }
    )


def standing(task: "Task | DagTaskState") -> str:
    """Say where a task stands, and why it waits if it has run before."""
    if task.wait_reason is None:
        return task.state
    return f"{task.state} ({WAITS.get(task.wait_reason, task.wait_reason)})"


def tasks(count: int) -> str:
    """Count tasks in words.

    >>> tasks(1), tasks(3)
    ('1 task', '3 tasks')
    """
    return f"{count} {'task' if count == 1 else 'tasks'}"


def without_hours(on_exhausted: str) -> str:
    """Say what becomes of new tasks when the month's hours are used up."""
    return "new tasks wait" if on_exhausted == "hold" else "new tasks are refused"


def night(limits: "UserLimits") -> dict[str, object]:
    """Say what this night may cost, has cost and can still pay."""
    if limits.night_budget_usd is None:
        return {"a night": "no budget"}
    return {
        "a night": f"${limits.night_budget_usd:.2f}",
        "spent": f"${limits.night_spent_usd:.2f} tonight",
        "left": f"${limits.night_left_usd or 0:.2f}, promises to runs taken off",
        "next night": limits.next_night_at,
    }


def _timeout(task: "Task") -> str | None:
    asked, granted = task.timeout_seconds, task.effective_timeout_seconds
    if asked is None:
        return None if granted is None else f"{granted} s, your plan's"
    if granted is None or asked <= granted:
        return f"{asked} s"
    return f"{granted} s: your plan allows no more of the {asked} s"


def _progress(told: "dict[str, Any] | None") -> object:
    """Say how far a run is, as its handler told it.

    >>> _progress({"fraction": 0.4, "message": "page 4"})
    '40 %, page 4'
    """
    if not told or not set(told) <= {"fraction", "message", "at"}:
        return told
    fraction = told.get("fraction")
    parts = [f"{fraction:.0%}".replace("%", " %")] if isinstance(fraction, (int, float)) else []
    return ", ".join([*parts, *([str(told["message"])] if told.get("message") else [])])


def row(task: "Task") -> tuple[object, ...]:
    """Return a task's line in a list, under HEADERS."""
    return (task.id, standing(task), task.type, task.created_at, task.title)
