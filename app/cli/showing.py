"""How tasks look on the screen and in JSON."""

from typing import TYPE_CHECKING

from app.cli import output

if TYPE_CHECKING:
    from pydantic import BaseModel

    from overnight import Task

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
            "state": task.state,
            "type": task.type,
            "priority": f"{task.priority} (score {task.priority_score})",
            "position": task.queue_position,
            "project": task.project_id,
            "locks": task.locks or None,
            "tags": task.tags,
            "attempts": f"{task.attempts} of {task.max_attempts}",
            "timeout": f"{task.timeout_seconds} s" if task.timeout_seconds else None,
            "created": task.created_at,
            "started": task.started_at,
            "ended": task.completed_at,
            "retry at": task.retry_at,
            "stop asked": task.cancel_requested_at,
            "waits for": task.wait_reason,
            "agent": task.agent_name,
            "cost": f"${task.cost_usd:.4f}" if task.cost_usd else None,
            "may cost": None if task.max_cost_usd is None else f"${task.max_cost_usd:.4f}",
            "progress": task.progress,
            "payload": task.payload,
            "summary": task.result_summary,
            "files": task.files_changed,
            "failure": task.failure_reason,
            "error": task.error,
            "output": task.output,
        }
    )


def row(task: "Task") -> tuple[object, ...]:
    """Return a task's line in a list, under HEADERS."""
    return (task.id, task.state, task.type, task.created_at, task.title)
