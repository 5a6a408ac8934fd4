"""Files that a command left: which are read, how much of them, and that all can be removed."""

import os
from pathlib import Path

import pytest

from overnight_worker.sandbox import FileCollector, FileTooLarge, remove_workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    workspace = tmp_path / "workspace"
    (workspace / "out" / "folder").mkdir(parents=True)
    return workspace


def collect(collector: FileCollector) -> dict[str, bytes]:
    return {file.name: b"".join(file.chunks) for file in collector}


def test_files_are_collected_in_the_order_of_their_folders(workspace: Path) -> None:
    for name in ("b", "a", "folder/c", "folder/a"):
        (workspace / "out" / name).write_text(name)

    assert list(collect(FileCollector(workspace))) == ["a", "b", "folder/a", "folder/c"]


def test_a_workspace_without_results_has_none(workspace: Path) -> None:
    collector = FileCollector(workspace, "missing")

    assert collect(collector) == {}
    assert collector.skipped == {}


@pytest.mark.parametrize("folder", ["..", "../..", "/etc", "out/../../.."])
def test_a_folder_outside_of_the_workspace_is_not_read(workspace: Path, folder: str) -> None:
    collector = FileCollector(workspace, folder)

    assert collect(collector) == {}
    assert list(collector.skipped.values()) == ["it leads out of the workspace"]


def test_a_file_that_becomes_a_link_after_it_was_listed_is_not_followed(workspace: Path) -> None:
    for name in ("a", "b"):
        (workspace / "out" / name).write_text(name)
    collector = FileCollector(workspace)
    files = iter(collector)
    first = next(files)

    (workspace / "out" / "b").unlink()
    (workspace / "out" / "b").symlink_to("/etc/passwd")

    assert first.name == "a"
    assert [file.name for file in files] == []
    assert collector.skipped == {"b": "it is a symbolic link"}


def test_a_file_that_grows_while_it_is_read_ends_at_the_limit(workspace: Path) -> None:
    (workspace / "out" / "a").write_bytes(b"x" * 600)
    (workspace / "out" / "b").write_bytes(b"x" * 500)
    files = iter(FileCollector(workspace, max_bytes=1000))

    assert len(b"".join(next(files).chunks)) == 600
    with pytest.raises(FileTooLarge):
        b"".join(next(files).chunks)


def test_the_first_file_above_the_number_is_named_and_no_other_is_read(workspace: Path) -> None:
    for number in range(4):
        (workspace / "out" / str(number)).touch()
    collector = FileCollector(workspace, max_files=2)

    assert list(collect(collector)) == ["0", "1"]
    assert collector.skipped == {"2": "only 2 files are collected"}


def test_a_workspace_is_removed_with_what_links_point_to_kept(
    workspace: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    (workspace / "out" / "link").symlink_to(kept)
    (workspace / "out" / "folder" / "file").touch()
    os.mkfifo(workspace / "pipe")

    remove_workspace(workspace)
    remove_workspace(workspace)

    assert not workspace.exists()
    assert (kept / "file").exists()


def test_names_that_a_command_has_guessed_do_not_prevent_the_removal(workspace: Path) -> None:
    for number in range(3):
        (workspace / f".removed-{number}-{os.getpid()}" / "full").mkdir(parents=True)
    (workspace / "out" / "folder" / "inner").mkdir()

    remove_workspace(workspace)

    assert not workspace.exists()
