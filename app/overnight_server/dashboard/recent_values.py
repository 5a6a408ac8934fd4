"""Keeps results that take long for a short time, so that pages which say their age open at once.

A forecast takes seconds, the report of fairness and the hours of a month read each run in their
period. Such a page does not promise the state of this moment: it shows when its figures were made.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, TypeVar

T = TypeVar("T")
MOST_VALUES = 200


class RecentValues:
    """The results of this process, each for some seconds; the oldest make room for new ones.

    >>> values, made = RecentValues(clock=lambda: 0.0), []
    >>> for _ in range(2):
    ...     values.get("figures", lambda: made.append("made"), seconds=60)
    >>> made
    ['made']
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._values: OrderedDict[Hashable, tuple[float, Any]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable, make: Callable[[], T], seconds: float) -> T:
        """Return the value of a key; it is made if there is none, or if it is older than this.

        Callers that ask at the same time may each make it. Keys of a user's values have the user.
        """
        now = self._clock()
        with self._lock:
            made_at, value = self._values.get(key, (now - seconds, None))
        if now - made_at < seconds:
            kept: T = value
            return kept
        made = make()
        with self._lock:
            self._values[key] = (self._clock(), made)
            self._values.move_to_end(key)
            while len(self._values) > MOST_VALUES:
                self._values.popitem(last=False)
        return made
