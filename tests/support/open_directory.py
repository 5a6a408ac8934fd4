"""A temporary directory that other users may read: root's sandboxes run as another user."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def open_directory() -> Iterator[Path]:
    """Make a directory that everybody can read, and remove it at the end of the block."""
    place = Path(tempfile.mkdtemp(prefix="overnight-open-"))
    place.chmod(0o755)
    try:
        yield place
    finally:
        shutil.rmtree(place)
