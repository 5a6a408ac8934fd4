"""The routes of users: what the caller's plan allows."""

from fastapi import APIRouter

from app.api.callers import Reader
from app.api.parts import Use
from app.insight.queue import UserLimitsView, user_limits
from overnight.models import UserLimits

router = APIRouter(prefix="/api/v1/users", tags=["users"])


@router.get("/me/limits", response_model=UserLimits)
def read_limits(parts: Use, caller: Reader) -> UserLimitsView:
    """Tell what the caller's plan allows and how much of it is used."""
    house = parts.settings.max_pending_per_user
    return user_limits(parts.db, caller.user_id, house_pending=house)
