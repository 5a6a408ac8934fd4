"""One task: what it does, why it failed, why it has not started, and what can be done about it."""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from markupsafe import Markup
from pydantic import ValidationError
from starlette.responses import RedirectResponse, Response

from overnight.errors import InvalidRequest, PreconditionFailed, TaskNotFound
from overnight.models.account import Attempt, TaskChanges
from overnight.models.explain import Explanation
from overnight.models.tasks import TaskResponse
from overnight_server.control.cancel import cancel
from overnight_server.control.edit import ANY, TaskEdit, Unset, edit, edition_of
from overnight_server.control.fork import fork
from overnight_server.control.overrule import overrule
from overnight_server.control.retry import retry
from overnight_server.dashboard.clocks import count
from overnight_server.dashboard.screen import Screen
from overnight_server.dashboard.sentences import shown_state
from overnight_server.dashboard.task_story import OUTCOMES, Story, ids_in, spans, tell
from overnight_server.dashboard.visit import Visit
from overnight_server.dashboard.waterfall import draw_life
from overnight_server.domain.ids import (
    MalformedId,
    TaskId,
    parse_dag,
    parse_task,
    show_dag,
    show_task,
)
from overnight_server.domain.lifecycle import ACTIVE, WAITING, State
from overnight_server.domain.priority import score
from overnight_server.explain.explain import explain
from overnight_server.insight.artifacts import list_artifacts
from overnight_server.insight.attempts import list_attempts
from overnight_server.insight.dags import get_dag
from overnight_server.insight.logs import tail_log
from overnight_server.insight.neighbours import neighbours, titles_of
from overnight_server.insight.task_life import task_life
from overnight_server.insight.task_rows import find_by_ending
from overnight_server.insight.tasks import get_task
from overnight_server.intake.caps import Caps

screen = Screen("tasks")
MOST_RUNS = 50
LOG_CHUNKS = 30
MAX_LINES = 300
EDITABLE = WAITING
REVIVABLE = frozenset({State.DEAD_LETTERED, State.CANCELLED})


@screen.page("/tasks/{task_id}", is_expensive=True)
def show_task_page(visit: Visit, task_id: str) -> Response:
    """Show one task; an address with the end of its id leads to the whole one."""
    try:
        parse_task(task_id)
    except MalformedId:
        found = find_by_ending(visit.db, visit.user_id, task_id)
        if found is None:
            raise TaskNotFound from None
        return RedirectResponse(f"/tasks/{show_task(found)}", status_code=303)
    view = read_view(visit, parse_task(task_id))
    return visit.page("task.html", title=view["task"].title, place="tasks", **view)


@screen.part("task", is_expensive=True)
def show_task_part(visit: Visit, key: str) -> Markup | None:
    """Return what changes on the page of a task."""
    try:
        view = read_view(visit, parse_task(key))
    except MalformedId:
        return None
    return visit.fragment("parts/task.html", **view)


@screen.part("why", is_expensive=True)
def show_why(visit: Visit, key: str) -> Markup | None:
    """Return why a task waits, for its row in a list."""
    try:
        task_id = parse_task(key)
    except MalformedId:
        return None
    task = get_task(visit.db, visit.user_id, task_id)
    attempts = list_attempts(visit.db, visit.user_id, task_id, limit=MOST_RUNS)
    story = _story(visit, task, attempts, task_id)
    return visit.fragment("parts/why.html", task=task, story=story)


