"""The whole output of a run as a compressed file, for tasks that ask for it with `keep_log`."""

import contextlib
import gzip
import tempfile
from typing import BinaryIO, Final, Self, cast

from overnight.errors import Refused, StaleAttempt, TaskStopping
from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import show_task
from overnight_server.outcome.artifacts import (
    ArtifactCaps,
    NewArtifact,
    caps_of_user,
    store_artifact,
)
from overnight_server.store.db import DATABASE_ERRORS
from overnight_server.telemetry import get
from overnight_worker.resources import WorkerResources

NAME: Final = "log"
MAX_BYTES: Final = 64 * 1024 * 1024
# What the compressor may still hold back when the file has reached its size.
_MARGIN_BYTES: Final = 128 * 1024
_FASTEST: Final = 1

_log = get(__name__)


class FullLog:
    """Collects what a run writes in a temporary file, up to a size."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._limit = max_bytes - _MARGIN_BYTES
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._compressed = gzip.GzipFile(fileobj=self._file, mode="wb", compresslevel=_FASTEST)
        self._is_full = False

    @classmethod
    def of(cls, resources: WorkerResources, claim: Claim) -> Self:
        """Return a new file that may be as large as an artifact of the task, up to MAX_BYTES."""
        caps = ArtifactCaps.of(resources.settings)
        with contextlib.suppress(*DATABASE_ERRORS):
            caps = caps_of_user(resources.db, claim, caps)
        return cls(min(MAX_BYTES, caps.max_bytes))

    def write(self, text: str) -> None:
        """Add text; when the file is full, a last line says so."""
        if self._is_full:
            return
        self._compressed.write(text.encode())
        if self._file.tell() > self._limit:
            self._is_full = True
            self._compressed.write(b"[the rest is missing: the file has its largest size]\n")

    def finish(self) -> BinaryIO:
        """Return the whole file."""
        self._compressed.close()
        return cast("BinaryIO", self._file)

    def close(self) -> None:
        """Delete the file."""
        self._compressed.close()
        self._file.close()


def store_full_log(resources: WorkerResources, claim: Claim, log: FullLog) -> None:
    """Store the file as the artifact `log`; a run that was stopped or lost stores none."""
    caps = ArtifactCaps.of(resources.settings)
    try:
        artifact = NewArtifact(NAME, "bytes", log.finish())
        store_artifact(resources.db, claim, artifact, caps, resources.artifact_store)
    except (StaleAttempt, TaskStopping):
        return
    except (Refused, OSError, *DATABASE_ERRORS) as error:
        # The log of a run is no reason to lose its result.
        _log.warning("the log was not kept", queue_id=show_task(claim.task_id), error=error)
    finally:
        log.close()
