"""Admin routes for users: list, create, change, disable.

Only admins can call them; other callers get 404.
"""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy.exc import IntegrityError

from overnight.errors import InvalidRequest
from overnight.models.account import Notice
from overnight.models.admin import (
    HoursAdjustment,
    UserChanges,
    UserCreate,
    UserDetail,
    UserLimitsDetail,
)
from overnight.models.enums import PlanTier
from overnight_server.api.http.authentication import Admin
from overnight_server.api.http.dependencies import Dependencies, Injected
from overnight_server.api.http.pagination import (
    PAGE,
    BeforeName,
    Limit,
    encode_name_cursor,
    name_cursor,
    paginate,
)
from overnight_server.api.http.thread_route import ThreadRoute
from overnight_server.api.routes.admin_keys import ManyLimit, find_user_id
from overnight_server.api.routes.me import parse_body_window
from overnight_server.control.adjust_hours import adjust_hours
from overnight_server.control.budgets import set_night_budget
from overnight_server.control.users import (
    NoLimit,
    Overrides,
    appoint_admin,
    change_plan,
    create_user,
    disable_user,
    enable_user,
    override_limits,
    rename_user,
    restore_template,
)
from overnight_server.control.windows import set_window
from overnight_server.domain.ids import UserId
from overnight_server.domain.plans import OnExhausted
from overnight_server.insight.limits import user_limits
from overnight_server.insight.notices import list_notices
from overnight_server.insight.users import get_user, list_users
from overnight_server.outcome.artifacts import ArtifactCaps

router = APIRouter(route_class=ThreadRoute, prefix="/api/v1/admin/users", tags=["admin"])


@router.get("")
def list_all_users(
    *,
    request: Request,
    response: Response,
    deps: Injected,
    _caller: Admin,
    name_prefix: Annotated[
        str | None,
        Query(max_length=200, description="Only users whose names begin with it."),
    ] = None,
    limit: Limit = PAGE,
    before: BeforeName = None,
) -> list[UserDetail]:
    """List the users, sorted by name; the Link header leads to the next page."""
    items = list_users(
        deps.admin_db, name_prefix=name_prefix, after=name_cursor(before), limit=limit + 1
    )
    return paginate(request, response, items, limit, lambda user: encode_name_cursor(user.name))


@router.post("", status_code=201)
def make_user(body: UserCreate, response: Response, deps: Injected, _caller: Admin) -> UserDetail:
    """Create a user with the limits of a plan; POST to the user's `keys` creates a key."""
    plan = PlanTier(body.plan)
    try:
        made = create_user(deps.admin_db, name=body.name, plan=plan, is_admin=body.is_admin)
    except IntegrityError:
        raise _name_taken(body.name) from None
    response.headers["Location"] = f"{router.prefix}/{made}"
    return get_user(deps.admin_db, made)


@router.get("/{user_id}")
def read_user(user_id: str, deps: Injected, _caller: Admin) -> UserDetail:
    """Return one user, given by id or name."""
    return get_user(deps.admin_db, find_user_id(deps, user_id))


@router.patch("/{user_id}")
def change_user(user_id: str, body: UserChanges, deps: Injected, caller: Admin) -> UserDetail:
    """Change a user's name, plan, limits, night budget or window, from the next claim on."""
    parsed_id = find_user_id(deps, user_id)
    actor = f"user:{caller.user_id}"
    given = body.model_fields_set
    # Validated before anything is written, because each change is a transaction of its own.
    hours = None if body.window is None else parse_body_window(body.window)
    if body.is_admin is False and parsed_id == caller.user_id:
        raise InvalidRequest(
            "is_admin",
            "you cannot remove the admin role from your own account",
            legal="the account of another user",
        )
    if body.name is not None:
        try:
            rename_user(deps.admin_db, parsed_id, body.name, actor=actor)
        except IntegrityError:
            raise _name_taken(body.name) from None
    if body.is_admin is not None:
        appoint_admin(deps.admin_db, parsed_id, is_admin=body.is_admin, actor=actor)
    if body.plan is not None:
        change_plan(deps.admin_db, parsed_id, PlanTier(body.plan), actor=actor)
    _override(deps, parsed_id, body, actor)
    if "night_budget_usd" in given:
        set_night_budget(deps.admin_db, parsed_id, body.night_budget_usd, actor=actor)
    if "window" in given:
        set_window(deps.admin_db, parsed_id, hours)
    return get_user(deps.admin_db, parsed_id)


