"""Users: who may do how much, with their exceptions; and changes of them."""

from sqlalchemy.exc import IntegrityError
from starlette.responses import Response

from overnight.errors import InvalidRequest, UserNotFound
from overnight.models.enums import PlanTier
from overnight_server.control.users import change_plan, create_user, disable_user, enable_user
from overnight_server.dashboard.screen import Screen
from overnight_server.dashboard.visit import Visit
from overnight_server.domain.ids import UserId
from overnight_server.insight.users import find_identity, list_keys, list_users

screen = Screen("users", for_admins=True)
PAGE = 50


@screen.page("/users")
def show_users(visit: Visit) -> Response:
    """Show the users by name."""
    prefix, after = visit.query("q"), visit.query("after")
    users = list_users(
        visit.admin_db, name_prefix=prefix or None, after=after or None, limit=PAGE + 1
    )
    more = users[PAGE - 1].name if len(users) > PAGE else ""
    return visit.page(
        "users.html",
        title="Users",
        place="users",
        users=users[:PAGE],
        q=prefix,
        more=more,
        plans=list(PlanTier),
    )


@screen.page("/users/{user_id}")
def show_user(visit: Visit, user_id: str) -> Response:
    """Show one user with the keys."""
    found = _find(visit, user_id)
    [user] = list_users(visit.admin_db, found)
    return visit.page(
        "user.html",
        title=user.name,
        place="users",
        user=user,
        keys=list_keys(visit.admin_db, found),
        plans=list(PlanTier),
        is_self=found == visit.user_id,
    )


@screen.act("/users/add", scope="admin")
def add_user(visit: Visit) -> Response:
    """Create a user with the limits of a plan."""
    name = visit.value("name").strip()
    if not name:
        raise InvalidRequest("name", "is empty", legal="a unique name")
    try:
        made = create_user(
            visit.admin_db,
            name=name,
            plan=_plan(visit),
            is_admin=visit.value("is_admin") == "yes",
        )
    except IntegrityError:
        message = f"{name!r} is the name of another user"
        raise InvalidRequest("name", message, legal="a unique name") from None
    return visit.done(f"{name} is created. A key is made under Keys.", to=f"/users/{made}")


@screen.act("/users/{user_id}/plan", scope="admin")
def set_plan(visit: Visit, user_id: str) -> Response:
    """Give a user another plan, with its limits."""
    plan = _plan(visit)
    change_plan(visit.admin_db, _find(visit, user_id), plan, actor=visit.actor)
    return visit.done(f"The plan is {plan.value} now.")


@screen.act("/users/{user_id}/disable", scope="admin")
def disable(visit: Visit, user_id: str) -> Response:
    """Disable a user: keys are refused and no task starts."""
    found = _find(visit, user_id)
    if found == visit.user_id:
        raise InvalidRequest("user", "is your own account", legal="the account of another user")
    disable_user(visit.admin_db, found, actor=visit.actor)
    return visit.done("The user is disabled.", undo=f"/users/{user_id}/enable")


@screen.act("/users/{user_id}/enable", scope="admin")
def enable(visit: Visit, user_id: str) -> Response:
    """Enable a disabled user, with the same keys and limits as before."""
    enable_user(visit.admin_db, _find(visit, user_id), actor=visit.actor)
    return visit.done("The user is enabled.", undo=f"/users/{user_id}/disable")


def _plan(visit: Visit) -> PlanTier:
    try:
        return PlanTier(visit.value("plan"))
    except ValueError:
        legal = ", ".join(PlanTier)
        raise InvalidRequest("plan", "is not a plan", legal=legal) from None


def _find(visit: Visit, reference: str) -> UserId:
    found = find_identity(visit.admin_db, reference)
    if found is None:
        raise UserNotFound
    return found.user_id
