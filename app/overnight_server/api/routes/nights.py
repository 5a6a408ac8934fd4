"""Routes of nights: what each slot of the plan did, and the morning report."""

from datetime import date
from typing import Annotated

from fastapi import APIRouter, Query, Response

from overnight.errors import NightNotFound
from overnight.models.nights import NightReport, UserNight
from overnight_server.api.http.authentication import Reader
from overnight_server.api.http.dependencies import Injected
from overnight_server.api.http.thread_route import ThreadRoute, expensive
from overnight_server.domain.night_picture import night_picture
from overnight_server.gate.claim import ClaimSettings
from overnight_server.insight.night import night
from overnight_server.insight.report import night_report

router = APIRouter(route_class=ThreadRoute, prefix="/api/v1/nights", tags=["nights"])
# The night that opened last.
LATEST = "latest"
PICTURE = {"schema": {"type": "string"}, "example": "<svg xmlns='http://www.w3.org/2000/svg'/>"}


@router.get("/{day}")
@expensive
def read_night(day: str, deps: Injected, caller: Reader) -> UserNight:
    """Return a night: what each slot of the plan did in each minute, and why it was empty."""
    liveness = ClaimSettings.from_settings(deps.settings).liveness
    return night(deps.db, caller.user_id, parse_day(day), liveness=liveness)


@router.get("/{day}/report")
@expensive
def read_report(day: str, deps: Injected, caller: Reader) -> NightReport:
    """Return the morning report of a night: results, money and hours, and what needs the user."""
    liveness = ClaimSettings.from_settings(deps.settings).liveness
    return night_report(deps.db, caller.user_id, parse_day(day), liveness=liveness)


@router.get(
    "/{day}/picture",
    response_class=Response,
    responses={
        200: {
            "content": {"image/svg+xml": PICTURE},
            "description": "The night as SVG.",
        }
    },
)
@expensive
def read_picture(
    day: str,
    deps: Injected,
    caller: Reader,
    width: Annotated[int, Query(ge=200, le=4_000, description="The width in pixels.")] = 960,
) -> Response:
    """Return a picture of a night as SVG that needs no style sheet."""
    liveness = ClaimSettings.from_settings(deps.settings).liveness
    shown = night(deps.db, caller.user_id, parse_day(day), liveness=liveness)
    return Response(night_picture(shown, width), media_type="image/svg+xml")


def parse_day(text: str) -> date | None:
    """Return the date of a path; None for the latest night. Raise NightNotFound for others."""
    if text == LATEST:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise NightNotFound(text[:20]) from None
