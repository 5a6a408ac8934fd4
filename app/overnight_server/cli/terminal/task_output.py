"""Print tasks and the limits of users, on a terminal and as JSON."""

import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from overnight_server.cli.terminal import output

if TYPE_CHECKING:
    from pydantic import BaseModel

    from overnight import Task
    from overnight.models.account import ArtifactUsage
    from overnight.models.dags import DagTaskState
    from overnight.models.tasks import UserLimits

WAIT_REASONS = {"approval": "over budget, needs approval", "children": "waits for its subtasks"}
HEADERS = ("ID", "STATE", "TYPE", "CREATED", "ENDED", "DURATION", "COST", "TITLE", "ERROR")
OPTIONAL = ("TYPE", "CREATED", "COST", "DURATION", "ENDED", "ERROR")
# The latest run of a task in one of these states has its start in started_at. A cancelled task may
# have waited between its latest run and its end.
RUNNING = ("running", "validating")
ENDED_BY_A_RUN = ("completed", "dead_lettered")


def as_document(model: "BaseModel") -> dict[str, object]:
    """Return a model as a JSON object."""
    return model.model_dump(mode="json")


def show_task(task: "Task", *, as_json: bool) -> None:
    """Print every field of one task that has a value."""
    if as_json:
        output.document(as_document(task))
        return
    output.record(
        {
            "id": task.id,
            "title": task.title,
            "state": state_text(task),
            "type": task.type,
            "priority": f"{task.priority} (score {task.priority_score})",
            "position": task.queue_position,
            "project": task.project_id,
            "locks": task.locks or None,
            "tags": task.tags,
            "attempts": f"{task.attempts} of {task.max_attempts}",
            "timeout": _timeout(task),
            "start at": task.start_at,
            "deadline": task.deadline_at,
            "created": task.created_at,
            "started": task.started_at,
            "ended": task.completed_at,
            "duration": _duration(task),
            "retry at": task.retry_at,
            "cancel sent": task.cancel_requested_at,
            "agent": task.agent_name,
            "runner": None if task.runner == "python" else task.runner,
            "profile": task.agent,
            "command": None if task.execution is None else shlex.join(task.execution["argv"]),
            "validators": [each["method"] for each in task.output_validation],
            "cost": cost_text(task.cost_usd),
            "cost limit": None if task.max_cost_usd is None else f"${task.max_cost_usd:.4f}",
            "estimate": (
                None
                if task.estimated_cost_usd is None
                else f"${task.estimated_cost_usd:.4f} per run"
            ),
            "progress": None if task.is_final else progress_text(task.progress),
            "payload": task.payload,
            "summary": task.result_summary,
            "files": task.files_changed,
            "failure": task.failure_reason,
            "error": task.error,
            "output": task.output,
        }
    )


def state_text(task: "Task | DagTaskState") -> str:
    """Return the state of a task, with the reason if it ran before and waits again."""
    if task.wait_reason is None:
        return task.state
    return f"{task.state} ({WAIT_REASONS.get(task.wait_reason, task.wait_reason)})"


def count_tasks(count: int) -> str:
    """Return a number of tasks as text.

    >>> count_tasks(1), count_tasks(3)
    ('1 task', '3 tasks')
    """
    return f"{count} {'task' if count == 1 else 'tasks'}"


