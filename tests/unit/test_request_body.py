"""The limits of JSON before it is parsed, and the memory of requests in progress."""

import json

import pytest

from overnight.errors import InvalidRequest, Overloaded, TooManyRequests
from overnight_server.api.http.request_body import MAX_DEPTH, SMALL, check_json
from overnight_server.api.http.request_memory import (
    MAX_UNREAD_BODIES,
    UNCOUNTED_BYTES,
    RequestMemory,
)

MEGABYTE = 1024 * 1024


def nested(depth: int) -> bytes:
    return b'[{"a":' * (depth // 2) + b"1" + b"}]" * (depth // 2)


@pytest.mark.parametrize(
    "body",
    [
        nested(MAX_DEPTH),
        # Commas and brackets inside strings are no values.
        json.dumps({"csv": "1,2,3\n" * 200_000, "quoted": '[{"' * 1_000}).encode(),
        json.dumps(list(range(100_000))).encode(),
        # Not JSON: the parser says what is wrong with it.
        b"[" * 300_000,
        b'"' * 300_001,
        b'"\\"' + b'\\"' * 500_000,
        b"\\" * 1_000_000,
        b"",
    ],
)
def test_legal_bodies_and_bodies_that_are_not_json_are_left_to_the_parser(body: bytes) -> None:
    assert check_json(body, SMALL.max_marks) <= SMALL.max_marks


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (nested(MAX_DEPTH + 2), "nested too deeply"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "nested too deeply"),
        (b"[" + b"[]," * 300_000 + b"[]]", "too many values"),
        (b"[" + b"0," * 500_000 + b"0]", "too many values"),
    ],
)
def test_deep_and_wide_bodies_are_refused(body: bytes, error: str) -> None:
    with pytest.raises(InvalidRequest, match=error):
        check_json(body, SMALL.max_marks)


def test_memory_is_limited_for_each_caller_and_in_all() -> None:
    memory = RequestMemory(4 * MEGABYTE)
    with memory.hold("ada") as ada, memory.hold("ada") as more, memory.hold("bob") as bob:
        ada.grow_to(2 * MEGABYTE)
        with pytest.raises(TooManyRequests):
            more.grow_to(UNCOUNTED_BYTES + 1)
        more.grow_to(UNCOUNTED_BYTES)
        bob.grow_to(MEGABYTE)
        bob.grow_to(2 * MEGABYTE)
        with memory.hold("eve") as eve, pytest.raises(Overloaded):
            eve.grow_to(MEGABYTE)

    with memory.hold("eve") as eve:
        eve.grow_to(2 * MEGABYTE)


def test_the_bodies_of_a_caller_that_have_not_arrived_are_limited() -> None:
    memory = RequestMemory(MEGABYTE)
    bodies = [memory.unread_body("ada") for _ in range(MAX_UNREAD_BODIES)]
    for body in bodies:
        body.__enter__()

    with pytest.raises(TooManyRequests), memory.unread_body("ada"):
        pass
    with memory.unread_body("bob"):
        pass
    bodies.pop().__exit__(None, None, None)
    with memory.unread_body("ada"):
        pass
