"""Wait for a condition instead of sleeping."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(
    predicate: Callable[[], T], *, timeout: float = 30.0, pause: float = 0.05, what: str = ""
) -> T:
    """Return the first truthy answer of `predicate`, or fail naming what never came true."""
    deadline = time.monotonic() + timeout
    while True:
        answer = predicate()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout} s without success for {what or predicate}")
        time.sleep(pause)
