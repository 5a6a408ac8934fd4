"""Several API processes on one listening socket; Linux gives a new connection to one that is idle.

Each process has its own connections, event feed and long polls. A process that ends is replaced.
"""

import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess

from overnight_server.settings import Settings
from overnight_server.telemetry import LogEvent, configure, emit

PAUSE_BEFORE_RESTART_SECONDS = 1.0
#: Longer than a process needs to end its open requests.
STOP_SECONDS = 15.0


def serve_in_processes(settings: Settings, listener: socket.socket) -> None:
    """Serve the API in `settings.api_processes` processes until SIGTERM or SIGINT."""
    configure(settings.log_format, settings.log_level, "api")
    # A SIGTERM is not a failure.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    children: list[SpawnProcess] = []
    try:
        while True:
            missing = settings.api_processes - len(children)
            children += [_start(settings, listener) for _ in range(missing)]
            wait([child.sentinel for child in children])
            ended = [child for child in children if not child.is_alive()]
            for child in ended:
                error = f"process {child.pid} ended; another one is started"
                emit(LogEvent.SERVICE_FAILED, role="api", code=child.exitcode, error=error)
                children.remove(child)
            time.sleep(PAUSE_BEFORE_RESTART_SECONDS)
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.join(STOP_SECONDS)
            child.kill()


def _start(settings: Settings, listener: socket.socket) -> SpawnProcess:
    # Spawned, not forked: a copy of this process could hold locks of threads that it does not have.
    child = multiprocessing.get_context("spawn").Process(
        target=_serve_beside_parent, args=(settings, listener)
    )
    child.start()
    return child


def _serve_beside_parent(settings: Settings, listener: socket.socket) -> None:
    # Imported here, so that the parent does not load the API.
    from overnight_server.api.server import serve  # noqa: PLC0415

    threading.Thread(target=_end_with_parent, daemon=True).start()
    serve(settings, listener)


def _end_with_parent() -> None:
    """Stop this process when its parent has ended, even if the parent was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
