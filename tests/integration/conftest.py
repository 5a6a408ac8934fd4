"""What several modules of integration tests stand on."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def operators_place(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that knows this test's database and nothing else."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("OVERNIGHT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OVERNIGHT_DATABASE_URL", database_url)
