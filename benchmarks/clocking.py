"""Timing calls: one after the other, or from several processes at once."""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self, TypeVar

from app.store.db import DISPATCHER, Db
from benchmarks.ours import PATIENT

T = TypeVar("T")


@dataclass
class Stopwatch:
    """Adds up the time of many blocks and how much was done in them."""

    seconds: list[float] = field(default_factory=list)
    done: int = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Time a block."""
        began = time.perf_counter()
        yield
        self.seconds.append(time.perf_counter() - began)

    @property
    def last_ms(self) -> float:
        """How long the last block took."""
        return self.seconds[-1] * 1000

    @property
    def rate(self) -> float:
        """What was done a second."""
        return self.done / sum(self.seconds)


_db: Db | None = None


def _connect(url: str) -> None:
    global _db  # noqa: PLW0603 - one connection for each process of the crew
    _db = Db.connect(url, role=DISPATCHER, application_name="overnight-bench", timeouts=PATIENT)
    with _db.engine.begin() as tx:
        tx.exec_driver_sql("SELECT 1")


def _work(job: tuple[Callable[[Db, Sequence[T]], None], Sequence[T]]) -> tuple[float, float]:
    function, share = job
    if _db is None:
        raise RuntimeError("the process was not connected")
    began = time.monotonic()
    function(_db, share)
    return began, time.monotonic()


def _ready(pause: float) -> None:
    time.sleep(pause)


class Crew:
    """Processes with a connection each, because threads would wait for one interpreter."""

    def __init__(self, url: str, size: int) -> None:
        self.size = size
        # Spawned, not forked: a copy of this process would hold the servers' guards open.
        self._pool = ProcessPoolExecutor(
            size,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_connect,
            initargs=(url,),
        )
        # Long enough for each process to take one, so that all are connected before the clock runs.
        list(self._pool.map(_ready, [0.2] * size))

    def seconds(self, function: Callable[[Db, Sequence[T]], None], work: Sequence[T]) -> float:
        """Share the work out in turns; return how long it took until the last was done."""
        shares = [work[start :: self.size] for start in range(self.size)]
        spans = list(self._pool.map(_work, [(function, share) for share in shares]))
        return max(ended for _, ended in spans) - min(began for began, _ in spans)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
