"""What a schedule submits at a fire time: its template, filled in, as tasks and edges."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from overnight.errors import FieldError, InvalidRequest
from overnight.models.dags import DagCreate
from overnight.models.field_errors import validate
from overnight.models.tasks import TaskBody
from overnight_server.domain.fire_times import FireTimes
from overnight_server.domain.ids import ScheduleId, show_schedule
from overnight_server.domain.payload_templates import fill
from overnight_server.domain.schedules import FireKind, template_values
from overnight_server.intake.new_graph import NewGraph, NewTask, check_graph
from overnight_server.intake.translate_request import new_graph, new_task
from overnight_server.settings import Settings

SOURCE = "scheduler"
# A key would make every fire time after the first return the first task.
KEY = "idempotency_key"


def filled(
    template: Mapping[str, Any],
    *,
    is_graph: bool,
    name: str,
    schedule_id: ScheduleId,
    zone: str,
    times: FireTimes,
    fire_at: datetime,
    kind: FireKind,
) -> dict[str, Any]:
    """Return the request of one fire time; raise InvalidRequest for an unknown name."""
    values = template_values(
        name=name,
        schedule_id=show_schedule(schedule_id),
        zone=zone,
        times=times,
        fire_at=fire_at,
        kind=kind,
    )
    field = "graph" if is_graph else "task"
    request = fill(template, values, field)
    if not isinstance(request, dict):  # pragma: no cover - a template is an object
        raise InvalidRequest(field, "is not a JSON object", legal="an object")
    if KEY in request:
        legal = f"no {KEY}: each fire time is submitted once"
        raise InvalidRequest(f"{field}.{KEY}", "cannot be set for a schedule", legal=legal)
    return request


def graph_of(
    request: Mapping[str, Any], settings: Settings, *, is_graph: bool, name: str
) -> NewGraph:
    """Return the tasks and edges of a filled request; raise InvalidRequest if it is not valid."""
    field = "graph" if is_graph else "task"
    try:
        if is_graph:
            graph = new_graph(validate(DagCreate, request), settings)
        else:
            graph = NewGraph([new_task(validate(TaskBody, request), settings, None)])
        graph = replace(graph, tasks=[_from_schedule(task, name) for task in graph.tasks])
        check_graph(graph)
    except InvalidRequest as error:
        raise InvalidRequest.of_fields([_inside(each, field) for each in error.fields]) from None
    return graph


def _from_schedule(task: NewTask, name: str) -> NewTask:
    spec = {**task.spec, "source_job": name}
    return replace(task, source=SOURCE, created_by=f"cron:{name}", spec=spec)


def _inside(error: FieldError, field: str) -> FieldError:
    return replace(error, field=f"{field}.{error.field}" if error.field else field)
