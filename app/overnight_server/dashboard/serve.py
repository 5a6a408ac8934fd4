"""Serve one request of the dashboard: who sent it, may they, then the function of the screen.

Acts are forms. A form is accepted only with the token of its session, and only from a page of this
site. Functions run in a worker thread.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from urllib.parse import parse_qs, quote, urlsplit
from uuid import UUID

from sqlalchemy.exc import DataError
from sqlalchemy.exc import TimeoutError as PoolExhausted
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from overnight.errors import Forbidden, InvalidRequest, Refused, Unauthenticated, Unavailable
from overnight_server.api.http.authentication import trusted_caller
from overnight_server.api.http.dependencies import Dependencies
from overnight_server.api.http.request_body import SMALL, read_body
from overnight_server.control.keys import Caller
from overnight_server.control.sessions import find_session, sign
from overnight_server.dashboard import cookies
from overnight_server.dashboard.headers import PAGE_HEADERS
from overnight_server.dashboard.last_results import make_results
from overnight_server.dashboard.render import render
from overnight_server.dashboard.screen import PageRoute
from overnight_server.dashboard.visit import THEMES, Visit
from overnight_server.store.db import DatabaseUnreachable, is_transient
from overnight_server.telemetry import LogEvent

MAX_FIELDS = 2_000
Endpoint = Callable[[Request], Awaitable[Response]]
#: The places of the navigation that users see and, under True, those that admins see.
PlacesOf = Mapping[bool, frozenset[str]]


@dataclass(frozen=True)
class Visitor:
    """Who sent a request: a caller, and the secret that signs the forms of the session."""

    caller: Caller
    secret: str
    session_id: UUID | None = None
    new_cookie: str | None = None


def endpoint(route: PageRoute, places: PlacesOf) -> Endpoint:
    """Return what serves a route of a screen."""

    async def serve(request: Request) -> Response:
        try:
            return await _serve(request, route, places)
        except Exception as error:  # noqa: BLE001 - a browser gets a page whatever fails
            return failure_page(request, error)

    return serve


async def _serve(request: Request, route: PageRoute, places: PlacesOf) -> Response:
    deps = replace(request.app.state.dependencies)
    visitor = await run_in_threadpool(find_visitor, request, deps)
    if visitor is None:
        return to_sign_in(request)
    caller = visitor.caller
    deps.act_for(caller.served)
    cost = route.cost(request)
    if deps.rate_limiter is not None:
        await run_in_threadpool(deps.rate_limiter.take, str(caller.user_id), cost.tokens)
    # Before anything else: an error would tell that the screen exists.
    if route.for_admins and not caller.is_operator:
        raise HTTPException(HTTPStatus.NOT_FOUND)
    if route.scope and not caller.may(route.scope):
        raise Forbidden(route.scope)
    visit = Visit(
        request,
        deps,
        caller,
        visitor.secret,
        visitor.session_id,
        places[caller.is_operator],
    )
    if route.method == "POST":
        check_origin(request)
        visit.form = await read_form(request, deps)
        if not visit.has_valid_token():
            raise Forbidden("of this form's session; load the page again")
    work = partial(route.function, visit, **request.path_params)
    response = await _call(visit, route, work, is_expensive=cost.is_expensive)
    if visit.wanted:
        response.background = BackgroundTask(make_results, visit.last_results, deps, visit.wanted)
    if visitor.new_cookie is not None:
        cookies.set_session_cookie(request, response, visitor.new_cookie)
    return response


async def _call(
    visit: Visit, route: PageRoute, work: Callable[[], Response], *, is_expensive: bool
) -> Response:
    """Call the function of a screen; an act that is refused leads back to the page."""
    deps = visit.deps
    try:
        if not is_expensive:
            return await run_in_threadpool(work)
        deps.db = deps.expensive.db.acting_for(deps.acting_user)
        with deps.expensive.place(deps.caller_name):
            return await deps.expensive.call(work)
    except Refused as error:
        is_told_in_place = route.method == "POST" and not isinstance(error, Unauthenticated)
        if is_told_in_place and error.status not in NOT_IN_PLACE:
            return visit.refused(as_sentence(error.message))
        raise


NOT_IN_PLACE = {HTTPStatus.NOT_FOUND, HTTPStatus.TOO_MANY_REQUESTS}


def find_visitor(request: Request, deps: Dependencies) -> Visitor | None:
    """Return who sent a request: by the session's cookie, or whom the setting `no_auth` names."""
    if cookie := cookies.read_session_cookie(request):
        session = find_session(deps.db, cookie)
        if session is not None:
            return Visitor(session.caller, session.secret, session.session_id, session.new_cookie)
    caller = trusted_caller(request, deps)
    if caller is None:
        return None
    # All processes of the deployment must sign alike. Other sites are refused by their headers.
    secret = sign(str(deps.settings.database_url), f"no-auth:{caller.user_id}")
    return Visitor(caller, secret)


