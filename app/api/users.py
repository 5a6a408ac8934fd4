"""The routes of the caller: who they are here, and what their plan allows."""

from fastapi import APIRouter

from app.api.callers import Reader
from app.api.parts import Use
from app.insight.queue import UserLimitsView, user_limits
from app.insight.users import UserView, get_user
from overnight.control_models import Me, Window
from overnight.models import UserLimits

router = APIRouter(prefix="/api/v1/users", tags=["users"])


@router.get("/me")
def read_me(parts: Use, caller: Reader) -> Me:
    """Tell who the caller is here, whether their work is held, and in which hours it may start."""
    user = get_user(parts.db, caller.user_id)
    return Me.model_validate({**vars(user), "window": window_of(user)})


@router.get("/me/limits", response_model=UserLimits)
def read_limits(parts: Use, caller: Reader) -> UserLimitsView:
    """Tell what the caller's plan allows and how much of it is used."""
    house = parts.settings.max_pending_per_user
    return user_limits(parts.db, caller.user_id, house_pending=house)


def window_of(user: UserView) -> Window | None:
    """Return a user's window with the times as people write them."""
    if user.window is None:
        return None
    times = {"opens": f"{user.window.opens:%H:%M}", "closes": f"{user.window.closes:%H:%M}"}
    return Window.model_validate({**vars(user.window), **times})