def read_view(visit: Visit, task_id: TaskId) -> dict[str, Any]:
    """Return everything that the page of a task shows."""
    db, user_id = visit.db, visit.user_id
    task = get_task(db, user_id, task_id)
    attempts = list_attempts(db, user_id, task_id, limit=MOST_RUNS)
    around = neighbours(db, user_id, task_id)
    worked, waited = spans(task, attempts, visit.clock)
    state = State(task.state)
    return {
        "task": task,
        "state": shown_state(task),
        "graph": _graph(visit, task),
        "story": _story(visit, task, attempts, task_id),
        "attempts": attempts,
        "outcomes": OUTCOMES,
        "around": around,
        "artifacts": list_artifacts(db, user_id, task_id),
        "log": _log_lines(visit, task_id),
        "fall": draw_life(
            task_life(
                db, user_id, task_id, liveness=timedelta(seconds=visit.settings.worker_liveness)
            ),
            visit.clock,
        ),
        "worked": worked,
        "waited": waited,
        "can_edit": state in EDITABLE,
        "can_cancel": state in WAITING | ACTIVE,
        "is_active": state in ACTIVE,
        "can_retry": state in REVIVABLE,
        "can_overrule": _rejected(attempts) is not None and state is State.DEAD_LETTERED,
        "rejected": _rejected(attempts),
        "is_done": state is State.COMPLETED,
    }


def _story(visit: Visit, task: TaskResponse, attempts: Sequence[Attempt], task_id: TaskId) -> Story:
    explanation = _explain(visit, task, task_id)
    titles = titles_of(visit.db, visit.user_id, ids_in(explanation))
    return tell(task, attempts, explanation, titles, visit.clock, is_operator=visit.is_admin)


def _explain(visit: Visit, task: TaskResponse, task_id: TaskId) -> Explanation | None:
    if State(task.state) not in WAITING:
        return None
    return explain(visit.db, visit.user_id, task_id, visit.claim_settings, visit.audience)


def _graph(visit: Visit, task: TaskResponse) -> Any:  # noqa: ANN401 - a summary, or None
    dag = get_dag(visit.db, visit.user_id, parse_dag(task.dag_id), with_tasks=False)
    return dag if dag.counts.total > 1 else None


def _rejected(attempts: Sequence[Attempt]) -> Attempt | None:
    """Return the run whose output a validator rejected, if the output is kept."""
    return next((one for one in attempts if one.rejected_output is not None), None)


def _log_lines(visit: Visit, task_id: TaskId) -> list[dict[str, Any]]:
    lines = [
        {"at": chunk.at, "stream": chunk.stream, "text": line}
        for chunk in tail_log(visit.db, visit.user_id, task_id, limit=LOG_CHUNKS)
        for line in (chunk.text or f"{chunk.lines} lines were not kept").splitlines()
    ]
    return lines[-MAX_LINES:]


# --- acts -----------------------------------------------------------------------------------------


@screen.page("/tasks/{task_id}/cancel")
def ask_cancel(visit: Visit, task_id: str) -> Response:
    """Ask before a running task is cancelled: what is lost."""
    task = get_task(visit.db, visit.user_id, _parse(task_id))
    around = neighbours(visit.db, visit.user_id, _parse(task_id))
    return visit.page("task_cancel.html", title="Cancel?", place="tasks", task=task, around=around)


@screen.act("/tasks/{task_id}/cancel")
def cancel_one(visit: Visit, task_id: str) -> Response:
    """Cancel a task; of one that waits, it can be taken back."""
    state = cancel(visit.db, visit.user_id, _parse(task_id), actor=visit.actor)
    if state is State.CANCELLED:
        return visit.done("The task is cancelled.", undo=f"/tasks/{task_id}/retry")
    return visit.done("The task was asked to stop.", to=f"/tasks/{task_id}")


@screen.act("/tasks/{task_id}/retry")
def retry_one(visit: Visit, task_id: str) -> Response:
    """Retry a task that ended badly, with the tasks that ended because of it."""
    back = retry(
        visit.db,
        visit.user_id,
        _parse(task_id),
        actor=visit.actor,
        caps=Caps.of(visit.settings),
        note=visit.value("note"),
    )
    more = f" {count(len(back) - 1, 'other task')} came back with it." if len(back) > 1 else ""
    return visit.done(f"The task waits to run again.{more}")


