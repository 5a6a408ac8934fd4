"""Admin routes of users: list, create, change, disable and enable; for others they respond 404."""

from fastapi import APIRouter, Request, Response
from sqlalchemy.exc import IntegrityError

from overnight.errors import InvalidRequest
from overnight.models.admin import UserChanges, UserCreate, UserDetail
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
from overnight_server.api.routes.admin_keys import find_user_id
from overnight_server.api.routes.me import parse_body_window
from overnight_server.control.budgets import set_night_budget
from overnight_server.control.users import (
    NoLimit,
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
    deps: Injected,
    _caller: Admin,
    limit: Limit = PAGE,
    before: BeforeName = None,
) -> list[UserDetail]:
    """List all users, ordered by name; the header Link has the next page."""
    users = list_users(deps.admin_db, after=name_cursor(before), limit=limit + 1)
    return paginate(request, response, users, limit, lambda user: encode_name_cursor(user.name))


@router.post("", status_code=201)
def create_new_user(
    body: UserCreate, response: Response, deps: Injected, _caller: Admin
) -> UserDetail:
    """Create a user with the limits of a plan; `POST /users/{user_id}/keys` creates a key."""
    plan = PlanTier(body.plan)
    try:
        user_id = create_user(deps.admin_db, name=body.name, plan=plan, is_admin=body.is_admin)
    except IntegrityError:
        raise InvalidRequest(
            "name", "is the name of another user", legal="a name that no user has"
        ) from None
    response.headers["Location"] = f"{router.prefix}/{user_id}"
    return get_user(deps.admin_db, user_id)


@router.get("/{user_id}")
def read_user(user_id: str, deps: Injected, _caller: Admin) -> UserDetail:
    """Return one user; the path takes the id or the name."""
    return get_user(deps.admin_db, find_user_id(deps, user_id))


@router.patch("/{user_id}")
def change_user(user_id: str, body: UserChanges, deps: Injected, caller: Admin) -> UserDetail:
    """Change a user's plan, limits, night budget or window; it applies from the next claim on."""
    parsed_id = find_user_id(deps, user_id)
    actor = f"user:{caller.user_id}"
    sent = body.model_fields_set
    # Checked before anything is written, because the changes are several transactions.
    window = None if body.window is None else parse_body_window(body.window)
    if body.plan is not None:
        change_plan(deps.admin_db, parsed_id, PlanTier(body.plan), actor=actor)
    _override(deps, parsed_id, body, actor)
    if "night_budget_usd" in sent:
        set_night_budget(deps.admin_db, parsed_id, body.night_budget_usd, actor=actor)
    if "window" in sent:
        set_window(deps.admin_db, parsed_id, window)
    return get_user(deps.admin_db, parsed_id)


@router.post("/{user_id}/disable")
def disable(user_id: str, deps: Injected, caller: Admin) -> UserDetail:
    """Disable a user: keys are refused and nothing new starts; running tasks may finish."""
    parsed_id = find_user_id(deps, user_id)
    if parsed_id == caller.user_id:
        raise InvalidRequest("user_id", "is your own id", legal="any other user")
    disable_user(deps.admin_db, parsed_id, actor=f"user:{caller.user_id}")
    return get_user(deps.admin_db, parsed_id)


@router.post("/{user_id}/enable")
def enable(user_id: str, deps: Injected, caller: Admin) -> UserDetail:
    """Enable a disabled user again, with the same keys and limits."""
    parsed_id = find_user_id(deps, user_id)
    enable_user(deps.admin_db, parsed_id, actor=f"user:{caller.user_id}")
    return get_user(deps.admin_db, parsed_id)


def _override(deps: Dependencies, user_id: UserId, body: UserChanges, actor: str) -> None:
    """Change the limits in the body; null removes a limit that may be absent."""
    sent = body.model_fields_set

    def lifted(name: str) -> int | NoLimit | None:
        value: int | None = getattr(body, name)
        return NoLimit.NO_LIMIT if value is None and name in sent else value

    overrides = Overrides(
        concurrency=body.max_concurrent_agents,
        minutes=body.max_task_duration_minutes,
        hours=lifted("monthly_agent_hours_limit"),
        max_pending=lifted("max_pending"),
        max_tasks_per_dag=lifted("max_tasks_per_dag"),
        on_exhausted=None if body.on_exhausted is None else OnExhausted(body.on_exhausted),
    )
    if overrides != Overrides():
        override_limits(deps.admin_db, user_id, overrides, actor=actor)
