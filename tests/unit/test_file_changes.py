from pathlib import Path

import pytest

from overnight_server.local import file_changes
from overnight_server.local.file_changes import FileChanges


@pytest.fixture(autouse=True)
def always_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_changes, "SCAN_EVERY_SECONDS", 0)


def test_a_changed_new_or_deleted_python_file_is_noticed_once(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    module = tmp_path / "jobs" / "agents.py"
    changes = FileChanges(tmp_path)
    noticed = [changes.has_changed()]

    module.write_text("a = 1\n")
    noticed += [changes.has_changed(), changes.has_changed()]
    module.write_text("a = 11\n")
    noticed += [changes.has_changed()]
    module.unlink()
    noticed += [changes.has_changed(), changes.has_changed()]

    assert noticed == [False, True, False, True, True, False]


@pytest.mark.parametrize("place", [".overnight", "node_modules", "env", "notes.txt"])
def test_files_that_are_no_code_of_the_user_are_not_watched(tmp_path: Path, place: str) -> None:
    changes = FileChanges(tmp_path)
    if place == "notes.txt":
        (tmp_path / place).write_text("x")
    else:
        (tmp_path / place).mkdir()
        (tmp_path / place / "pyvenv.cfg").write_text("" if place == "env" else "x")
        (tmp_path / place / "module.py").write_text("x = 1\n")

    assert not changes.has_changed()
