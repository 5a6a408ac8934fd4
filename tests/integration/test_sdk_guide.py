"""The guide to the Python client, run as it stands against a real server."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.domain.results import Returned
from tests.rules.sources import ROOT
from tests.rules.test_docs import blocks
from tests.support.house import House
from tests.support.serving import serve

GUIDE = Path("docs/guides/sdk.md")


@contextmanager
def echoing(house: House) -> Iterator[None]:
    """Let a worker run that returns what each task was given."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(0.05):
            for claimed in house.claim().claims:
                if (run := house.start(claimed)) is not None:
                    house.settle(run, Returned(house.row(run.claim.task_id)["payload"]))

    house.agent()
    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield
    finally:
        over.set()
        worker.join()


def test_the_guide_runs_as_it_stands(house: House, database_url: str, tmp_path: Path) -> None:
    program = tmp_path / "guide.py"
    program.write_text("\n".join(blocks(GUIDE, "py")), encoding="utf-8")

    with serve(house, database_url) as served, echoing(house):
        ran = subprocess.run(
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

    assert ran.returncode == 0, ran.stderr
    assert [line.split()[-1] for line in ran.stdout.splitlines()][-1] == "completed"
