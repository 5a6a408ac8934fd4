"""Simulates nights in a process of its own, so that a forecast delays no other request.

A simulation computes for about a second, two in a very large deployment. In a thread of the API it
would hold the interpreter lock, and every other request would wait for it at each of its steps. The
process is started with the first forecast; it has no secret and no connection, and it ends when the
API's end of its pipe is closed, whatever closes it.
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
#: Each message begins with its length, in so many bytes.
LENGTH_BYTES: Final = 8
CHUNK_BYTES: Final = 1 << 20
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
        """Return what `simulate_nights` returns.

        Raises Overloaded if the process gives no result within `max_seconds` or has ended. It is
        then killed, and the next call starts another one.
        """
        with self._lock:
            deadline = time.monotonic() + self.max_seconds
            try:
                return self._request((snapshot, observed, tasks), deadline)
            except (OSError, EOFError):
                self._kill()
                why = "the forecast could not be computed now"
                raise Overloaded(why, RETRY_AFTER_SECONDS) from None

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._kill()

    def _request(self, request: object, deadline: float) -> Distribution:
        requests, responses = _pipes(self._running())
        _write(requests, _framed(request), deadline)
        length = int.from_bytes(_read(responses, LENGTH_BYTES, deadline))
        distribution: Distribution = pickle.loads(_read(responses, length, deadline))  # noqa: S301 - our own process
        return distribution

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._kill()
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env={},
            )
            # A process that does not read must not block the API.
            os.set_blocking(_pipes(self._process)[0], False)
        return self._process

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with process:  # closes its pipes and waits for its end
                pass


def _pipes(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    """Return the descriptors for requests and responses."""
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the process was started without pipes")
    return process.stdin.fileno(), process.stdout.fileno()


def _framed(message: object) -> bytes:
    content = pickle.dumps(message)
    return len(content).to_bytes(LENGTH_BYTES) + content


def _write(descriptor: int, content: bytes, deadline: float) -> None:
    """Write all of the content; raise TimeoutError at the deadline."""
    left = memoryview(content)
    while left:
        if not select.select([], [descriptor], [], max(0.0, deadline - time.monotonic()))[1]:
            raise TimeoutError
        left = left[os.write(descriptor, left) :]


def _read(descriptor: int, length: int, deadline: float) -> bytes:
    """Read so many bytes; raise TimeoutError at the deadline, EOFError if the process has ended."""
    content = bytearray()
    while len(content) < length:
        if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError
        chunk = os.read(descriptor, min(length - len(content), CHUNK_BYTES))
        if not chunk:
            raise EOFError
        content += chunk
    return bytes(content)


def serve(requests: IO[bytes], responses: IO[bytes]) -> None:
    """Simulate what is requested, until the requests end."""
    while length := requests.read(LENGTH_BYTES):
        content = requests.read(int.from_bytes(length))
        snapshot, observed, tasks = pickle.loads(content)  # noqa: S301 - from the API's process
        responses.write(_framed(simulate_nights(snapshot, observed, tasks)))
        responses.flush()


if __name__ == "__main__":
    os.nice(NICENESS)
    # Ctrl-C in a terminal reaches this process too, which ends with the API.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(sys.stdin.buffer, sys.stdout.buffer)
