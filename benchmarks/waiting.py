"""Waiting for something that other processes bring about, without taking their time."""

import time
from collections.abc import Callable


class TookTooLong(Exception):
    """What was waited for did not happen."""


def wait_until(
    happened: Callable[[], bool], *, what: str, timeout: float = 120, pause: float = 0.01
) -> None:
    """Look every `pause` seconds until it has happened."""
    deadline = time.monotonic() + timeout
    while not happened():
        if time.monotonic() > deadline:
            raise TookTooLong(f"waited {timeout:g} s in vain for {what}")
        time.sleep(pause)
