"""Simulates nights in a process of its own, so that a forecast delays no other request.

A simulation computes for up to a second. In a thread of the API it would hold the interpreter lock,
and every other request would wait for it at each of its steps. The process is started with the
first forecast; it has no secret and no connection, and it ends when the API's end of its pipe is
closed, whatever closes it.
"""

import os
import pickle
import select
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from threading import Lock
from typing import IO, Final
from uuid import UUID

from overnight.errors import Overloaded
from overnight_server.forecast.distribution import Distribution, simulate_nights
from overnight_server.forecast.durations import ObservedDurations
from overnight_server.forecast.simulation import Snapshot

#: A simulation is bounded by its number of starts; one that takes longer has a machine too busy.
MAX_SECONDS: Final = 30.0
RETRY_AFTER_SECONDS: Final = 5
#: The other requests come first if there are too few processors.
NICENESS: Final = 5


class SimulationProcess:
    """A process that simulates, one request at a time; it is started again if it has ended."""

    def __init__(self, max_seconds: float = MAX_SECONDS) -> None:
        self.max_seconds = max_seconds
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def simulate(
        self, snapshot: Snapshot, observed: ObservedDurations, tasks: Collection[UUID]
    ) -> Distribution:
        """Return what `simulate_nights` returns; raise Overloaded if the process gives no result.

        The process is then killed, and the next call starts another one.
        """
        with self._lock:
            try:
                return self._send(pickle.dumps((snapshot, observed, tasks)))
            except (OSError, EOFError):
                self._kill()
                raise Overloaded("the forecast took too long", RETRY_AFTER_SECONDS) from None

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._kill()

    def _send(self, request: bytes) -> Distribution:
        deadline = time.monotonic() + self.max_seconds
        process = self._running()
        requests, responses = _pipes(process)
        requests.write(request)
        requests.flush()
        # The result is small and comes at once when it is computed.
        if not select.select([responses], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError
        distribution: Distribution = pickle.load(responses)  # noqa: S301 - our own process
        return distribution

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._kill()
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={},
            )
        return self._process

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            # Closes the pipes as well, also if a request is not written whole.
            self._process.communicate()
            self._process = None


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the process was started without pipes")
    return process.stdin, process.stdout


def serve(requests: IO[bytes], responses: IO[bytes]) -> None:
    """Simulate what is requested, until the requests end."""
    while True:
        try:
            snapshot, observed, tasks = pickle.load(requests)  # noqa: S301 - from the API's process
        except EOFError:
            return
        pickle.dump(simulate_nights(snapshot, observed, tasks), responses)
        responses.flush()


if __name__ == "__main__":
    os.nice(NICENESS)
    # Ctrl-C in a terminal reaches this process too, which ends with the API.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(sys.stdin.buffer, sys.stdout.buffer)
