"""What a worker process has, in the process of a test: its resources, and a handler for a test."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from overnight.handlers import registry
from overnight_server.settings import Settings
from overnight_server.store.db import Db
from overnight_server.wakeups.wake import Waker
from overnight_worker.load_handlers import load_handlers
from overnight_worker.resources import WorkerResources

# A run needs no Redis.
NOWHERE = "redis://127.0.0.1:1/0"


@contextmanager
def worker_resources(settings: Settings, db: Db) -> Iterator[WorkerResources]:
    """Load the demo handlers and yield the resources of a worker process."""
    load_handlers((), demo=True)
    waker = Waker(NOWHERE)
    yield WorkerResources(settings, db, waker)
    waker.close()


@contextmanager
def handler_of_test() -> Iterator[Callable[[registry.HandlerFunction], None]]:
    """Yield a function that registers a handler for type `test`, which is removed at the end."""

    def register(function: registry.HandlerFunction) -> None:
        registry._handlers["test"] = registry.Handler("test", function)

    yield register
    registry._handlers.pop("test", None)
