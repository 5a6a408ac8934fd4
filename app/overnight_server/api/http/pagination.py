"""Pages of a list: the limit, the cursor, and the headers that lead to the next page."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar
from urllib.parse import quote, unquote

from fastapi import Query, Request, Response

from overnight.errors import InvalidRequest
from overnight_server.domain.ids import (
    BulkId,
    DagId,
    MalformedId,
    TaskId,
    parse_bulk,
    parse_dag,
    parse_task,
)

T = TypeVar("T")
PAGE = 50
MAX_PAGE = 100
MAX_CURSOR = 200
# A name has at most 100 characters, and each may need 12 in percent-encoding.
MAX_NAME_CURSOR = 1200
# A number with this many digits fits into every integer column.
MAX_DIGITS = 18
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="The maximum number of items.")]
_DESCRIPTION = "The X-Next-Cursor of the previous page."
_ULID = "[0-7][0-9A-HJKMNP-TV-Z]{25}$"


def _cursor(pattern: str) -> Any:  # noqa: ANN401 - FastAPI types its Query() as Any
    # The pattern only documents the cursor; the functions below check it.
    extra = {"pattern": pattern}
    return Query(max_length=MAX_CURSOR, description=_DESCRIPTION, json_schema_extra=extra)


BeforeTask = Annotated[str | None, _cursor(f"^task_{_ULID}")]
BeforeDag = Annotated[str | None, _cursor(f"^dag_{_ULID}")]
BeforeBulk = Annotated[str | None, _cursor(f"^bulk_{_ULID}")]
BeforeNumber = Annotated[str | None, _cursor(f"^[0-9]{{1,{MAX_DIGITS}}}$")]
BeforeName = Annotated[str | None, Query(max_length=MAX_NAME_CURSOR, description=_DESCRIPTION)]


def paginate(
    request: Request,
    response: Response,
    items: Sequence[T],
    limit: int,
    cursor: Callable[[T], str | int],
) -> list[T]:
    """Return the first `limit` items; if there are more, set the headers of the next page.

    Callers read one item more than `limit`, so that its presence shows that a page follows.
    """
    page = list(items[:limit])
    if len(items) > limit:
        next_cursor = str(cursor(page[-1]))
        url = request.url.include_query_params(before=next_cursor)
        response.headers["X-Next-Cursor"] = next_cursor
        response.headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
    return page


def task_cursor(text: str | None) -> TaskId | None:
    """Return the task before which a page begins; raise InvalidRequest if it is not an id."""
    return _parse_id(parse_task, text)


def bulk_cursor(text: str | None) -> BulkId | None:
    """Return the bulk operation before which a page begins; raise InvalidRequest if malformed."""
    return _parse_id(parse_bulk, text)


def dag_cursor(text: str | None) -> DagId | None:
    """Return the graph before which a page begins; raise InvalidRequest if it is not an id."""
    return _parse_id(parse_dag, text)


def encode_name_cursor(name: str) -> str:
    """Return a name in percent-encoding: a header may contain ASCII only."""
    return quote(name, safe="")


def name_cursor(text: str | None) -> str | None:
    """Return the name after which a page begins; raise InvalidRequest if it cannot be a name."""
    if text is None:
        return None
    name = unquote(text)
    if "\0" in name:
        raise _not_a_cursor()
    return name


def number_cursor(text: str | None) -> int | None:
    """Return the number before which a page begins; raise InvalidRequest if it is not one."""
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
        raise _not_a_cursor()
    return int(text)


def _parse_id(parse: Callable[[str], T], text: str | None) -> T | None:
    if text is None:
        return None
    try:
        return parse(text)
    except MalformedId:
        raise _not_a_cursor() from None


def _not_a_cursor() -> InvalidRequest:
    return InvalidRequest(
        "before", "is not a cursor", legal="the X-Next-Cursor of the previous page"
    )
