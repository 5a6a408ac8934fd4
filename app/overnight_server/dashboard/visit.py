"""One request of a signed-in user, as the function of a screen gets it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from typing import TypeVar

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from overnight_server.api.http.dependencies import Dependencies
from overnight_server.control.keys import Caller
from overnight_server.dashboard import cookies
from overnight_server.dashboard.clocks import Clock, ClockMode, find_zone
from overnight_server.dashboard.cookies import Toast
from overnight_server.dashboard.form_tokens import is_valid_token, make_token
from overnight_server.dashboard.headers import PAGE_HEADERS
from overnight_server.dashboard.last_results import LastResult, LastResults, WantedResult
from overnight_server.dashboard.navigation import PLACES, Place, marks_of
from overnight_server.dashboard.render import render
from overnight_server.domain.ids import UserId
from overnight_server.explain.audience import Audience
from overnight_server.gate.claim import ClaimSettings
from overnight_server.insight.page_frame import Frame, read_frame
from overnight_server.settings import Settings
from overnight_server.store.db import Db

T = TypeVar("T")
THEMES = ("auto", "light", "dark")
#: The hidden field of every form.
TOKEN_FIELD = "token"  # noqa: S105 - the name of a field
BACK_FIELD = "back"
#: Where parts are served, and the header that names the page that asks for them.
PARTS_PATH, PAGE_HEADER = "/parts", "x-page"


@dataclass
class Visit:
    """A request, its user, and the connections that act for that user.

    `form` has the fields of an act; `places` are those that this user may see; `wanted` is what is
    made after the response.
    """

    request: Request
    deps: Dependencies
    caller: Caller
    secret: str
    session_id: object | None
    places: frozenset[str] = frozenset()
    form: Mapping[str, list[str]] = field(default_factory=dict)
    wanted: list[WantedResult] = field(default_factory=list)

    @property
    def db(self) -> Db:
        """The connections for this user: row-level security shows only the user's rows."""
        return self.deps.db

    @property
    def admin_db(self) -> Db:
        """The connections for screens of admins, which show the rows of all users."""
        return self.deps.admin_db

    @property
    def user_id(self) -> UserId:
        """The user."""
        return self.caller.user_id

    @property
    def actor(self) -> str:
        """The name under which the user's acts are recorded."""
        return self.caller.actor

    @property
    def is_admin(self) -> bool:
        """Whether the screens for admins exist for this user."""
        return self.caller.is_operator

    @property
    def settings(self) -> Settings:
        """The settings of the process."""
        return self.deps.settings

    @cached_property
    def claim_settings(self) -> ClaimSettings:
        """What `explain` and forecasts need to know of the gate."""
        return ClaimSettings.from_settings(self.settings)

    @property
    def audience(self) -> Audience:
        """For whom the advice of `explain` is written."""
        return Audience(is_operator=self.is_admin)

    @cached_property
    def frame(self) -> Frame:
        """The figures in the header and the navigation."""
        return read_frame(self.db, self.user_id)

    @property
    def marks(self) -> Mapping[str, str]:
        """The numbers beside places of the navigation."""
        return marks_of(self.frame)

    @cached_property
    def clock(self) -> Clock:
        """How this reader wants to see instants."""
        choice = cookies.read_choice(self.request, "clock")
        mode = ClockMode(choice) if choice in set(ClockMode) else ClockMode.ZONE
        chosen_zone = cookies.read_choice(self.request, "zone")
        zone = self.frame.zone or (chosen_zone if find_zone(chosen_zone) else "UTC")
        return Clock(self.frame.now, zone, mode)

    @property
    def last_results(self) -> LastResults:
        """The last results of this process, of all users."""
        results: LastResults = self.request.app.state.last_results
        return results

    def last(self, name: str, make: Callable[[], T], fresh: timedelta) -> LastResult[T] | None:
        """Return the last result under a name, if one is kept.

        One that is older than `fresh` is made anew after the response, as is one that is missing.
        """
        key = name, self.user_id
        found: LastResult[T] | None = self.last_results.of(key)
        is_fresh = found is not None and timedelta() <= self.clock.now - found.made_at < fresh
        if not is_fresh:
            self.wanted.append(WantedResult(key, lambda: LastResult(make(), self.clock.now)))
        if found is None:
            return None
        return replace(found, is_coming=not is_fresh or self.last_results.is_being_made(key))

    def last_or_made(self, name: str, make: Callable[[], T], fresh: timedelta) -> LastResult[T]:
        """Return the last result under a name; the first is made within the request."""
        key = name, self.user_id
        if self.last_results.of(key) is None:
            self.last_results.keep(key, LastResult(make(), self.clock.now))
        found = self.last(name, make, fresh)
        return found or LastResult(make(), self.clock.now)

    @property
    def theme(self) -> str:
        """The theme that the reader has chosen."""
        choice = cookies.read_choice(self.request, "theme")
        return choice if choice in THEMES else THEMES[0]

    @property
    def address(self) -> str:
        """The path and query of this page; of a part, those of the page that shows it."""
        url = self.request.url
        if url.path == PARTS_PATH:
            return own_path(self.request.headers.get(PAGE_HEADER, ""))
        return f"{url.path}?{url.query}" if url.query else url.path

    @cached_property
    def token(self) -> str:
        """What every form of this session sends back, so that no other site can send one."""
        return make_token(self.secret)

    def query(self, name: str, default: str = "") -> str:
        """Return a parameter of the address."""
        return self.request.query_params.get(name, default).replace("\0", "")

    def value(self, name: str, default: str = "") -> str:
        """Return a field of the form."""
        return self.form.get(name, [default])[0]

    def values(self, name: str) -> list[str]:
        """Return all values of a field of the form."""
        return self.form.get(name, [])

    def has_valid_token(self) -> bool:
        """Whether the form was made for this session."""
        return is_valid_token(self.secret, self.value(TOKEN_FIELD))

    def page(
        self, template: str, *, title: str, place: str = "", status: int = 200, **values: object
    ) -> Response:
        """Return a page: a template that extends `frame.html`, filled in."""
        toast = cookies.read_toast(self.request, self.secret)
        text = render(
            template,
            **self.context(),
            title=title,
            place=place,
            toast=toast,
            places=[known for known in PLACES if known.name in self.places],
            phone_places=_phone_places(self.places),
            frame=self.frame,
            **values,
        )
        response = HTMLResponse(text, status_code=status, headers=PAGE_HEADERS)
        if toast is not None:
            cookies.delete_toast(response)
        return response

    def fragment(self, template: str, **values: object) -> Markup:
        """Return a part of a page: the template that the page itself includes, filled in."""
        return Markup(render(template, **self.context(), **values))  # noqa: S704 - escaped by Jinja2

    def context(self) -> dict[str, object]:
        """Return what every template and part may use."""
        return {"visit": self, "clock": self.clock, "at": self.clock.at}

    def done(
        self,
        text: str,
        *,
        to: str = "",
        undo: str = "",
        undo_fields: Mapping[str, str] | None = None,
    ) -> Response:
        """Return the response to an act: a redirect to a page that says what happened.

        Without `to`, it leads back to the page with the form. `undo` is the address of an act that
        takes this one back, `undo_fields` its fields.
        """
        return self._redirect(Toast(text, undo=undo, undo_fields=undo_fields), to)

    def refused(self, text: str, *, to: str = "") -> Response:
        """Return the response to an act that was refused: nothing was changed."""
        return self._redirect(Toast(text, kind="bad"), to)

    def back(self, to: str = "") -> Response:
        """Return a redirect to a path of this site, or else to the page with the form."""
        to = to or own_path(self.value(BACK_FIELD))
        return RedirectResponse(to, status_code=303, headers=PAGE_HEADERS)

    def _redirect(self, toast: Toast, to: str) -> Response:
        response = self.back(to)
        cookies.set_toast(response, self.secret, toast)
        return response


def own_path(text: str) -> str:
    r"""Return a path of this site, or `/` for anything that could lead elsewhere.

    >>> own_path("/tasks?q=a"), own_path("//evil.example"), own_path("/\\evil"), own_path("http:x")
    ('/tasks?q=a', '/', '/', '/')
    """
    is_own = text.startswith("/") and not text.startswith(("//", "/\\"))
    return text if is_own and text.isprintable() and len(text) < MAX_PATH else "/"


MAX_PATH = 4_000


def _phone_places(places: frozenset[str]) -> list[Place]:
    """Return the places of the bar at the bottom of a phone; the rest is under More."""
    wanted = ("morning", "tasks", "dead", "limits")
    return [place for place in PLACES if place.name in wanted and place.name in places]