@screen.act("/tasks/{task_id}/again")
def run_again(visit: Visit, task_id: str) -> Response:
    """Run a completed task and its dependents again, as a new graph."""
    forked = fork(
        visit.db, visit.user_id, _parse(task_id), Caps.of(visit.settings), actor=visit.actor
    )
    to = f"/graphs/{show_dag(forked.dag_id)}" if "graphs" in visit.places else "/tasks"
    return visit.done("A new graph runs it again. The old one stays as it is.", to=to)


@screen.act("/tasks/{task_id}/accept")
def accept_output(visit: Visit, task_id: str) -> Response:
    """Complete a task with the output that a validator rejected."""
    caps = Caps.of(visit.settings)
    overrule(visit.db, visit.user_id, _parse(task_id), actor=visit.actor, caps=caps)
    return visit.done("The output is accepted, and the task is done.")


@screen.act("/tasks/{task_id}/start-now")
def start_now(visit: Visit, task_id: str) -> Response:
    """Let a task start at once that waits for its start time."""
    changes = TaskEdit(start_at=None)
    edit(visit.db, visit.user_id, _parse(task_id), changes, editions=[ANY], actor=visit.actor)
    return visit.done("The task can start now.")


@screen.act("/tasks/{task_id}/priority")
def set_priority(visit: Visit, task_id: str) -> Response:
    """Set the priority of a task that waits; it can be taken back."""
    parsed = _parse(task_id)
    before = get_task(visit.db, visit.user_id, parsed).priority_score
    try:
        wanted = (
            int(visit.value("score"))
            if visit.value("score")
            else score(int(visit.value("priority")))
        )
    except ValueError:
        raise InvalidRequest("priority", "is not a priority", legal="1 to 4") from None
    changes = _changes(priority_score=wanted)
    edit(visit.db, visit.user_id, parsed, changes, editions=[ANY], actor=visit.actor)
    return visit.done(
        "The priority is changed.",
        undo=f"/tasks/{task_id}/priority",
        undo_fields={"score": str(before)},
    )


@screen.page("/tasks/{task_id}/edit")
def show_edit(visit: Visit, task_id: str) -> Response:
    """Show a task as a form: to edit it while it waits, or to edit and retry it."""
    task = get_task(visit.db, visit.user_id, _parse(task_id))
    return _edit_page(visit, task, _as_fields(visit, task))


@screen.act("/tasks/{task_id}/edit")
def save_edit(visit: Visit, task_id: str) -> Response:
    """Save an edit; of a task that has ended, retry it with the changes."""
    parsed = _parse(task_id)
    task = get_task(visit.db, visit.user_id, parsed)
    before = _as_fields(visit, task)
    typed = {name: visit.value(name, before[name]) for name in FIELDS}
    try:
        changes = _read_changes(visit, task, typed)
        if State(task.state) in REVIVABLE:
            retry(
                visit.db,
                visit.user_id,
                parsed,
                actor=visit.actor,
                caps=Caps.of(visit.settings),
                changes=None if changes.is_empty else changes,
            )
            return visit.done(
                "The task was changed and waits to run again.", to=f"/tasks/{task.id}"
            )
        edition = visit.value("edition")
        edit(visit.db, visit.user_id, parsed, changes, editions=[edition], actor=visit.actor)
    except InvalidRequest as error:
        return _edit_page(visit, task, typed, problem=str(error.message), status=422)
    except PreconditionFailed:
        problem = "Somebody changed the task meanwhile. Below is your version; beside it, theirs."
        return _edit_page(visit, task, typed, problem=problem, theirs=task, status=412)
    return visit.done("The task is changed.", to=f"/tasks/{task.id}")


#: What stands for a secret in a payload that is shown.
MASKED = '"***"'
FIELDS = ("title", "priority", "timeout_minutes", "deadline_at", "start_at", "tags", "payload")


