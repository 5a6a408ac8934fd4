"""The task types that live workers and agents accept, for warnings about a type nobody handles."""

import math
import time
from dataclasses import dataclass
from typing import Final

from overnight.models.field_errors import nearest_name
from overnight_server.domain.capabilities import COMMAND
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

# How long a process uses the types that it has read; a create does not read them each time.
REUSE_SECONDS: Final = 2.0
# The most agents whose types are read, the deployment's workers first.
MAX_AGENTS: Final = 1000


@dataclass(frozen=True)
class AcceptedTypes:
    """The types that live workers accept; `everything` if one of them accepts every type.

    `own` are those of the deployment's workers: a pull agent's types are its owner's business.
    """

    everything: bool = True
    accepted: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()

    def warning(self, type_: str) -> str | None:
        """Return what is wrong with a type that nobody handles, or None."""
        if self.everything or type_ in self.accepted:
            return None
        if type_ == COMMAND:
            return "no worker can make a sandbox for a command, so the task waits for one"
        nearest = nearest_name(type_, self.own)
        hint = f"; the nearest known type is {nearest!r}" if nearest else ""
        return f"no worker has a handler for the type {type_!r}, so the task waits for one{hint}"


def read_accepted_types(db: Db, liveness: float) -> AcceptedTypes:
    """Read the types that live workers and agents accept; without any, there is no warning."""
    params = {"liveness": liveness, "limit": MAX_AGENTS}
    row = db.atomically(lambda tx: tx.execute(statement("accepted_types"), params).one())
    return AcceptedTypes(
        everything=row.everything,
        accepted=frozenset(row.accepted or ()),
        own=frozenset(row.own or ()),
    )


def ready_types(db: Db, *, most: int = 100_000) -> dict[str, int]:
    """Return how many ready tasks there are of each type; at most `most` tasks are counted."""
    rows = db.atomically(lambda tx: tx.execute(statement("ready_types"), {"limit": most}).all())
    return {row.type: row.tasks for row in rows}


class KnownTypes:
    """The accepted types as one process knows them, read again after REUSE_SECONDS."""

    def __init__(self, db: Db, liveness: float) -> None:
        self._db = db
        self._liveness = liveness
        self._types = AcceptedTypes()
        self.forget()

    def forget(self) -> None:
        """Read the types again before the next warning."""
        self._read_at = -math.inf

    def warnings(self, type_: str) -> list[str]:
        """Return the warnings about the type of a new task."""
        now = time.monotonic()
        if now - self._read_at >= REUSE_SECONDS:
            self._types = read_accepted_types(self._db, self._liveness)
            self._read_at = now
        warning = self._types.warning(type_)
        return [] if warning is None else [warning]
