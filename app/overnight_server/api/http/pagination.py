"""Answering a list a page at a time: how many, from where on, and how to ask for the next."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import Query, Request, Response

from overnight_server.api.http.path_params import MOST_DIGITS

T = TypeVar("T")
PAGE = 50
MAX_PAGE = 100
LONGEST_CURSOR = 200
# A name of a hundred characters, each of them percent-encoded.
LONGEST_NAME = 1200
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="How many at most.")]
_LAST = "The X-Next-Cursor of the page before."
_ULID = "[0-7][0-9A-HJKMNP-TV-Z]{25}$"


def _cursor(pattern: str) -> Any:  # noqa: ANN401 - what stands for a default of FastAPI's
    # The form is described here and judged in `naming`, where a refusal says what would do.
    extra = {"pattern": pattern}
    return Query(max_length=LONGEST_CURSOR, description=_LAST, json_schema_extra=extra)


BeforeTask = Annotated[str | None, _cursor(f"^task_{_ULID}")]
BeforeDag = Annotated[str | None, _cursor(f"^dag_{_ULID}")]
BeforeBulk = Annotated[str | None, _cursor(f"^bulk_{_ULID}")]
BeforeNumber = Annotated[str | None, _cursor(f"^[0-9]{{1,{MOST_DIGITS}}}$")]
BeforeName = Annotated[str | None, Query(max_length=LONGEST_NAME, description=_LAST)]


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
