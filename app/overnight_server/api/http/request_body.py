"""Read the body of an admitted request: within a size, a time, a memory budget and a JSON depth.

The limits of the JSON apply before it is parsed. A parsed value takes many times the bytes of its
text: `[[],[],[]` has three bytes for each list, which takes sixty.
"""

import asyncio
import re
from dataclasses import dataclass
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from overnight.errors import InvalidRequest, RequestTimedOut
from overnight_server.api.http.request_memory import HeldMemory, RequestMemory

MAX_DEPTH: Final = 100
#: The memory that a mark (a comma, a colon, an opening bracket or brace) stands for.
BYTES_PER_MARK: Final = 128
#: The body as it arrived, and as text or in parts.
COPIES: Final = 2
MARKS: Final = (b",", b":", b"[", b"{")
# The last quote is optional: without it, a text of open strings would be searched again and again.
_STRINGS: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_NOT_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_BRACES_AS_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
# Nineteen digits are enough for the comparison; parsing a longer number costs time.
_LENGTH_DIGITS: Final = 19


@dataclass(frozen=True)
class BodyLimit:
    """The largest body of a route: its bytes, and the marks of its JSON."""

    max_bytes: int
    max_marks: int


SMALL: Final = BodyLimit(1024 * 1024, 400_000)
#: A graph is submitted in one request, so its body may be larger. So may that of an artifact; a
#: setting limits the size of the artifact itself.
LARGE: Final = BodyLimit(16 * 1024 * 1024, 2_000_000)
#: What the largest body needs: the budget of a caller must have room for it.
MAX_BODY_MEMORY: Final = COPIES * LARGE.max_bytes + BYTES_PER_MARK * LARGE.max_marks


async def read_body(
    request: Request, limit: BodyLimit, memory: RequestMemory, held: HeldMemory, seconds: float
) -> Request:
    """Read the body of a request; return the request with its body.

    Raises HTTPException 413 for a larger body and 400 if the client leaves before it has arrived,
    RequestTimedOut if it does not arrive in time, InvalidRequest for JSON with too many or too
    deeply nested values, and what `RequestMemory.add` raises.
    """
    declared = request.headers.get("content-length", "")[:_LENGTH_DIGITS]
    size = int(declared) if declared.isascii() and declared.isdigit() else None
    if size is not None and size > limit.max_bytes:
        raise _too_large(limit)
    if size is None and "transfer-encoding" not in request.headers:
        # Then there is no body.
        return request
    held.grow_to(COPIES * (limit.max_bytes if size is None else size))
    # The route reads the body from this request again; it is kept after it was read.
    bounded = Request(request.scope, _bounded(request.receive, limit))
    try:
        with memory.unread_body(held.caller):
            async with asyncio.timeout(seconds):
                body = await bounded.body()
    except TimeoutError:
        raise RequestTimedOut(seconds) from None
    except ClientDisconnect:
        # Nobody reads the response; it only ends the request.
        raise HTTPException(400, "the connection was closed before the body arrived") from None
    marks = check_json(body, limit.max_marks)
    held.grow_to(COPIES * len(body) + BYTES_PER_MARK * marks)
    return bounded


def check_json(body: bytes, max_marks: int) -> int:
    """Return how many marks a JSON text has, at most.

    Raises InvalidRequest if it has more than `max_marks`, or values nested more than MAX_DEPTH
    deep. A text that is not JSON is left to the parser.

    >>> check_json(b'{"a": [1, 2, 3]}', 10)
    5
    """
    marks = sum(map(body.count, MARKS))
    # Strings count too, up to here: most bodies are far below the limits and need no closer look.
    if marks <= MAX_DEPTH:
        return marks
    outside = _STRINGS.sub(b"", body)
    marks = sum(map(outside.count, MARKS))
    if marks > max_marks:
        raise InvalidRequest(
            "body", "has too many values", legal=f"at most {max_marks} commas, colons and brackets"
        )
    if _is_too_deep(outside.translate(_BRACES_AS_BRACKETS, _NOT_BRACKETS)):
        raise InvalidRequest(
            "body", "is nested too deeply", legal=f"at most {MAX_DEPTH} levels of lists and objects"
        )
    return marks


def _is_too_deep(brackets: bytes) -> bool:
    """Whether brackets are nested more than MAX_DEPTH deep; each round removes the innermost."""
    for _ in range(MAX_DEPTH):
        inner = brackets.replace(b"[]", b"")
        if len(inner) == len(brackets):
            # Nothing is left, or the text is not JSON.
            return False
        brackets = inner
    return bool(brackets)


def _bounded(receive: Receive, limit: BodyLimit) -> Receive:
    received = 0

    async def receive_within_limit() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit.max_bytes:
            raise _too_large(limit)
        return message

    return receive_within_limit


def _too_large(limit: BodyLimit) -> HTTPException:
    detail = f"the request body is too large; the limit is {limit.max_bytes} bytes"
    return HTTPException(413, detail)
