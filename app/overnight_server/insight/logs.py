"""The logs of runs: what their handlers printed and logged."""

from dataclasses import dataclass

from overnight.errors import TaskNotFound
from overnight.models.account import LogChunk
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

MAX_EPOCH = 2**31 - 1
#: The position before the first chunk.
START = (0, 0)


@dataclass(frozen=True)
class LogPage:
    """Some chunks of a log in order, and whether none can follow the last one in the database."""

    chunks: list[LogChunk]
    is_over: bool


def read_log(
    db: Db,
    user_id: UserId,
    task_id: TaskId,
    *,
    after: tuple[int, int] = START,
    run: int | None = None,
    limit: int = 50,
) -> LogPage:
    """Return the chunks of a task's log after a position (epoch, seq); only of one run if given.

    Raises TaskNotFound if the user has no such task.
    """
    if run is not None:
        after = max(after, (run, 0))
    params = {
        "user_id": user_id,
        "task_id": task_id,
        "after_epoch": after[0],
        "after_seq": after[1],
        "last_epoch": MAX_EPOCH if run is None else run,
        "limit": limit,
    }
    rows = db.atomically(lambda tx: tx.execute(statement("read_log"), params).mappings().all())
    if not rows:
        raise TaskNotFound
    chunks = [
        LogChunk(id=f"{row['epoch']}.{row['seq']}", **{name: row[name] for name in _COLUMNS})
        for row in rows
        if row["epoch"] is not None
    ]
    return LogPage(chunks, is_over=rows[0]["is_over"] and len(chunks) < limit)


_COLUMNS = ("epoch", "seq", "at", "stream", "lines", "bytes", "text")


def tail_log(
    db: Db, user_id: UserId, task_id: TaskId, *, run: int | None = None, limit: int = 30
) -> list[LogChunk]:
    """Return the last chunks of a task's log, oldest first; only of one run if given."""
    params = {"user_id": user_id, "task_id": task_id, "run": run, "limit": limit}
    rows = db.atomically(lambda tx: tx.execute(statement("tail_log"), params).mappings().all())
    return [
        LogChunk(id=f"{row['epoch']}.{row['seq']}", **{name: row[name] for name in _COLUMNS})
        for row in reversed(rows)
    ]
