"""The routes by which admins look after users: list, make, change, shut out. To others, nowhere."""

from fastapi import APIRouter, Request, Response
from sqlalchemy.exc import IntegrityError

from overnight.errors import InvalidRequest
from overnight.models.admin import UserChanges, UserCreate, UserDetail
from overnight_server.api.http.authentication import Admin
from overnight_server.api.http.dependencies import Parts, Use
from overnight_server.api.http.pagination import PAGE, BeforeName, Limit, page_of
from overnight_server.api.http.path_params import name_cursor, show_name
from overnight_server.api.routes.admin_keys import user_named
from overnight_server.api.routes.me import window_said
from overnight_server.control.budgets import set_night_budget
from overnight_server.control.users import (
    Lifted,
    Overrides,
    change_plan,
    create_user,
    disable_user,
    enable_user,
    override_limits,
)
from overnight_server.control.windows import set_window
from overnight_server.domain.ids import UserId
from overnight_server.domain.plans import OnExhausted, PlanTier
from overnight_server.insight.users import get_user, list_users

router = APIRouter(prefix="/api/v1/admin/users", tags=["admin"])


@router.get("")
def list_all_users(
    *,
    request: Request,
    response: Response,
    parts: Use,
    _caller: Admin,
    limit: Limit = PAGE,
    before: BeforeName = None,
) -> list[UserDetail]:
    """List every user, by name; the Link header leads to the next page."""
    found = list_users(parts.admin_db, after=name_cursor(before), limit=limit + 1)
    return page_of(request, response, found, limit, lambda user: show_name(user.name))


@router.post("", status_code=201)
def make_user(body: UserCreate, response: Response, parts: Use, _caller: Admin) -> UserDetail:
    """Make a user with the limits of a plan; a key for them is made by another route."""
    plan = PlanTier(body.plan)
    try:
        made = create_user(parts.admin_db, name=body.name, plan=plan, is_admin=body.is_admin)
    except IntegrityError:
        raise InvalidRequest("name", "somebody goes by it", legal="a name of nobody's") from None
    response.headers["Location"] = f"{router.prefix}/{made}"
    return get_user(parts.admin_db, made)


@router.get("/{user_id}")
def read_user(user_id: str, parts: Use, _caller: Admin) -> UserDetail:
    """Tell how one user stands; the user goes by id or name."""
    return get_user(parts.admin_db, user_named(parts, user_id))


@router.patch("/{user_id}")
def change_user(user_id: str, body: UserChanges, parts: Use, caller: Admin) -> UserDetail:
    """Change a user's plan, limits, night budget or window; it holds from the next claim on."""
    named = user_named(parts, user_id)
    actor = f"user:{caller.user_id}"
    given = body.model_fields_set
    # Judged before anything is written, for what follows is several transactions.
    hours = None if body.window is None else window_said(body.window)
    if body.plan is not None:
        change_plan(parts.admin_db, named, PlanTier(body.plan), actor=actor)
    _override(parts, named, body, actor)
    if "night_budget_usd" in given:
        set_night_budget(parts.admin_db, named, body.night_budget_usd, actor=actor)
    if "window" in given:
        set_window(parts.admin_db, named, hours)
    return get_user(parts.admin_db, named)


@router.post("/{user_id}/disable")
def disable(user_id: str, parts: Use, caller: Admin) -> UserDetail:
    """Shut a user out: no key opens anything, nothing new starts; what runs may end."""
    named = user_named(parts, user_id)
    if named == caller.user_id:
        raise InvalidRequest("user_id", "that is you", legal="any other user")
    disable_user(parts.admin_db, named, actor=f"user:{caller.user_id}")
    return get_user(parts.admin_db, named)


@router.post("/{user_id}/enable")
def enable(user_id: str, parts: Use, caller: Admin) -> UserDetail:
    """Let a user in again, with the keys and limits they had."""
    named = user_named(parts, user_id)
    enable_user(parts.admin_db, named, actor=f"user:{caller.user_id}")
    return get_user(parts.admin_db, named)


def _override(parts: Parts, user_id: UserId, body: UserChanges, actor: str) -> None:
    """Make the exceptions that were named; null lifts a limit that can be lifted."""
    given = body.model_fields_set

    def lifted(name: str) -> int | Lifted | None:
        value: int | None = getattr(body, name)
        return Lifted.LIFTED if value is None and name in given else value

    overrides = Overrides(
        concurrency=body.max_concurrent_agents,
        minutes=body.max_task_duration_minutes,
        hours=lifted("monthly_agent_hours_limit"),
        max_pending=lifted("max_pending"),
        max_tasks_per_dag=lifted("max_tasks_per_dag"),
        on_exhausted=None if body.on_exhausted is None else OnExhausted(body.on_exhausted),
    )
    if overrides != Overrides():
        override_limits(parts.admin_db, user_id, overrides, actor=actor)
