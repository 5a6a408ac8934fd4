"""Sign in and out: with an API key, a token, or the link that `overnight open` prints.

A key is sent in a form, never in an address. All failures have the same answer, and attempts are
limited for each address from which they come. A link is opened with a form too, so that a program
which only follows the link does not use it up.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from threading import Lock

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from overnight.errors import TooManyRequests
from overnight_server.api.http.authentication import authenticate_secret
from overnight_server.api.http.dependencies import Dependencies
from overnight_server.control.sessions import end_session, open_link, open_session
from overnight_server.dashboard import cookies
from overnight_server.dashboard.headers import PAGE_HEADERS
from overnight_server.dashboard.render import render
from overnight_server.dashboard.serve import check_origin, failure_page, find_visitor, read_form
from overnight_server.dashboard.visit import THEMES, own_path

FAILED = "This key or link is not valid. Nobody was signed in."
INSECURE = (
    "Over plain HTTP, only a browser on the machine of the service may sign in: anybody on the way"
    " could read the key. Open the dashboard over HTTPS, or through an SSH tunnel."
)
MAX_SECRET_LENGTH = 10_000
ATTEMPTS, WINDOW_SECONDS = 10, 60.0
MAX_ADDRESSES = 10_000


@dataclass
class AttemptLimit:
    """Allows each address ten attempts to sign in a minute, in this process."""

    clock: Callable[[], float] = time.monotonic
    _attempts: OrderedDict[str, tuple[float, int]] = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    def take(self, address: str) -> None:
        """Count an attempt; raise TooManyRequests if there were too many."""
        with self._lock:
            now = self.clock()
            began_at, count = self._attempts.pop(address, (now, 0))
            if now - began_at >= WINDOW_SECONDS:
                began_at, count = now, 0
            self._attempts[address] = (began_at, count + 1)
            if len(self._attempts) > MAX_ADDRESSES:
                self._attempts.popitem(last=False)
        if count >= ATTEMPTS:
            seconds = max(1, round(began_at + WINDOW_SECONDS - now))
            raise TooManyRequests(seconds, {}, "too many attempts to sign in from this address")


async def show_sign_in(request: Request) -> Response:
    """Show the form for an API key or a token."""
    return _form(request)


async def show_link(request: Request) -> Response:
    """Show the form of a sign-in link; a script sends it at once."""
    return _form(request, link=request.path_params["link"])


async def sign_in(request: Request) -> Response:
    """Open a session for the key, token or link of a form."""
    try:
        return await _sign_in(request)
    except Exception as error:  # noqa: BLE001 - a browser gets a page whatever fails
        return failure_page(request, error)


async def _sign_in(request: Request) -> Response:
    deps = replace(request.app.state.dependencies)
    check_origin(request)
    if not cookies.may_keep_session(request):
        return _form(request, INSECURE, status=403)
    limit: AttemptLimit = request.app.state.sign_in_limit
    limit.take(request.client.host if request.client else "")
    form = await read_form(request, deps)
    secret, link = (form.get(name, [""])[0].strip() for name in ("key", "link"))
    back = own_path(form.get("back", ["/"])[0])
    browser = request.headers.get("user-agent", "")
    cookie = await run_in_threadpool(_open, deps, secret, link, browser)
    if cookie is None:
        return _form(request, FAILED, status=401, back=back)
    response = RedirectResponse(back, status_code=303, headers=PAGE_HEADERS)
    cookies.set_session_cookie(request, response, cookie)
    return response


def _open(deps: Dependencies, secret: str, link: str, browser: str) -> str | None:
    """Return the cookie of a new session, or None if key, token or link are not valid."""
    if link:
        return open_link(deps.db, link, browser)
    if not secret or len(secret) > MAX_SECRET_LENGTH or not secret.isascii():
        return None
    caller = authenticate_secret(deps, secret)
    if caller is None:
        return None
    return open_session(deps.db.acting_for(caller.served), caller, browser)


async def sign_out(request: Request) -> Response:
    """End the session of this browser."""
    try:
        check_origin(request)
        deps = replace(request.app.state.dependencies)
        visitor = await run_in_threadpool(find_visitor, request, deps)
        if visitor is not None and visitor.session_id is not None:
            db = deps.db.acting_for(visitor.caller.served)
            await run_in_threadpool(end_session, db, visitor.caller.user_id, visitor.session_id)
    except Exception as error:  # noqa: BLE001 - a browser gets a page whatever fails
        return failure_page(request, error)
    response = RedirectResponse("/sign-in", status_code=303, headers=PAGE_HEADERS)
    cookies.delete_session_cookie(request, response)
    return response


def _form(
    request: Request, problem: str = "", *, status: int = 200, link: str = "", back: str = ""
) -> Response:
    theme = cookies.read_choice(request, "theme")
    text = render(
        "sign_in.html",
        title="Sign in",
        problem=problem or ("" if cookies.may_keep_session(request) else INSECURE),
        link=link[:200],
        back=back or own_path(request.query_params.get("back", "/")),
        theme=theme if theme in THEMES else THEMES[0],
        takes_tokens=bool(request.app.state.dependencies.settings.jwt_algorithms),
    )
    return HTMLResponse(text, status_code=status, headers=PAGE_HEADERS)
