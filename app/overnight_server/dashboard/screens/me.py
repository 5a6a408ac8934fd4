"""Me: the user's own sessions, and how pages look."""

from functools import cache
from uuid import UUID
from zoneinfo import available_timezones

from markupsafe import Markup
from starlette.responses import Response

from overnight.errors import InvalidRequest
from overnight_server.control.sessions import end_session, list_sessions
from overnight_server.control.windows import set_window
from overnight_server.dashboard import cookies
from overnight_server.dashboard.clocks import ClockMode, find_zone
from overnight_server.dashboard.screen import Screen
from overnight_server.dashboard.visit import THEMES, Visit
from overnight_server.domain.windows import parse_window
from overnight_server.insight.users import get_user

screen = Screen("me")


@screen.page("/me")
def show_me(visit: Visit) -> Response:
    """Show who the user is, how pages look, and the open sessions."""
    sessions = list_sessions(visit.db, visit.user_id)
    user = get_user(visit.db, visit.user_id)
    return visit.page(
        "me.html", title="Me", place="me", sessions=sessions, user=user, zones=known_zones()
    )


@screen.act("/me/window")
def choose_window(visit: Visit) -> Response:
    """Set the hours of every day in which the user's tasks may start, or remove them."""
    if visit.value("remove"):
        set_window(visit.db, visit.user_id, None)
        return visit.done("Tasks may start at any time now.")
    opens, closes = visit.value("opens"), visit.value("closes")
    if opens == closes:
        raise InvalidRequest("closes", "is the same time as opens", legal="another time of day")
    window = parse_window(visit.value("zone"), opens, closes, visit.value("at_closing"))
    set_window(visit.db, visit.user_id, window)
    return visit.done(f"Tasks start between {opens} and {closes}, {visit.value('zone')}.")


@screen.act("/me/zone", scope="tasks:read")
def choose_zone(visit: Visit) -> Response:
    """Keep the zone in which a user without a window sees instants, in a cookie."""
    zone = visit.value("zone")
    if find_zone(zone) is None:
        raise InvalidRequest("zone", "is no time zone", legal="a name such as Europe/Berlin")
    response = visit.back("/me")
    cookies.set_choice(visit.request, response, "zone", zone)
    return response


@cache
def known_zones() -> list[str]:
    """Return the names of the time zones, for the choice."""
    return sorted(name for name in available_timezones() if "/" in name)


@screen.page("/more")
def show_more(visit: Visit) -> Response:
    """Show all places, for phones."""
    return visit.page("more.html", title="All pages", place="more")


@screen.act("/look", scope="tasks:read")
def choose_look(visit: Visit) -> Response:
    """Keep the theme or the clock that the reader has chosen, in a cookie."""
    choices = {"theme": THEMES, "clock": tuple(ClockMode), "keys": ("on", "off")}
    for name, legal in choices.items():
        value = visit.value(name)
        if value and value not in legal:
            raise InvalidRequest(name, "is not known", legal=", ".join(legal))
    response = visit.back()
    for name in choices:
        if value := visit.value(name):
            cookies.set_choice(visit.request, response, name, value)
    return response


@screen.act("/sessions/{session_id}/end", scope="tasks:read")
def end(visit: Visit, session_id: str) -> Response:
    """End one of the user's sessions."""
    try:
        known = end_session(visit.db, visit.user_id, UUID(session_id))
    except ValueError:
        known = False
    if not known:
        return visit.refused("There is no such open session. Nothing was changed.", to="/me")
    return visit.done("The session has ended. That browser must sign in again.", to="/me")


@screen.part("pill")
def show_pill(visit: Visit, _key: str) -> Markup:
    """Return how much runs and waits, in the header of every page."""
    return visit.fragment("parts/pill.html")


@screen.part("mark")
def show_mark(visit: Visit, key: str) -> Markup:
    """Return the number beside a place of the navigation."""
    return visit.fragment("parts/mark.html", name=key)
