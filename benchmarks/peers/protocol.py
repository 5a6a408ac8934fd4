"""The commands of a peer's script: install, fill, work, submit, latency.

Needs the standard library only. A script gives a `Peer`, and this module the command line: the
action, then a JSON object of options; the answer is one line of JSON on stdout.
"""

import json
import os
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from benchmarks.start_marks import VARIABLE, Marks

BATCH = 500
START_TIMEOUT_SECONDS = 10.0


class Peer(ABC):
    """Another queue, reduced to what is measured; every job only writes a mark."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.database_url = os.environ.get("PEER_DATABASE_URL", "")
        self.redis_url = os.environ.get("PEER_REDIS_URL", "")

    @abstractmethod
    def open(self) -> None:
        """Connect as a producer."""

    @abstractmethod
    def close(self) -> None:
        """Close what `open` opened."""

    @abstractmethod
    def install(self) -> None:
        """Create the peer's tables."""

    @abstractmethod
    def submit(self, user: int, label: int) -> None:
        """Submit one job, durably."""

    @abstractmethod
    def submit_batch(self, user: int, size: int) -> None:
        """Submit many jobs of one user in the fastest way of the peer."""

    @abstractmethod
    def work(self) -> None:
        """Run jobs until the process is asked to stop."""


def run(kind: type[Peer]) -> None:
    """Run the command line."""
    _, action, given = sys.argv
    options: dict[str, Any] = json.loads(given)
    peer = kind(options)
    if action == "install":
        peer.install()
        answer: dict[str, object] = {}
    elif action == "work":
        peer.work()
        answer = {}
    else:
        peer.open()
        try:
            answer = ACTIONS[action](peer, options)
        finally:
            peer.close()
    print(json.dumps(answer), flush=True)


def _fill(peer: Peer, options: dict[str, Any]) -> dict[str, object]:
    if options.get("locked"):
        # In turns, or the jobs of one user would wait for each other at the end of the queue.
        for number in range(options["jobs"]):
            peer.submit(number % options["users"], 0)
        return {}
    each, rest = divmod(options["jobs"], options["users"])
    for user in range(options["users"]):
        wanted = each + (user < rest)
        for start in range(0, wanted, BATCH):
            peer.submit_batch(user, min(BATCH, wanted - start))
    return {}


def _submit(peer: Peer, options: dict[str, Any]) -> dict[str, object]:
    """Measure both ways of submitting, one after the other; each is warmed up by one call."""
    peer.submit(0, 0)
    began = time.perf_counter()
    for number in range(options["single"]):
        peer.submit(number, 0)
    single = time.perf_counter() - began
    peer.submit_batch(0, options["size"])
    began = time.perf_counter()
    for number in range(options["batches"]):
        peer.submit_batch(number, options["size"])
    batched = time.perf_counter() - began
    return {
        "single": options["single"] / single,
        "batch": options["batches"] * options["size"] / batched,
    }


def _latency(peer: Peer, options: dict[str, Any]) -> dict[str, object]:
    """Submit one job at a time to an idle worker; return when each was submitted.

    The last ones come after longer rests.
    """
    marks = Marks(Path(os.environ[VARIABLE]))
    submitted: list[float] = []
    for label in range(1, options["jobs"] + options["rested"] + 1):
        submitted.append(time.monotonic())
        peer.submit(label, label)
        wait_for_mark(marks, label)
        time.sleep(options["pause"] if label < options["jobs"] else options["rest"])
    return {"submitted": submitted}


def wait_for_mark(marks: Marks, wanted: int) -> None:
    """Wait until that many runs have started, with pauses between two checks."""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while marks.count() < wanted:
        if time.monotonic() > deadline:
            raise TimeoutError(f"run {wanted} did not start within {START_TIMEOUT_SECONDS:g} s")
        time.sleep(0.002)


ACTIONS = {"fill": _fill, "submit": _submit, "latency": _latency}
