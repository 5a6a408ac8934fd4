"""The place of the working directory on the import path: a user's handlers are imported from it."""

import sys
from pathlib import Path


def find_last() -> None:
    """Let installed packages be found before modules of the working directory.

    Celery puts the working directory first whenever it imports an application or its tasks, unless
    the directory is on the path already.
    """
    _remove()
    sys.path.append(str(Path.cwd()))


def find_first() -> None:
    """Let modules of the working directory be found first, as in a program the user starts.

    Called when everything of the service is imported: the user's `app`, `workers` or `tests` are
    then found whatever else is installed, and replace nothing that the service uses.
    """
    _remove()
    sys.path.insert(0, str(Path.cwd()))


def _remove() -> None:
    here = str(Path.cwd())
    sys.path[:] = [entry for entry in sys.path if entry not in {"", here}]