@router.post("/{user_id}/disable")
def disable(user_id: str, deps: Injected, caller: Admin) -> UserDetail:
    """Disable a user: keys are refused and no task starts; running tasks may end."""
    parsed_id = find_user_id(deps, user_id)
    if parsed_id == caller.user_id:
        raise InvalidRequest(
            "user_id",
            "you cannot disable your own account",
            legal="the account of another user",
        )
    disable_user(deps.admin_db, parsed_id, actor=f"user:{caller.user_id}")
    return get_user(deps.admin_db, parsed_id)


@router.post("/{user_id}/enable")
def enable(user_id: str, deps: Injected, caller: Admin) -> UserDetail:
    """Enable a disabled user, with the same keys and limits as before."""
    parsed_id = find_user_id(deps, user_id)
    enable_user(deps.admin_db, parsed_id, actor=f"user:{caller.user_id}")
    return get_user(deps.admin_db, parsed_id)


@router.get("/{user_id}/limits")
def read_limits_of_user(user_id: str, deps: Injected, _caller: Admin) -> UserLimitsDetail:
    """Return the limits of a user and how much of them is used."""
    return _limits(deps, find_user_id(deps, user_id))


@router.post("/{user_id}/limits/reset")
def reset_limits(user_id: str, deps: Injected, caller: Admin) -> UserLimitsDetail:
    """Remove all exceptions, so that the user has the limits of the plan again."""
    parsed_id = find_user_id(deps, user_id)
    restore_template(deps.admin_db, parsed_id, actor=f"user:{caller.user_id}")
    return _limits(deps, parsed_id)


@router.post("/{user_id}/hours")
def adjust_hours_of_user(
    user_id: str, body: HoursAdjustment, deps: Injected, caller: Admin
) -> UserLimitsDetail:
    """Charge hours to a user's current month, or give hours back if they are negative."""
    parsed_id = find_user_id(deps, user_id)
    actor = f"user:{caller.user_id}"
    adjust_hours(deps.admin_db, parsed_id, body.hours, note=body.note, actor=actor)
    return _limits(deps, parsed_id)


@router.get("/{user_id}/notices")
def list_notices_of_user(
    user_id: str, deps: Injected, _caller: Admin, limit: ManyLimit = PAGE
) -> list[Notice]:
    """List the newest notices of a user."""
    return list_notices(deps.admin_db, find_user_id(deps, user_id), limit=limit)


def _name_taken(name: str) -> InvalidRequest:
    return InvalidRequest("name", f"{name!r} is the name of another user", legal="a unique name")


def _limits(deps: Dependencies, user_id: UserId) -> UserLimitsDetail:
    return user_limits(
        deps.admin_db,
        user_id,
        default_max_pending=deps.settings.max_pending_per_user,
        artifact_caps=ArtifactCaps.of(deps.settings),
    )


def _override(deps: Dependencies, user_id: UserId, body: UserChanges, actor: str) -> None:
    """Write the limits that the request names; null removes a limit that can be removed."""
    given = body.model_fields_set

    def lifted(name: str) -> int | NoLimit | None:
        value: int | None = getattr(body, name)
        return NoLimit.NO_LIMIT if value is None and name in given else value

    overrides = Overrides(
        concurrency=body.max_concurrent_agents,
        minutes=body.max_task_duration_minutes,
        hours=lifted("monthly_agent_hours_limit"),
        max_pending=lifted("max_pending"),
        max_tasks_per_dag=lifted("max_tasks_per_dag"),
        artifact_storage_mb=lifted("artifact_storage_mb"),
        on_exhausted=None if body.on_exhausted is None else OnExhausted(body.on_exhausted),
    )
    if overrides != Overrides():
        override_limits(deps.admin_db, user_id, overrides, actor=actor)
