"""The routes of the caller: who they are here, when their work may start, what the plan allows."""

from fastapi import APIRouter

from overnight.errors import InvalidRequest
from overnight.models.account import Me, WindowRequest
from overnight.models.admin import UserDetail, UserLimitsDetail
from overnight.models.tasks import UserLimits
from overnight_server.api.http.authentication import Reader, Writer
from overnight_server.api.http.dependencies import Use
from overnight_server.control.windows import set_window
from overnight_server.domain.windows import Window, parse_window
from overnight_server.insight.limits import user_limits
from overnight_server.insight.users import get_user

router = APIRouter(prefix="/api/v1/users", tags=["users"])


@router.get("/me", response_model=Me)
def read_me(parts: Use, caller: Reader) -> UserDetail:
    """Tell who the caller is here, whether their work is held, and in which hours it may start."""
    return get_user(parts.db, caller.user_id)


@router.put("/me/window", response_model=Me)
def set_own_window(body: WindowRequest, parts: Use, caller: Writer) -> UserDetail:
    """Let the caller's work start only in these hours of every day; it holds at once."""
    set_window(parts.db, caller.user_id, window_said(body))
    return get_user(parts.db, caller.user_id)


@router.delete("/me/window", response_model=Me)
def drop_own_window(parts: Use, caller: Writer) -> UserDetail:
    """Let the caller's work start at any time."""
    set_window(parts.db, caller.user_id, None)
    return get_user(parts.db, caller.user_id)


@router.get("/me/limits", response_model=UserLimits)
def read_limits(parts: Use, caller: Reader) -> UserLimitsDetail:
    """Tell what the caller's plan allows and how much of it is used."""
    deployment = parts.settings.max_pending_per_user
    return user_limits(parts.db, caller.user_id, default_max_pending=deployment)


def window_said(body: WindowRequest) -> Window:
    """Return the window that a body describes, or refuse it under the body's own names."""
    if body.opens == body.closes:
        raise InvalidRequest("closes", "is when it opens", legal="another time of day")
    return parse_window(body.zone, body.opens, body.closes, body.at_closing)
