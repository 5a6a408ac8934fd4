"""Resume an interrupted batch: every entry gets an idempotency key that a second run derives again.

While a batch is submitted, a file in the user's state directory holds the id of this run. The file
is deleted when everything was submitted. A command that was killed, or that failed, leaves it; the
same command then finds the id and derives the same keys, so that the server returns what it has
and creates only the rest. A batch that was submitted completely gets a new id: the same file can be
submitted every night.
"""

import fcntl
import hashlib
import json
import os
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overnight_server.cli.commands.batch_files import Entry

# An older run is not resumed: its file is probably submitted anew.
RESUMED_SECONDS = 24 * 60 * 60


@dataclass
class BatchRun:
    """One run of a batch; `is_resumed` if an earlier command began it and did not end it."""

    run_id: str
    is_resumed: bool = False
    _seen: Counter[str] = field(default_factory=Counter)

    def key_of(self, entry: "Entry") -> str:
        """Return the idempotency key of an entry: equal entries of one file get different keys.

        It depends on what the file says and not on its place, so that a corrected file resumes too.
        """
        text = json.dumps(entry.raw, sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        self._seen[digest] += 1
        return f"batch-{self.run_id}-{digest}-{self._seen[digest]}"


def folder() -> Path:
    """Return the directory of the files of unfinished batches, whether or not it exists."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "overnight" / "batches"


@contextmanager
def batch_run(server: str, source: str) -> Iterator[BatchRun]:
    """Yield the run of the batch that `source` identifies at this server, and end it on success.

    An exception leaves the run open for the next command. If another process submits the same
    batch at this moment, or the state directory cannot be written, the run is a new one that cannot
    be resumed.
    """
    name = hashlib.sha256(f"{server}\n{source}".encode()).hexdigest()[:32]
    path = folder() / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
    except OSError:
        yield BatchRun(uuid.uuid4().hex)
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield BatchRun(uuid.uuid4().hex)
            return
        file.seek(0)
        run_id = file.read().strip()
        is_resumed = bool(run_id) and time.time() - path.stat().st_mtime < RESUMED_SECONDS
        if not is_resumed:
            run_id = uuid.uuid4().hex
            file.truncate(0)
            file.write(run_id)
            file.flush()
        yield BatchRun(run_id, is_resumed)
        path.unlink(missing_ok=True)
