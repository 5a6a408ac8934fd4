"""Routes of the caller's own user: identity, night window and plan limits."""

from fastapi import APIRouter

from overnight.errors import InvalidRequest
from overnight.models.account import Me, WindowRequest
from overnight.models.admin import UserDetail, UserLimitsDetail
from overnight.models.keys import SignInLink
from overnight.models.tasks import UserLimits
from overnight_server.api.http.authentication import Reader, Writer
from overnight_server.api.http.dependencies import Injected
from overnight_server.api.http.thread_route import ThreadRoute
from overnight_server.control.sessions import make_sign_in_link
from overnight_server.control.windows import set_window
from overnight_server.domain.windows import NightWindow, parse_window
from overnight_server.insight.limits import user_limits
from overnight_server.insight.users import get_user
from overnight_server.outcome.artifacts import ArtifactCaps

router = APIRouter(route_class=ThreadRoute, prefix="/api/v1/users", tags=["users"])


@router.get("/me", response_model=Me)
def read_me(deps: Injected, caller: Reader) -> UserDetail:
    """Return the caller's user: name, plan, running and waiting tasks, pause and window."""
    return get_user(deps.db, caller.user_id)


# It gives no right that the key of the request lacks, so reading is enough.
@router.post("/me/sign-in-links", status_code=201)
def create_sign_in_link(deps: Injected, caller: Reader) -> SignInLink:
    """Make a link that signs a browser in to the dashboard, once, with the rights of the key."""
    return make_sign_in_link(deps.db, caller)


@router.put("/me/window", response_model=Me)
def set_own_window(body: WindowRequest, deps: Injected, caller: Writer) -> UserDetail:
    """Set the hours of every day in which the caller's tasks may start; it applies at once."""
    set_window(deps.db, caller.user_id, parse_body_window(body))
    return get_user(deps.db, caller.user_id)


@router.delete("/me/window", response_model=Me)
def drop_own_window(deps: Injected, caller: Writer) -> UserDetail:
    """Remove the window, so that the caller's tasks may start at any time."""
    set_window(deps.db, caller.user_id, None)
    return get_user(deps.db, caller.user_id)


@router.get("/me/limits", response_model=UserLimits)
def read_limits(deps: Injected, caller: Reader) -> UserLimitsDetail:
    """Return the limits of the caller's plan and how much of them is used."""
    return user_limits(
        deps.db,
        caller.user_id,
        default_max_pending=deps.settings.max_pending_per_user,
        artifact_caps=ArtifactCaps.of(deps.settings),
    )


def parse_body_window(body: WindowRequest) -> NightWindow:
    """Return the window of a request body; raise InvalidRequest if it opens when it closes."""
    if body.opens == body.closes:
        raise InvalidRequest("closes", "is the same time as opens", legal="another time of day")
    return parse_window(body.zone, body.opens, body.closes, body.at_closing)