def to_sign_in(request: Request) -> Response:
    """Return the way to the page for signing in, which leads back to this page."""
    back = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    way = "/sign-in"
    if request.method in {"GET", "HEAD"} and back != "/":
        way += f"?back={quote(back, safe='')}"
    return RedirectResponse(way, status_code=303, headers=PAGE_HEADERS)


def check_origin(request: Request) -> None:
    """Raise Forbidden for a form that a page of another site has sent."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    # A browser sends at least one of the two with every form; other programs may send neither.
    if site not in {None, "same-origin"} or (
        origin is not None and urlsplit(origin).netloc != request.headers.get("host")
    ):
        raise Forbidden("of this site: the form came from another one")


async def read_form(request: Request, deps: Dependencies) -> Mapping[str, list[str]]:
    """Return the fields of a posted form."""
    with deps.request_memory.hold(deps.caller_name) as held:
        seconds = deps.settings.request_body_timeout
        bounded = await read_body(request, SMALL, deps.request_memory, held, seconds)
        body = await bounded.body()
    try:
        fields = parse_qs(
            body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict"
        )
    except ValueError:
        raise InvalidRequest("form", "cannot be read", legal="fields in UTF-8") from None
    if any("\0" in text for texts in fields.values() for text in texts):
        raise InvalidRequest("form", "contains a NUL character", legal="text without NUL")
    # Browsers send the ends of lines of a text area as CRLF.
    return {name: [text.replace("\r\n", "\n") for text in texts] for name, texts in fields.items()}


def failure_page(request: Request, error: Exception) -> Response:
    """Return the page of an error; an unexpected one is logged and shows no details."""
    deps: Dependencies = request.app.state.dependencies
    if isinstance(error, Unauthenticated):
        return to_sign_in(request)
    if isinstance(error, HTTPException):
        known = error.status_code == HTTPStatus.NOT_FOUND
        message = "There is no such page." if known else as_sentence(error.detail)
        return message_page(request, error.status_code, message)
    if isinstance(error, DataError):
        error = InvalidRequest("request", "has a value that the database cannot store")
    elif isinstance(error, DatabaseUnreachable | PoolExhausted) or is_transient(error):
        deps.log_throttle.emit(LogEvent.DATABASE_UNREACHABLE, error=str(error).strip())
        error = Unavailable()
    if isinstance(error, Refused):
        headers = {} if error.retry_after is None else {"Retry-After": f"{error.retry_after:.0f}"}
        return message_page(request, error.status, as_sentence(error.message), headers)
    deps.log_throttle.emit(
        LogEvent.REQUEST_FAILED,
        method=request.method,
        path=request.url.path,
        error=f"{type(error).__name__}: {error}",
    )
    return message_page(request, 500, "The service failed unexpectedly. The error was logged.")


def message_page(
    request: Request, status: int, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a page that needs no database: a title, one sentence and the way home."""
    theme = cookies.read_choice(request, "theme")
    text = render(
        "message.html",
        title=HTTPStatus(status).phrase,
        message=message,
        status=status,
        theme=theme if theme in THEMES else THEMES[0],
    )
    return HTMLResponse(text, status_code=status, headers={**PAGE_HEADERS, **(headers or {})})


def as_sentence(message: str) -> str:
    """Return a message of the API as a sentence.

    >>> as_sentence("no such task")
    'No such task.'
    """
    text = message[:1].upper() + message[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."
