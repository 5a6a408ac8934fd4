"""Files that a command has left are collected up to limits, whatever their number."""

import os
from pathlib import Path

from overnight_worker.sandbox.file_collector import MAX_SKIPPED, FileCollector


def test_no_more_files_are_opened_than_are_collected(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for number in range(30):
        (out / f"{number:02d}").write_text("x")
    files = FileCollector(tmp_path, max_files=10)

    names = [file.name for file in files]

    assert names == [f"{number:02d}" for number in range(10)]
    assert files.skipped == {"10": "only 10 files are collected"}


def test_what_is_skipped_is_counted_after_the_first_ones(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for number in range(MAX_SKIPPED + 7):
        (out / f"link {number:03d}").symlink_to("/etc/passwd")
    os.mkfifo(out / "pipe")
    (out / "zebra").write_text("x")
    files = FileCollector(tmp_path)

    assert [file.name for file in files] == ["zebra"]
    assert (len(files.skipped), files.more_skipped) == (MAX_SKIPPED, 8)
