"""Admin routes for tasks of all users: tasks, dead letters, the queue as a whole.

Only admins can call them; other callers get 404.
"""

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from overnight.models.account import Attempt, DeadLetterGroup, ResolveResult
from overnight.models.admin import DeadLetterResolution, QueueOverview, UserDeadLetter
from overnight.models.explain import Explanation
from overnight.models.tasks import Forecast, TaskResponse
from overnight_server.api.http.authentication import Admin
from overnight_server.api.http.dependencies import Injected
from overnight_server.api.http.pagination import (
    MAX_PAGE,
    PAGE,
    BeforeNumber,
    BeforeTask,
    Limit,
    number_cursor,
    paginate,
    task_cursor,
)
from overnight_server.api.http.params import parse_status_param, parse_task_param
from overnight_server.api.http.thread_route import ThreadRoute
from overnight_server.api.routes.admin_keys import LONGEST_LIST, ManyLimit, find_user_id
from overnight_server.api.routes.tasks import Criteria, StatusFilter
from overnight_server.control import dead_letters
from overnight_server.domain.ids import show_task
from overnight_server.explain.audience import OPERATOR
from overnight_server.explain.explain import explain
from overnight_server.forecast.forecast import forecast_task
from overnight_server.gate.claim import ClaimSettings
from overnight_server.insight.attempts import list_attempts
from overnight_server.insight.dead_letters import (
    get_dead_letter,
    group_dead_letters,
    list_dead_letters,
)
from overnight_server.insight.queue_overview import queue_overview
from overnight_server.insight.tasks import get_task, list_tasks, owner_of, recent_tasks

router = APIRouter(route_class=ThreadRoute, prefix="/api/v1/admin", tags=["admin"])


@router.get("/tasks")
def list_tasks_of_user(
    *,
    request: Request,
    response: Response,
    deps: Injected,
    _caller: Admin,
    user: Annotated[str, Query(max_length=200, description="Id or name of the user.")],
    status: StatusFilter = None,
    criteria: Criteria,
    limit: Limit = PAGE,
    before: BeforeTask = None,
) -> list[TaskResponse]:
    """List the tasks of a user, newest first; the Link header leads to the next page."""
    items = list_tasks(
        deps.admin_db,
        find_user_id(deps, user),
        states=parse_status_param(status),
        criteria=criteria,
        limit=limit + 1,
        before=task_cursor(before),
    )
    return paginate(request, response, items, limit, lambda task: task.id)


@router.get("/task-ids")
def list_recent_task_ids(
    deps: Injected, _caller: Admin, limit: ManyLimit = LONGEST_LIST
) -> list[Annotated[str, Field(examples=["task_01J8K3ZQ4N7V5T2M9R6XWB0CDE"])]]:
    """List the ids of the newest tasks of all users."""
    return [show_task(task_id) for task_id in recent_tasks(deps.admin_db, limit=limit)]


@router.get("/tasks/{task_id}")
def read_any_task(task_id: str, deps: Injected, _caller: Admin) -> TaskResponse:
    """Return a task of any user."""
    parsed_id = parse_task_param(task_id)
    return get_task(deps.admin_db, owner_of(deps.admin_db, parsed_id), parsed_id)


@router.get("/tasks/{task_id}/attempts")
def read_attempts_of_any_task(
    task_id: str, deps: Injected, _caller: Admin, limit: Limit = PAGE
) -> list[Attempt]:
    """List the latest claims of a task of any user, the latest first."""
    parsed_id = parse_task_param(task_id)
    owner = owner_of(deps.admin_db, parsed_id)
    return list_attempts(deps.admin_db, owner, parsed_id, limit=limit)


@router.get("/tasks/{task_id}/explain")
def explain_any_task(task_id: str, deps: Injected, _caller: Admin) -> Explanation:
    """Return every reason why a task of any user is not running."""
    parsed_id, settings = parse_task_param(task_id), ClaimSettings.from_settings(deps.settings)
    owner = owner_of(deps.admin_db, parsed_id)
    return explain(deps.admin_db, owner, parsed_id, settings, OPERATOR)


@router.get("/tasks/{task_id}/forecast")
def forecast_any_task(task_id: str, deps: Injected, _caller: Admin) -> Forecast:
    """Return when a task of any user is expected to start and end."""
    parsed_id, settings = parse_task_param(task_id), ClaimSettings.from_settings(deps.settings)
    owner = owner_of(deps.admin_db, parsed_id)
    simulate = deps.simulation_process.simulate
    return forecast_task(deps.admin_db, owner, parsed_id, settings, simulate=simulate)


@router.get("/queue")
def read_queue(deps: Injected, _caller: Admin) -> QueueOverview:
    """Return what waits, what runs and which locks are held in the whole deployment."""
    return queue_overview(
        deps.admin_db,
        slots_max=deps.settings.slots_max,
        liveness=timedelta(seconds=deps.settings.worker_liveness),
    )


@router.get("/dead-letters")
def list_all_dead_letters(
    *,
    request: Request,
    response: Response,
    deps: Injected,
    _caller: Admin,
    resolved: Annotated[bool, Query(description="List resolved ones too.")] = False,
    limit: Limit = PAGE,
    before: BeforeNumber = None,
) -> list[UserDeadLetter]:
    """List the dead letters of all users, newest first."""
    items = list_dead_letters(
        deps.admin_db, resolved=resolved, before=number_cursor(before), limit=limit + 1
    )
    return paginate(request, response, items, limit, lambda letter: letter.id)


# Declared before the route of one dead letter, which would read "groups" as an id.
@router.get("/dead-letters/groups")
def list_all_groups(
    deps: Injected, _caller: Admin, limit: Limit = MAX_PAGE
) -> list[DeadLetterGroup]:
    """List the dead letters of all users by the way in which they failed, most frequent first."""
    return group_dead_letters(deps.admin_db, limit=limit)


@router.get("/dead-letters/{task_id}")
def read_any_dead_letter(task_id: str, deps: Injected, _caller: Admin) -> UserDeadLetter:
    """Return the latest dead letter of a task, with every failed run."""
    return get_dead_letter(deps.admin_db, parse_task_param(task_id))


@router.post("/dead-letters/{task_id}/resolve")
def resolve_any_dead_letter(
    task_id: str, body: DeadLetterResolution, deps: Injected, caller: Admin
) -> ResolveResult:
    """Run a dead-lettered task of any user again, or close its dead letter.

    A retry by an admin is not subject to the owner's limit on waiting tasks.
    """
    parsed_id, actor = parse_task_param(task_id), f"user:{caller.user_id}"
    if body.resolution == "cancel":
        dead_letters.discard(deps.admin_db, parsed_id, actor=actor, note=body.note)
    else:
        dead_letters.retry(deps.admin_db, parsed_id, actor=actor, note=body.note)
    state = get_task(deps.admin_db, owner_of(deps.admin_db, parsed_id), parsed_id).state
    return ResolveResult(task_id=show_task(parsed_id), resolution=body.resolution, state=state)