def show_limits(
    limits: "UserLimits", *, name: str | None = None, tasks_per_graph: int | None = None
) -> None:
    """Print the limits of a user and how much of them is used."""
    used, limit = limits.monthly_agent_hours_used, limits.monthly_agent_hours_limit
    no_hours = "wait" if limits.on_exhausted == "hold" else "are refused"
    output.record(
        {
            "name": name,
            "plan": limits.plan.value,
            "parallel": count_tasks(limits.max_concurrent_agents),
            "longest run": f"{limits.max_task_duration_minutes} min",
            "hours used": hours_text(used, limit),
            "hours reserved": f"{limits.monthly_agent_hours_promised:.2f} by running tasks",
            "hours reset": limits.billing_cycle_resets_at,
            "if none left": f"new tasks {no_hours} until the hours reset",
            "waiting": f"{limits.pending}"
            + (f" of {limits.pending_limit}" if limits.pending_limit is not None else ""),
            "largest graph": None if tasks_per_graph is None else count_tasks(tasks_per_graph),
            "artifacts": f"up to {limits.artifact_max_mb:,g} MB each,"
            f" {limits.artifact_task_mb:,g} MB a task",
            "stored": _megabytes_text(limits.artifact_stored_mb, limits.artifact_storage_mb),
            "window": limits.window or "none: tasks start at any time",
            **_night(limits),
        }
    )


def hours_text(used: float, limit: float | None) -> str:
    """Return used hours and their limit as text."""
    return f"{used:.2f} of {limit:g}" if limit is not None else f"{used:.2f}, no limit"


def storage_text(used: "ArtifactUsage") -> str:
    """Return the size of stored artifacts and its limit as text."""
    return _megabytes_text(used.bytes / 1e6, used.limit_bytes and used.limit_bytes / 1e6)


def _megabytes_text(used: float, limit: float | None) -> str:
    return f"{used:,.1f} MB, no limit" if limit is None else f"{used:,.1f} of {limit:,.0f} MB"


def _night(limits: "UserLimits") -> dict[str, object]:
    if limits.night_budget_usd is None:
        return {"night budget": "none"}
    return {
        "night budget": f"${limits.night_budget_usd:.2f}",
        "spent tonight": f"${limits.night_spent_usd:.2f}",
        "left tonight": f"${limits.night_left_usd or 0:.2f} after reservations of running tasks",
        "next night": limits.next_night_at,
    }


def _timeout(task: "Task") -> str | None:
    requested, effective = task.timeout_seconds, task.effective_timeout_seconds
    if requested is None:
        return None if effective is None else f"{effective} s, the limit of your plan"
    if effective is None or requested <= effective:
        return f"{requested} s"
    return f"{effective} s, the limit of your plan ({requested} s were requested)"


def progress_text(progress: "dict[str, Any] | None") -> object:
    """Return the progress that a handler reported, as text where its fields are known.

    >>> progress_text({"fraction": 0.4, "message": "page 4"})
    '40 %, page 4'
    """
    if not progress or not set(progress) <= {"fraction", "message", "at"}:
        return progress
    fraction = progress.get("fraction")
    parts = [f"{fraction:.0%}".replace("%", " %")] if isinstance(fraction, (int, float)) else []
    return ", ".join([*parts, *([str(progress["message"])] if progress.get("message") else [])])


def row(task: "Task") -> tuple[object, ...]:
    """Return the row of a task in a list, under HEADERS."""
    failed = task.state not in ("completed", *RUNNING)
    return (
        output.Id(task.id),
        state_text(task),
        task.type,
        task.created_at,
        task.completed_at,
        _duration(task),
        cost_text(task.cost_usd),
        task.title,
        (task.error or task.failure_reason) if failed else None,
    )


def cost_text(usd: float) -> str | None:
    """Return a cost in US dollars as text; None if there is none.

    >>> cost_text(0.25), cost_text(0)
    ('$0.2500', None)
    """
    return f"${usd:.4f}" if usd else None


def _duration(task: "Task") -> str | None:
    """Return how long the latest run took, or has taken so far; None if that is not known."""
    if task.started_at is None:
        return None
    if task.state in RUNNING:
        # The clock of the server may be ahead of this one.
        seconds = (datetime.now(UTC) - task.started_at).total_seconds()
        return output.duration(max(0.0, seconds))
    if task.state in ENDED_BY_A_RUN and task.completed_at is not None:
        return output.duration((task.completed_at - task.started_at).total_seconds())
    return None
