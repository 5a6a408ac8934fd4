"""Parts of pages: what a page asks for when the live stream says that something has changed.

A part is an element with the id `<name>:<key>` and the attribute `data-part`. The page includes the
template of the part, and the function of the part fills in the same template, so that HTML is made
in one place. `GET /parts?for=task-row:task_01…&for=pill:` returns the elements one after the other,
separated by `SEPARATOR`; a part that is left out does not exist any more.
"""

from collections.abc import Mapping

from markupsafe import Markup
from starlette.responses import HTMLResponse, Response

from overnight.errors import Refused
from overnight_server.dashboard.headers import PAGE_HEADERS
from overnight_server.dashboard.screen import PageRoute, PartFunction
from overnight_server.dashboard.visit import PARTS_PATH, Visit

#: More parts than a page has rows.
MAX_PARTS = 200
#: Between two parts. No part contains it, because texts are escaped.
SEPARATOR = Markup("\n<!-- part -->\n")


def parts_route(parts: Mapping[str, PartFunction]) -> PageRoute:
    """Return the route that serves the parts of all screens."""

    def show_parts(visit: Visit) -> Response:
        wanted = dict.fromkeys(visit.request.query_params.getlist("for")[:MAX_PARTS])
        found = [_render(visit, parts, name) for name in wanted]
        text = SEPARATOR.join(part for part in found if part is not None)
        return HTMLResponse(text, headers=PAGE_HEADERS)

    return PageRoute("GET", PARTS_PATH, "tasks:read", for_admins=False, function=show_parts)


def _render(visit: Visit, parts: Mapping[str, PartFunction], wanted: str) -> Markup | None:
    """Return one part; None if there is none, or none for this user."""
    name, _, key = wanted.replace("\0", "").partition(":")
    function = parts.get(name)
    if function is None:
        return None
    try:
        return function(visit, key)
    except Refused:
        return None
