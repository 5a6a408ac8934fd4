"""A run of the tests says which sandboxes it could not test, also in several processes."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_machine_without_bubblewrap_is_told_at_the_end(tmp_path: Path) -> None:
    words = ["-n", "2", "-q", "-p", "no:cacheprovider", "tests/unit/test_ids.py"]

    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=ROOT,
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stdout
    assert "sandbox: bubblewrap is not installed, so only the kind `own` is tested" in done.stdout
