"""What several modules of integration tests stand on."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def empty_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that knows no deployment."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("OVERNIGHT_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def operators_place(empty_place: None, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that knows this test's database and nothing else."""
    monkeypatch.setenv("OVERNIGHT_DATABASE_URL", database_url)
