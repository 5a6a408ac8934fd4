"""Tasks and graphs that the service makes itself, from templates with places for values of events.

Sources of webhooks and rules keep templates. They are checked when they are stored, as far as that
is possible without an event, and whole when an event fills them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import Connection

from overnight.errors import InvalidRequest, InvalidTemplate
from overnight.graphs.shape import dependencies_of
from overnight.models.dags import DagCreate
from overnight.models.field_errors import validate
from overnight.models.tasks import TaskCreate
from overnight_server.domain.event_templates import check_places, fill, has_places
from overnight_server.domain.ids import DagId, TaskId, UserId
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import NewGraph, check_graph
from overnight_server.intake.submit import find_dag_by_key, insert_graph
from overnight_server.intake.translate_request import new_graph, new_task
from overnight_server.settings import Settings
from overnight_server.store import lanes

#: Fields whose texts stay legal whatever an event puts into them, up to their length.
TEXT_FIELDS: Final = frozenset({"title", "description", "prompt", "payload", "spec"})
MAX_TITLE: Final = 500


@dataclass(frozen=True)
class Template:
    """What an event becomes: the fields of a task, or those of a graph."""

    fields: Mapping[str, Any]
    is_graph: bool

    @property
    def name(self) -> str:
        """The name of the field that holds it."""
        return "graph" if self.is_graph else "task"


@dataclass(frozen=True)
class Origin:
    """Where tasks come from: their source, and who created them."""

    source: str
    created_by: str


def check_template(template: Template) -> None:
    """Raise InvalidTemplate for a template of which no event can make a task or a graph."""
    try:
        _check_template(template)
    except InvalidRequest as error:
        raise InvalidTemplate(error.fields) from None


def _check_template(template: Template) -> None:
    check_places(template.fields, template.name)
    fields = _without_places(template.fields)
    if template.is_graph and isinstance(tasks := template.fields.get("tasks"), list):
        fields["tasks"] = [
            _without_places(task) if isinstance(task, Mapping) else task for task in tasks
        ]
    body = _validated(template, fields)
    if isinstance(body, DagCreate):
        dependencies_of(body)
    else:
        check_stands_alone(body, template.name)


def check_stands_alone(body: TaskCreate, field: str) -> None:
    """Raise InvalidRequest for a task that waits for tasks of another graph."""
    if body.depends_on:
        legal = "a graph, whose tasks name each other in after"
        raise InvalidRequest(f"{field}.depends_on", "cannot be set here", legal=legal)


def make_work(template: Template, event: object, settings: Settings, origin: Origin) -> NewGraph:
    """Return the tasks that an event becomes; nothing is submitted.

    Raises Unfit for an event that lacks a value, and InvalidRequest for values that are not legal.
    """
    filled = fill(template.fields, event, template.name)
    fields = filled if isinstance(filled, dict) else {}
    body = _validated(template, _with_short_titles(fields))
    if isinstance(body, DagCreate):
        graph = replace(new_graph(body, settings), key=body.idempotency_key)
        return with_origin(graph, origin)
    check_stands_alone(body, template.name)
    return with_origin(NewGraph([new_task(body, settings, body.idempotency_key)]), origin)


def with_origin(graph: NewGraph, origin: Origin) -> NewGraph:
    """Return a graph whose tasks say where they come from."""
    tasks = [
        replace(task, source=origin.source, created_by=origin.created_by) for task in graph.tasks
    ]
    return replace(graph, tasks=tasks)


def insert_work(
    tx: Connection, user_id: UserId, graph: NewGraph, caps: Caps
) -> tuple[DagId, Sequence[TaskId]]:
    """Insert a graph in the caller's transaction; return its id and those of its tasks.

    Of a graph whose idempotency key was used before, only the id is returned, and nothing is
    inserted.
    """
    check_graph(graph)
    lanes.lock(tx, [user_id])
    existing = find_dag_by_key(tx, user_id, graph.key)
    if existing is not None:
        return existing, ()
    submitted = insert_graph(tx, user_id, graph, caps)
    return submitted[0].dag_id, [task.task_id for task in submitted]


def _validated(template: Template, fields: Mapping[str, Any]) -> DagCreate | TaskCreate:
    try:
        return validate(DagCreate, fields) if template.is_graph else validate(TaskCreate, fields)
    except InvalidRequest as error:
        raise InvalidRequest.of_fields(
            [replace(each, field=f"{template.name}.{each.field}") for each in error.fields]
        ) from None


def _without_places(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in fields.items()
        if name in TEXT_FIELDS or not has_places(value)
    }


def _with_short_titles(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a task or graph with titles that are not too long."""
    shortened = dict(fields)
    if isinstance(title := fields.get("title"), str):
        shortened["title"] = title[:MAX_TITLE]
    if isinstance(tasks := fields.get("tasks"), list):
        shortened["tasks"] = [
            _with_short_titles(task) if isinstance(task, Mapping) else task for task in tasks
        ]
    return shortened
