"""Times of calls: one after the other, or from several processes at once."""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.synchronize import Barrier
from typing import Any, Generic, Self, TypeVar

from benchmarks.deployment import LONG_TIMEOUTS
from overnight_server.store.db import DISPATCHER, Db

C = TypeVar("C")
R = TypeVar("R")
T = TypeVar("T")
#: A process that never came to the start would keep the others waiting for ever.
AT_THE_START = 60


@dataclass
class Stopwatch:
    """Adds up the time of many blocks, and how much was done in them."""

    seconds: list[float] = field(default_factory=list)
    done: int = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Add the time of a block."""
        began = time.perf_counter()
        yield
        self.seconds.append(time.perf_counter() - began)

    @property
    def last_ms(self) -> float:
        """The seconds that the last block took."""
        return self.seconds[-1] * 1000

    @property
    def rate(self) -> float:
        """How much was done in a second."""
        return self.done / sum(self.seconds)


@dataclass(frozen=True)
class GroupRun(Generic[R]):
    """What several processes did at once: the seconds until the last had ended, and each result."""

    seconds: float
    results: Sequence[R]


@dataclass(frozen=True)
class _Place:
    """One of several processes: its connection, and the barrier at which all start."""

    link: Any
    start: Barrier


_place: _Place | None = None


def connect_as_dispatcher(url: str) -> Db:
    """Connect to a deployment with the dispatcher's role."""
    db = Db.connect(
        url, role=DISPATCHER, application_name="overnight-bench", timeouts=LONG_TIMEOUTS
    )
    with db.engine.begin() as tx:
        tx.exec_driver_sql("SELECT 1")
    return db


def _take_place(connect: Callable[[str], object], url: str, start: Barrier) -> None:
    global _place  # noqa: PLW0603 - one connection for each process of the crew
    _place = _Place(connect(url), start)


def _work(job: tuple[Callable[[Any, T], R], T]) -> tuple[float, float, R]:
    function, share = job
    if _place is None:
        raise RuntimeError("the process was not connected")
    _place.start.wait(AT_THE_START)
    began = time.monotonic()
    result = function(_place.link, share)
    return began, time.monotonic(), result


def _nothing(_link: object, _share: None) -> None:
    pass


class ProcessGroup(Generic[C]):
    """Processes with a connection each, because threads would wait for one interpreter."""

    def __init__(self, connect: Callable[[str], C], url: str, size: int) -> None:
        self.size = size
        # Spawned, not forked: a copy of this process would hold the servers' guards open.
        spawning = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(
            size,
            mp_context=spawning,
            initializer=_take_place,
            initargs=(connect, url, spawning.Barrier(size)),
        )
        # All are there and connected before any clock runs.
        self.together(_nothing, [None] * size)

    def together(self, function: Callable[[C, T], R], shares: Sequence[T]) -> GroupRun[R]:
        """Give each process one share; all start at the same moment."""
        if len(shares) != self.size:
            raise ValueError(f"{len(shares)} shares for {self.size} processes")
        spans = list(self._pool.map(_work, [(function, share) for share in shares]))
        seconds = max(ended for _, ended, _ in spans) - min(began for began, _, _ in spans)
        return GroupRun(seconds, [result for _, _, result in spans])

    def seconds(self, function: Callable[[C, Sequence[T]], None], work: Sequence[T]) -> float:
        """Deal the work out in turns; return the seconds until the last process had ended."""
        shares = [work[start :: self.size] for start in range(self.size)]
        return self.together(function, shares).seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
