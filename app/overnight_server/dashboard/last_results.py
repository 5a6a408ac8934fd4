"""The last result of what takes long, so that a page shows one at once, with its age.

A forecast or the report of fairness takes seconds, and so do the hours of a month if a user ran
much. A page shows the last result that this process has made. If that is old, or if there is none,
a newer one is made after the page was sent, with a connection and a thread for that, and the part
of the page that shows it asks again until the newer one is there.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from datetime import datetime
from threading import Lock
from typing import Any, Generic, TypeVar

from overnight.errors import Refused
from overnight_server.api.http.dependencies import Dependencies
from overnight_server.store.db import DATABASE_ERRORS

T = TypeVar("T")
#: A forecast of fifty tasks takes about a hundred kilobytes.
MOST_RESULTS = 500


@dataclass(frozen=True)
class LastResult(Generic[T]):
    """A result and when it was made; `is_coming`: a newer one is being made."""

    value: T
    made_at: datetime
    is_coming: bool = False


@dataclass(frozen=True)
class WantedResult:
    """A result that is to be made after the response: its key, and what makes it."""

    key: Hashable
    make: Callable[[], LastResult[Any]]


class LastResults:
    """The last results of this process; those that were made longest ago make room for new ones.

    >>> results = LastResults(most=1)
    >>> for key in ("first", "second"):
    ...     results.keep(key, LastResult(key, datetime(2026, 11, 17)))
    >>> results.of("first") is None, results.of("second").value
    (True, 'second')
    """

    def __init__(self, most: int = MOST_RESULTS) -> None:
        self._most = most
        self._kept: OrderedDict[Hashable, LastResult[Any]] = OrderedDict()
        self._being_made: set[Hashable] = set()
        self._lock = Lock()

    def of(self, key: Hashable) -> LastResult[Any] | None:
        """Return the last result of a key, if one is kept; that of a user's result has the user."""
        with self._lock:
            return self._kept.get(key)

    def keep(self, key: Hashable, result: LastResult[Any]) -> None:
        """Keep a result as the last of its key."""
        with self._lock:
            self._kept[key] = result
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)

    def is_being_made(self, key: Hashable) -> bool:
        """Whether a newer result of a key is being made."""
        with self._lock:
            return key in self._being_made

    def begin(self, key: Hashable) -> bool:
        """Whether nobody makes a result of this key; from now on the caller does."""
        with self._lock:
            is_first = key not in self._being_made
            self._being_made.add(key)
            return is_first

    def end(self, key: Hashable) -> None:
        """Say that the result of this key is no longer being made."""
        with self._lock:
            self._being_made.discard(key)


async def make_results(
    results: LastResults, deps: Dependencies, wanted: Collection[WantedResult]
) -> None:
    """Make results one after the other; a result that cannot be made now is left as it is.

    The page says how old that is, and a later visit tries again.
    """
    deps.db = deps.expensive.db.acting_for(deps.acting_user)
    for one in wanted:
        if not results.begin(one.key):
            continue
        try:
            with deps.expensive.place(deps.caller_name):
                results.keep(one.key, await deps.expensive.call_later(one.make))
        except (Refused, *DATABASE_ERRORS):
            continue
        finally:
            results.end(one.key)