def _edit_page(
    visit: Visit,
    task: TaskResponse,
    typed: dict[str, str],
    *,
    problem: str = "",
    theirs: TaskResponse | None = None,
    status: int = 200,
) -> Response:
    revives = State(task.state) in REVIVABLE
    return visit.page(
        "task_edit.html",
        title=f"Edit {task.title}",
        place="tasks",
        status=status,
        task=task,
        typed=typed,
        problem=problem,
        theirs=theirs,
        revives=revives,
        edition=edition_of({**vars(task), "priority": task.priority_score}),
    )


def _as_fields(visit: Visit, task: TaskResponse) -> dict[str, str]:
    """Return the fields of the form for a task; instants are local, without a zone."""
    minutes = None if task.timeout_seconds is None else task.timeout_seconds / 60
    return {
        "title": task.title,
        "priority": str(task.priority),
        "timeout_minutes": "" if minutes is None else f"{minutes:g}",
        "deadline_at": _local(visit, task.deadline_at),
        "start_at": _local(visit, task.start_at),
        "tags": ", ".join(task.tags),
        "payload": json.dumps(task.payload, indent=2, ensure_ascii=False),
    }


def _local(visit: Visit, instant: datetime | None) -> str:
    return "" if instant is None else f"{visit.clock.local(instant):%Y-%m-%dT%H:%M}"


def _read_changes(visit: Visit, task: TaskResponse, typed: dict[str, str]) -> TaskEdit:
    """Return what the form changes; raise InvalidRequest for what cannot be read."""
    before = _as_fields(visit, task)
    changed = {name for name in FIELDS if typed[name].strip() != before[name].strip()}
    wanted: dict[str, Any] = {}
    if "title" in changed:
        wanted["title"] = typed["title"].strip()
    if "priority" in changed:
        wanted["priority"] = typed["priority"]
    if "tags" in changed:
        wanted["tags"] = [tag.strip() for tag in typed["tags"].split(",") if tag.strip()]
    if "payload" in changed:
        if MASKED in before["payload"] and MASKED in typed["payload"]:
            message = "has a masked value, which would replace the real one"
            raise InvalidRequest("payload", message, legal="the real value in its place")
        wanted["payload"] = _json(typed["payload"])
    if "timeout_minutes" in changed:
        wanted["timeout_seconds"] = _seconds(typed["timeout_minutes"])
    for name in ("deadline_at", "start_at"):
        if name in changed:
            wanted[name] = _instant(visit, name, typed[name])
    return _changes(**wanted)


def _changes(**wanted: Any) -> TaskEdit:  # noqa: ANN401 - pydantic judges them
    """Return changes that the API's model has judged."""
    if isinstance(wanted.get("priority"), str) and wanted["priority"].isdigit():
        wanted["priority"] = int(wanted["priority"])
    try:
        body = TaskChanges(**wanted)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else "form"
        raise InvalidRequest(name, first["msg"]) from None
    level = None if body.priority is None else score(body.priority)
    return TaskEdit(
        title=body.title,
        priority=level if body.priority_score is None else body.priority_score,
        tags=body.tags,
        payload=body.payload,
        timeout_seconds=body.timeout_seconds if "timeout_seconds" in wanted else Unset.UNSET,
        deadline_at=body.deadline_at if "deadline_at" in wanted else Unset.UNSET,
        start_at=body.start_at if "start_at" in wanted else Unset.UNSET,
    )


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidRequest("payload", f"is not JSON: {error}", legal="a JSON object") from None


def _seconds(text: str) -> int | None:
    if not text.strip():
        return None
    try:
        return round(float(text) * 60)
    except (ValueError, OverflowError):
        raise InvalidRequest("timeout", "is not a number of minutes", legal="such as 20") from None


def _instant(visit: Visit, name: str, text: str) -> datetime | None:
    if not text.strip():
        return None
    try:
        return datetime.fromisoformat(text).replace(tzinfo=visit.clock.tz)
    except ValueError:
        raise InvalidRequest(name, "is not a time", legal="such as 2026-11-16T22:00") from None


def _parse(text: str) -> TaskId:
    try:
        return parse_task(text)
    except MalformedId:
        raise TaskNotFound from None
