"""What is not a route: unknown paths, and methods that a path does not support.

They need a key like every route, so that nobody learns without one which routes exist. A user who
is not an admin gets the same response for a route for admins, with any method, as for a path that
does not exist.
"""

from dataclasses import replace
from http import HTTPStatus

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from overnight_server.api.http.authentication import ANYBODY_WITH_A_KEY
from overnight_server.api.http.openapi import ADMIN_PATHS, methods_of


class UnknownPath:
    """The application behind the last route, which matches every path and method."""

    async def __call__(self, scope: Scope, receive: Receive, _send: Send) -> None:
        """Raise HTTPException 404 or 405, and Unauthenticated without a valid key."""
        request = Request(scope, receive)
        deps = replace(request.app.state.dependencies)
        caller = await ANYBODY_WITH_A_KEY.admit(request, deps, cost=1)
        path = request.url.path
        is_hidden = path.startswith(ADMIN_PATHS) and not caller.is_operator
        if is_hidden or not methods_of(request.app, path):
            raise HTTPException(HTTPStatus.NOT_FOUND)
        raise HTTPException(HTTPStatus.METHOD_NOT_ALLOWED)
