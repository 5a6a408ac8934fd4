"""Lets a process compute one thing of a user at a time; equal requests share one answer.

A forecast takes about a second of one core, two in a very large deployment, and an explanation many
reads. Without this, one user's many requests would compute the same thing many times while others
wait. Each API process counts for itself: with `api --processes N` at most N forecasts of one user
are computed at once, one in each process. That is bounded by what the operator chose; to share
answers between processes they would have to be stored, which costs more than it saves.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from threading import Lock
from typing import Any, TypeVar

from overnight.errors import TooManyRequests

T = TypeVar("T")
RETRY_AFTER_SECONDS = 1


class OneAtATime:
    """The computations in progress, by user and by what is computed.

    So many different computations of one user may wait (`max_waiting`); the next one is refused.
    """

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._lock = Lock()
        self._in_progress: dict[tuple[Hashable, Hashable], Future[Any]] = {}
        self._turns: dict[Hashable, Lock] = {}
        self._callers: Counter[Hashable] = Counter()

    def compute(self, user: Hashable, what: Hashable, work: Callable[[], T]) -> T:
        """Return what `work` returns, or what an equal computation that is in progress returns.

        A different computation of the same user waits for its turn. Raises what `work` raises,
        also to those that share it, and TooManyRequests if too many of the user wait already.
        """
        key = (user, what)
        with self._lock:
            shared = self._in_progress.get(key)
            if shared is None:
                if self._callers[user] > self._max_waiting:
                    raise TooManyRequests(RETRY_AFTER_SECONDS, {})
                own: Future[T] = Future()
                self._in_progress[key] = own
                self._callers[user] += 1
                turn = self._turns.setdefault(user, Lock())
        if shared is not None:
            answer: T = shared.result()
            return answer
        try:
            with turn:
                result = work()
        except BaseException as error:
            self._finish(key)
            own.set_exception(error)
            raise
        self._finish(key)
        own.set_result(result)
        return result

    def _finish(self, key: tuple[Hashable, Hashable]) -> None:
        """Forget a computation: a request that comes now begins a new one."""
        user, _ = key
        with self._lock:
            del self._in_progress[key]
            self._callers[user] -= 1
            if not self._callers[user]:
                del self._callers[user], self._turns[user]
