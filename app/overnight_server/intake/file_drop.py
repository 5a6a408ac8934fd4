"""Files that people put into a watched folder: make tasks of the content of one file.

The content is what `overnight batch` accepts. All tasks of a file are submitted in one transaction,
under idempotency keys that are made of the file: if the process dies after it, the file is found
again and makes nothing new.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import Connection
from sqlalchemy.exc import DataError, IntegrityError

from overnight.errors import MonthlyLimitReached, QueueFull, Refused, TooManyPending
from overnight.models.dags import DagCreate
from overnight_server.domain import batch_files
from overnight_server.domain.ids import UserId
from overnight_server.fault_points import fault
from overnight_server.intake.caps import Caps
from overnight_server.intake.event_work import (
    check_stands_alone,
    insert_work,
)
from overnight_server.intake.new_graph import NewGraph
from overnight_server.intake.submit import count_new_tasks, logging_refusals
from overnight_server.intake.translate_request import new_graph, new_task
from overnight_server.settings import Settings
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

SOURCE = "file"
#: Limits that end by themselves: the file stays where it is.
TEMPORARY = (TooManyPending, MonthlyLimitReached, QueueFull)
INVALID = (ValueError, TypeError, ArithmeticError, RecursionError, DataError, IntegrityError)


@dataclass(frozen=True)
class FoundFile:
    """A file of a folder: its name and content, and when it was last changed."""

    name: str
    content: bytes
    changed_ns: int

    @property
    def key(self) -> str:
        """What identifies this file: a later file of the same name and content is another one."""
        whole = hashlib.sha256(self.name.encode(errors="surrogateescape"))
        whole.update(f"\0{self.changed_ns}\0".encode())
        whole.update(self.content)
        return f"file:{whole.hexdigest()}"


class FileRefused(Exception):
    """No task was made of a file; the text has a line for each fault."""


class FileMustWait(Exception):
    """A limit leaves no room for the tasks of a file now; the text says which."""


def find_user(db: Db, name: str) -> tuple[UserId, bool] | None:
    """Return the user of this name, and whether the user is disabled; None without one."""
    row = db.atomically(
        lambda tx: tx.execute(statement("find_user_of_folder"), {"name": name}).one_or_none()
    )
    return None if row is None else (UserId(row.id), row.is_disabled)


def submit_file(db: Db, user_id: UserId, file: FoundFile, settings: Settings) -> int:
    """Submit the tasks and graphs of a file, all or none; return how many there are.

    Raises FileRefused with the faults of the file, and FileMustWait.
    """
    entries = _entries(file)
    try:
        with logging_refusals():
            graphs = [_graph(entry, f"{file.key}:{n}", settings) for n, entry in enumerate(entries)]
            count = db.atomically(lambda tx: _insert(tx, user_id, graphs, Caps.of(settings)))
    except TEMPORARY as limit:
        _check_fits(db, user_id, file, graphs, limit)
        raise FileMustWait(limit.message) from limit
    except Refused as error:
        raise FileRefused(f"{file.name}: {error.message}") from error
    except INVALID as error:
        raise FileRefused(f"{file.name}: a value cannot be stored by the database") from error
    fault("intake.after_commit")
    return count


def _check_fits(
    db: Db, user_id: UserId, file: FoundFile, graphs: Sequence[NewGraph], limit: Refused
) -> None:
    """Raise FileRefused if the tasks of a file exceed a limit also while no other task waits."""
    most = limit.details.get("limit")
    if not isinstance(most, int):
        return
    count = db.atomically(lambda tx: sum(count_new_tasks(tx, user_id, graph) for graph in graphs))
    if count <= most:
        return
    raise FileRefused(
        f"{file.name}: has {count} tasks, but at most {most} may wait. Split the file, or ask an"
        " operator for a higher limit"
    ) from limit


def _entries(file: FoundFile) -> Sequence[batch_files.Entry]:
    try:
        documents = batch_files.read(file.content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise FileRefused(f"{file.name}: is not UTF-8 text") from error
    except (batch_files.Unreadable, ValueError) as error:
        line = getattr(error, "line", None)
        fault_of_file = batch_files.FileFault(line, "", str(error))
        raise FileRefused(fault_of_file.line_text(file.name)) from error
    entries, faults = batch_files.entries(documents, source=SOURCE, next_instant=_no_instant)
    if faults:
        raise FileRefused("\n".join(each.line_text(file.name) for each in faults))
    return entries


def _no_instant(_text: str) -> datetime | None:
    """Let times such as 02:00 be refused: a file does not say whose clock is meant."""
    return None


def _graph(entry: batch_files.Entry, key: str, settings: Settings) -> NewGraph:
    content = entry.content
    if isinstance(content, DagCreate):
        return replace(new_graph(content, settings), key=content.idempotency_key or key)
    check_stands_alone(content, ".".join(map(str, entry.path)) or "task")
    return NewGraph([new_task(content, settings, content.idempotency_key or key)])


def _insert(tx: Connection, user_id: UserId, graphs: Sequence[NewGraph], caps: Caps) -> int:
    lanes.lock_for_actor(tx, user_id, "file-drop")
    for graph in graphs:
        insert_work(tx, user_id, graph, caps)
    return sum(len(graph.tasks) for graph in graphs)
