"""The route class of the API: headers, then body, then one worker thread.

A request is judged by its headers first. Its body is read and parsed only if it is admitted.
"""

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

from overnight_server.api.http.admission import admission_of
from overnight_server.api.http.dependencies import Dependencies
from overnight_server.api.http.request_body import LARGE, SMALL, read_body

GRAPH_PATHS = "/api/v1/dags"
ARTIFACT_PATHS = "/artifacts"
#: How many requests of the rate limit one request counts as.
COST = 1


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

        async def serve(request: Request) -> Response:
            shared: Dependencies = request.app.state.dependencies
            deps = request.state.dependencies = replace(shared)
            if admission is not None:
                request.state.admitted = await admission.admit(request, deps, COST)
            if not has_body:
                return await call(request)
            with deps.request_memory.hold(deps.caller_name) as held:
                seconds = deps.settings.request_body_timeout
                return await call(
                    await read_body(request, limit, deps.request_memory, held, seconds)
                )

        return serve


def _in_thread(endpoint: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    @wraps(endpoint)
    async def call(**values: Any) -> Any:  # noqa: ANN401 - the function's own arguments
        return await run_in_threadpool(endpoint, **values)

    return call
