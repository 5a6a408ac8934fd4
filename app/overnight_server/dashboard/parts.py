"""Parts of pages: what a page asks for when the live stream says that something has changed.

A part is an element with the id `<name>:<key>` and the attribute `data-part`. The page includes the
template of the part, and the function of the part fills in the same template, so that HTML is made
in one place. `GET /parts?for=task-row:task_01…&for=pill:` returns the elements one after the other,
separated by `SEPARATOR`; a part that is left out does not exist any more.

A request costs what its parts cost together. With an expensive part among them it runs like an
expensive page, and it may have few of those.
"""

from collections.abc import Mapping

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from overnight.errors import InvalidRequest, Refused
from overnight_server.dashboard.headers import PAGE_HEADERS
from overnight_server.dashboard.screen import CHEAP, Cost, PageRoute, Part
from overnight_server.dashboard.visit import PARTS_PATH, Visit

#: More parts than a page has rows.
MAX_PARTS = 200
#: A page has one.
MAX_EXPENSIVE = 3
#: Between two parts. No part contains it, because texts are escaped.
SEPARATOR = Markup("\n<!-- part -->\n")


def parts_route(parts: Mapping[str, Part]) -> PageRoute:
    """Return the route that serves the parts of all screens."""

    def show_parts(visit: Visit) -> Response:
        found = [_render(visit, parts, name) for name in wanted_parts(visit.request)]
        text = SEPARATOR.join(part for part in found if part is not None)
        return HTMLResponse(text, headers=PAGE_HEADERS)

    def cost(request: Request) -> Cost:
        costs = [part.cost for name in wanted_parts(request) if (part := parts.get(_kind(name)))]
        return cost_of(costs)

    return PageRoute("GET", PARTS_PATH, "tasks:read", False, show_parts, cost)  # noqa: FBT003 - for users


def wanted_parts(request: Request) -> list[str]:
    """Return the ids of the parts that a request asks for, each once."""
    wanted = request.query_params.getlist("for")[:MAX_PARTS]
    return list(dict.fromkeys(name.replace("\0", "") for name in wanted))


def cost_of(costs: list[Cost]) -> Cost:
    """Return what a request for parts with these costs costs itself.

    Raises InvalidRequest for more than `MAX_EXPENSIVE` expensive parts: nothing is rendered then,
    because a page takes a part that is left out for one that does not exist.

    >>> cost_of([Cost(2), Cost(20, is_expensive=True)])
    Cost(tokens=22, is_expensive=True)
    """
    expensive = sum(cost.is_expensive for cost in costs)
    if expensive > MAX_EXPENSIVE:
        legal = f"{MAX_EXPENSIVE} of them in one request"
        raise InvalidRequest("for", f"has {expensive} expensive parts", legal=legal)
    tokens = sum(cost.tokens for cost in costs)
    return Cost(max(tokens, CHEAP.tokens), is_expensive=expensive > 0)


def _kind(wanted: str) -> str:
    return wanted.partition(":")[0]


def _render(visit: Visit, parts: Mapping[str, Part], wanted: str) -> Markup | None:
    """Return one part; None if there is none, or none for this user."""
    name, _, key = wanted.partition(":")
    part = parts.get(name)
    if part is None:
        return None
    try:
        return part.function(visit, key)
    except Refused:
        return None
