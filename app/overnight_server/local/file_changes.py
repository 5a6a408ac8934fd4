"""Notices that Python files of a directory have changed, so that handlers can be loaded again."""

import os
import time
from contextlib import suppress
from pathlib import Path

SCAN_EVERY_SECONDS = 1.0
#: Directories whose files are not the user's own; so are hidden ones and virtual environments.
SKIPPED = {"node_modules", "__pycache__"}


class FileChanges:
    """Compares the Python files below a directory with those of the last scan."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen = self._scan()
        self._scanned_at = time.monotonic()

    def has_changed(self) -> bool:
        """Return whether a file was changed, added or deleted; the files are read once a second."""
        if time.monotonic() - self._scanned_at < SCAN_EVERY_SECONDS:
            return False
        before, self._seen = self._seen, self._scan()
        self._scanned_at = time.monotonic()
        return self._seen != before

    def _scan(self) -> dict[str, tuple[int, int]]:
        """Return size and time of the last change of each file."""
        found = {}
        for place, directories, names in os.walk(self._directory):
            directories[:] = [name for name in directories if _is_own(Path(place, name))]
            for name in names:
                if not name.endswith(".py"):
                    continue
                # An editor may replace the file at this moment; the next scan sees the new one.
                with suppress(FileNotFoundError):
                    status = Path(place, name).stat()
                    found[str(Path(place, name))] = (status.st_mtime_ns, status.st_size)
        return found


def _is_own(directory: Path) -> bool:
    is_hidden = directory.name.startswith(".") or directory.name in SKIPPED
    return not is_hidden and not (directory / "pyvenv.cfg").exists()
