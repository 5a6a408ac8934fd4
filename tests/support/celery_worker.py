"""A real Celery worker as a process of its own."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.wait import wait_until
from tests.support.workers import ROOT, SOURCES


@contextmanager
def celery_worker(app: str, log: Path, **env: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a worker of this app until the end of the block; its log says when it is ready."""
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [
                *(sys.executable, "-m", "celery", "-A", app),
                *("worker", "-c", "2", "--without-gossip", "-l", "INFO"),
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": SOURCES, **env},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            wait_until(
                lambda: "ready." in log.read_text() or worker.poll() is not None,
                what="Celery's worker to be ready",
                timeout=60,
            )
            assert worker.poll() is None, log.read_text()
            yield worker
        finally:
            kill_group(worker)


def kill_group(worker: "subprocess.Popen[bytes]") -> None:
    """Kill a worker and the processes of its pool."""
    if worker.poll() is None:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
