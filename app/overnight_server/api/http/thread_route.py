"""The route class of the API: a request occupies one worker thread, once."""

from collections.abc import Awaitable, Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool


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


def _in_thread(endpoint: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    @wraps(endpoint)
    async def call(**values: Any) -> Any:  # noqa: ANN401 - the function's own arguments
        return await run_in_threadpool(endpoint, **values)

    return call
