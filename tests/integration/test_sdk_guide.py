"""The guides to the Python client, run as they stand against a real server."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from overnight_server.domain.results import Returned
from overnight_server.maintenance.bulk import run_bulks
from tests.rules.sources import ROOT
from tests.rules.test_docs import blocks
from tests.support.deployment import Deployment
from tests.support.live_api import LiveApi, serve

GUIDE = Path("docs/guides/sdk.md")
BULK_GUIDE = Path("docs/guides/bulk.md")


@contextmanager
def echoing(deployment: Deployment) -> Iterator[None]:
    """Run a worker that returns the payload of each task."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(0.05):
            for claimed in deployment.claim().claims:
                if (run := deployment.start(claimed)) is not None:
                    deployment.settle(run, Returned(deployment.row(run.claim.task_id)["payload"]))

    deployment.agent()
    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield
    finally:
        over.set()
        worker.join()


@contextmanager
def sweeping(deployment: Deployment) -> Iterator[None]:
    """Let maintenance go on with bulk operations."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(0.05):
            run_bulks(deployment.dispatcher)

    maintenance = threading.Thread(target=work)
    maintenance.start()
    try:
        yield
    finally:
        over.set()
        maintenance.join()


def run_code(page: Path, served: LiveApi, folder: Path) -> subprocess.CompletedProcess[str]:
    program = folder / "guide.py"
    program.write_text("\n".join(blocks(page, "py")), encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-W", "error", program],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
        env={
            "PYTHONPATH": str(ROOT),
            "OVERNIGHT_URL": served.url,
            "OVERNIGHT_API_KEY": served.key,
        },
    )


def test_the_code_of_the_bulk_guide_runs(
    deployment: Deployment, database_url: str, tmp_path: Path
) -> None:
    # No built-in worker runs: it would end the tasks at once.
    with serve(deployment, database_url) as served, sweeping(deployment), echoing(deployment):
        ran = run_code(BULK_GUIDE, served, tmp_path)

    assert ran.returncode == 0, ran.stderr
    first, *_, last = ran.stdout.splitlines()
    assert (first, last) == ("3 of 3", "3")


def test_the_code_of_the_guide_runs(
    deployment: Deployment, database_url: str, tmp_path: Path
) -> None:
    with serve(deployment, database_url) as served, echoing(deployment):
        ran = run_code(GUIDE, served, tmp_path)

    assert ran.returncode == 0, ran.stderr
    assert [line.split()[-1] for line in ran.stdout.splitlines()][-1] == "completed"
