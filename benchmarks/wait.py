"""Waits for what other processes do, with pauses that leave them the processor."""

import time
from collections.abc import Callable


class WaitTimedOut(Exception):
    """The condition did not become true."""


def wait_until(
    happened: Callable[[], bool], *, what: str, timeout: float = 120, pause: float = 0.01
) -> None:
    """Check every `pause` seconds until the condition is true."""
    deadline = time.monotonic() + timeout
    while not happened():
        if time.monotonic() > deadline:
            raise WaitTimedOut(f"waited {timeout:g} s in vain for {what}")
        time.sleep(pause)


def wait_for_count(
    count: Callable[[], int],
    wanted: int,
    *,
    what: str,
    stall_seconds: float = 30,
    pause: float = 0.01,
) -> None:
    """Check until a count is reached; raise if it has not changed for `stall_seconds`."""
    seen, since = count(), time.monotonic()
    while seen < wanted:
        time.sleep(pause)
        now = count()
        if now != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > stall_seconds:
            raise WaitTimedOut(f"{what}: stuck at {seen} of {wanted} for {stall_seconds:g} s")
