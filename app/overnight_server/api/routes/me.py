"""The routes of the caller: who they are here, when their work may start, what the plan allows."""

from fastapi import APIRouter

from overnight.errors import InvalidRequest
from overnight.models.account import Me, Window, WindowSet
from overnight.models.tasks import UserLimits
from overnight_server.api.http.authentication import Reader, Writer
from overnight_server.api.http.dependencies import Parts, Use
from overnight_server.control.keys import Caller
from overnight_server.control.windows import set_window
from overnight_server.domain.windows import Window as HouseWindow
from overnight_server.domain.windows import parse_window
from overnight_server.insight.queue import UserLimitsView, user_limits
from overnight_server.insight.users import UserView, get_user

router = APIRouter(prefix="/api/v1/users", tags=["users"])


@router.get("/me")
def read_me(parts: Use, caller: Reader) -> Me:
    """Tell who the caller is here, whether their work is held, and in which hours it may start."""
    return _me(parts, caller)


@router.put("/me/window")
def set_own_window(body: WindowSet, parts: Use, caller: Writer) -> Me:
    """Let the caller's work start only in these hours of every day; it holds at once."""
    set_window(parts.db, caller.user_id, window_said(body))
    parts.wake()
    return _me(parts, caller)


@router.delete("/me/window")
def drop_own_window(parts: Use, caller: Writer) -> Me:
    """Let the caller's work start at any time."""
    set_window(parts.db, caller.user_id, None)
    parts.wake()
    return _me(parts, caller)


@router.get("/me/limits", response_model=UserLimits)
def read_limits(parts: Use, caller: Reader) -> UserLimitsView:
    """Tell what the caller's plan allows and how much of it is used."""
    deployment = parts.settings.max_pending_per_user
    return user_limits(parts.db, caller.user_id, default_max_pending=deployment)


def window_said(body: WindowSet) -> HouseWindow:
    """Return the window that a body describes, or refuse it under the body's own names."""
    if body.opens == body.closes:
        raise InvalidRequest("closes", "is when it opens", legal="another time of day")
    return parse_window(body.zone, body.opens, body.closes, body.at_closing)


def window_of(user: UserView) -> Window | None:
    """Return a user's window with the times as people write them."""
    if user.window is None:
        return None
    times = {"opens": f"{user.window.opens:%H:%M}", "closes": f"{user.window.closes:%H:%M}"}
    return Window.model_validate({**vars(user.window), **times})


def _me(parts: Parts, caller: Caller) -> Me:
    user = get_user(parts.db, caller.user_id)
    return Me.model_validate({**vars(user), "window": window_of(user)})
