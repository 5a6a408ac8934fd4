"""The directory of a run: removed at its end, or later if that fails."""

from pathlib import Path

import pytest

from overnight_worker import run_directory
from overnight_worker.run_directory import remove_left_workspaces, workspace


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(run_directory, "PLACE", tmp_path)
    return tmp_path


def test_a_workspace_that_cannot_be_removed_costs_no_result_and_is_removed_later(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(_: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, workspace() as directory:
        patch.setattr(run_directory, "remove_workspace", full_disk)
        (directory / "result").touch()

    assert directory.exists()
    remove_left_workspaces()
    assert list(place.iterdir()) == []
