"""Screens: a page with its acts and its parts.

A module of `dashboard.screens` has one `screen`. Its functions are decorated with `page`, `act` and
`part`. Each parses the request, calls a function of `insight` or `control`, and renders.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from overnight_server.api.http.thread_route import EXPENSIVE_COST
from overnight_server.dashboard.visit import Visit

PageFunction = Callable[..., Response]
PartFunction = Callable[[Visit, str], Markup | None]
P = TypeVar("P", bound=PageFunction)
Q = TypeVar("Q", bound=PartFunction)


class Cost(NamedTuple):
    """What a request or a part costs: tokens of the rate limit, and whose threads it uses.

    What is expensive gets the threads and connections for that, so that others do not wait for it.
    """

    tokens: int = 1
    is_expensive: bool = False


CHEAP, EXPENSIVE = Cost(), Cost(EXPENSIVE_COST, is_expensive=True)


@dataclass(frozen=True)
class PageRoute:
    """A path of a screen: who may call it with which method, and its function."""

    method: str
    path: str
    scope: str
    for_admins: bool
    function: PageFunction
    cost: Callable[[Request], Cost] = lambda _request: CHEAP


@dataclass(frozen=True)
class Part:
    """The function that renders a kind of part, and what one of them costs."""

    function: PartFunction
    cost: Cost


@dataclass(frozen=True)
class Screen:
    """A screen under one place of the navigation; with `for_admins` it exists for admins only."""

    place: str
    for_admins: bool = False
    routes: list[PageRoute] = field(default_factory=list)
    parts: dict[str, Part] = field(default_factory=dict)

    def page(
        self, path: str, *, scope: str = "tasks:read", is_expensive: bool = False
    ) -> Callable[[P], P]:
        """Serve a page: `function(visit, …)` returns `visit.page(…)` and changes nothing.

        The parameters of the path are passed by name. An expensive function, one that explains or
        forecasts, gets the connections for that.
        """

        def register(function: P) -> P:
            cost = EXPENSIVE if is_expensive else CHEAP
            route = PageRoute(
                "GET", path, scope, self.for_admins, function, cost=lambda _request: cost
            )
            self.routes.append(route)
            return function

        return register

    def act(self, path: str, *, scope: str = "tasks:write") -> Callable[[P], P]:
        """Serve an act: a form that was posted; its token has been checked.

        The function returns `visit.done(…)`. If it raises a refusal, the user gets back to the page
        with the form, which says why nothing was changed.
        """

        def register(function: P) -> P:
            self.routes.append(PageRoute("POST", path, scope, self.for_admins, function))
            return function

        return register

    def part(
        self, name: str, *, tokens: int = CHEAP.tokens, is_expensive: bool = False
    ) -> Callable[[Q], Q]:
        """Serve a part of a page for live updates: `function(visit, key)` returns its HTML.

        None means that the part does not exist any more. The part is an element whose id is
        `<name>:<key>`; the page includes the same template. Each counts as `tokens` requests. An
        expensive one has the attribute `data-gap`: the seconds between two requests for it.
        """

        def register(function: Q) -> Q:
            self.parts[name] = Part(function, EXPENSIVE if is_expensive else Cost(tokens))
            return function

        return register
