"""Worker processes that start sandboxes, as root and as an ordinary user, of each kind."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from overnight_worker.sandbox import SandboxKind
from tests.support.tested_sandboxes import ROOT, SANDBOX_KINDS

# An ordinary user that no account of the machine has.
TEST_USER = 60_099
KINDS = ["root", "user"] if ROOT else ["user"]


class SandboxWorker:
    """A process that starts sandboxes on request."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.user = TEST_USER if ROOT and kind == "user" else os.geteuid()
        # On a disk: what is written to memory counts as memory of the sandbox.
        self.parent = Path(tempfile.mkdtemp(prefix="overnight-sandbox-", dir="/var/tmp"))
        self.parent.chmod(0o711)
        if ROOT:
            os.chown(self.parent, self.user, self.user)
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.sandbox.worker_process",
                str(self.parent),
                str(self.user),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def request(self, **fields: Any) -> Any:
        """Send one request; return the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(fields) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the {self.kind} worker ended with {self.process.wait()}"
        return json.loads(line)

    def close(self) -> None:
        """End the process and remove its directory."""
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate()
        shutil.rmtree(self.parent)


@pytest.fixture(scope="session")
def sandbox_workers() -> Iterator[dict[str, SandboxWorker]]:
    workers = {kind: SandboxWorker(kind) for kind in KINDS}
    yield workers
    for worker in workers.values():
        worker.close()


@pytest.fixture(params=KINDS)
def worker(
    request: pytest.FixtureRequest, sandbox_workers: dict[str, SandboxWorker]
) -> SandboxWorker:
    return sandbox_workers[request.param]


@pytest.fixture(params=SANDBOX_KINDS, ids=str)
def sandbox_kind(request: pytest.FixtureRequest) -> SandboxKind:
    return SandboxKind(request.param)
