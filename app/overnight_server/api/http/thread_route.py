"""The route class of the API: headers, then body, then one worker thread.

A request is judged by its headers first. Its body is read and parsed only if it is admitted. Routes
that compute for long have threads and connections to Postgres of their own, so that others do not
wait for them.
"""

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import partial, wraps
from inspect import iscoroutinefunction
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

from overnight_server.api.http.admission import admission_of
from overnight_server.api.http.dependencies import Dependencies
from overnight_server.api.http.request_body import LARGE, SMALL, read_body

GRAPH_PATHS = "/api/v1/dags"
ARTIFACT_PATHS = "/artifacts"
#: How many requests of the rate limit a request of an expensive route counts as.
EXPENSIVE_COST = 20
_IS_EXPENSIVE = "is_expensive"
E = TypeVar("E", bound=Callable[..., Any])


def expensive(endpoint: E) -> E:
    """Mark the function of a route that computes for long: forecasts, plans, reports.

    It must have a parameter `deps`, whose `db` then uses the connections for such routes.
    """
    setattr(endpoint, _IS_EXPENSIVE, True)
    return endpoint


class ThreadRoute(APIRoute):
    """A route whose function is called in a worker thread, unless it is a coroutine function.

    FastAPI would hand the result to a second worker thread for validation. The results are
    instances of the models already, so that their validation takes less time than the change of
    threads.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:  # noqa: ANN401 - FastAPI's options
        super().__init__(
            path, endpoint if iscoroutinefunction(endpoint) else _in_thread(endpoint), **options
        )

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the function that serves a request: it admits, reads the body, and calls."""
        call = super().get_route_handler()
        admission = admission_of(self.dependant)
        has_body = self.body_field is not None
        is_large = self.path.startswith(GRAPH_PATHS) or self.path.endswith(ARTIFACT_PATHS)
        limit = LARGE if is_large else SMALL
        is_expensive = hasattr(self.endpoint, _IS_EXPENSIVE)
        cost = EXPENSIVE_COST if is_expensive else 1

        async def serve(request: Request) -> Response:
            shared: Dependencies = request.app.state.dependencies
            deps = request.state.dependencies = replace(shared)
            if admission is not None:
                request.state.admitted = await admission.admit(request, deps, cost)
            if not is_expensive:
                return await respond(request, deps)
            deps.db = deps.expensive.db.acting_for(deps.acting_user)
            with deps.expensive.place(deps.caller_name):
                return await respond(request, deps)

        async def respond(request: Request, deps: Dependencies) -> Response:
            if not has_body:
                return await call(request)
            with deps.request_memory.hold(deps.caller_name) as held:
                seconds = deps.settings.request_body_timeout
                return await call(
                    await read_body(request, limit, deps.request_memory, held, seconds)
                )

        return serve


def _in_thread(endpoint: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    if not hasattr(endpoint, _IS_EXPENSIVE):

        @wraps(endpoint)
        async def call(**values: Any) -> Any:  # noqa: ANN401 - the function's own arguments
            return await run_in_threadpool(endpoint, **values)

        return call

    @wraps(endpoint)
    async def call_expensive(deps: Dependencies, **values: Any) -> Any:  # noqa: ANN401 - the function's own arguments
        return await deps.expensive.call(partial(endpoint, deps=deps, **values))

    return call_expensive
