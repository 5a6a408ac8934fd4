"""Answering a list a page at a time: how many, from where on, and how to ask for the next."""

from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

from fastapi import Query, Request, Response

T = TypeVar("T")
PAGE = 50
MAX_PAGE = 100
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="How many at most.")]
Before = Annotated[
    str | None, Query(max_length=200, description="The X-Next-Cursor of the page before.")
]


def page_of(
    request: Request,
    response: Response,
    found: Sequence[T],
    limit: int,
    cursor: Callable[[T], str | int],
) -> list[T]:
    """Cut what was found to a page; one more than asked for says that another follows."""
    page = list(found[:limit])
    if len(found) > limit:
        following = str(cursor(page[-1]))
        url = request.url.include_query_params(before=following)
        response.headers["X-Next-Cursor"] = following
        response.headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
    return page
