"""Log lines and wake-ups that are held back until a transaction has committed.

An act registers them on its transaction while it writes its rows. `Db.atomically` sends them after
the commit, and drops them when the transaction is rolled back or tried again. The end of a graph is
noticed by a database trigger, which reports it as a NOTICE to the connection.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from uuid import UUID

from sqlalchemy import Connection

from overnight_server.domain.ids import DagId, TaskId, show_dag
from overnight_server.telemetry import LogEvent, emit

_KEY = "overnight_after_commit"
_DAG_FINISHED = re.compile(r"DAG_FINISHED (\S+) (\w+) (\d+)")


class WakeUps(Protocol):
    """Best-effort wake-ups to other processes: they never wait, and never raise."""

    def wake(self) -> None:
        """Wake dispatchers and idle slots: a task may be ready, or a slot free."""

    def cancel_requested(self) -> None:
        """Wake the workers: the owner of a running task has asked for it to stop."""

    def log_grew(self, tasks: Collection[TaskId]) -> None:
        """Wake those who follow the logs of these tasks."""


@dataclass
class AfterCommit:
    """What to log and whom to wake once a transaction has committed."""

    lines: list[tuple[LogEvent, Mapping[str, object]]] = field(default_factory=list)
    wakes: bool = False
    requests_cancel: bool = False
    grown_logs: set[TaskId] = field(default_factory=set)

    def append(self, notice: str) -> None:
        """Add a log line if a NOTICE reports the end of a graph; ignore every other NOTICE.

        psycopg2 calls this for each NOTICE that Postgres sends.
        """
        if finished := _DAG_FINISHED.search(notice):
            dag_id = show_dag(DagId(UUID(finished[1])))
            fields = {"dag_id": dag_id, "state": finished[2], "tasks": int(finished[3])}
            self.lines.append((LogEvent.DAG_FINISHED, fields))

    def send(self, wake_ups: WakeUps | None) -> None:
        """Write the log lines, then send the wake-ups; several of one kind become one."""
        for event, fields in self.lines:
            emit(event, **fields)
        if wake_ups is not None and self.wakes:
            wake_ups.wake()
        if wake_ups is not None and self.requests_cancel:
            wake_ups.cancel_requested()
        if wake_ups is not None and self.grown_logs:
            wake_ups.log_grew(self.grown_logs)


def collect(tx: Connection) -> AfterCommit:
    """Begin to collect for a transaction; what an earlier one left on the connection is dropped."""
    pending = AfterCommit()
    tx.info[_KEY] = pending
    connection: Any = tx.connection.dbapi_connection
    # psycopg2 appends each NOTICE of Postgres to this attribute.
    connection.notices = pending
    return pending


@contextmanager
def savepoint(tx: Connection) -> Iterator[None]:
    """Begin a savepoint; what is registered in it is dropped if an error rolls it back."""
    pending = _pending(tx)
    before = replace(pending, lines=list(pending.lines), grown_logs=set(pending.grown_logs))
    try:
        with tx.begin_nested():
            yield
    except BaseException:
        # The connection has this object, so its values are put back.
        vars(pending).update(vars(before))
        raise


def log_after_commit(tx: Connection, event: LogEvent, **fields: object) -> None:
    """Write a log line once this transaction has committed."""
    _pending(tx).lines.append((event, fields))


def wake_after_commit(tx: Connection) -> None:
    """Wake dispatchers and idle slots once this transaction has committed."""
    _pending(tx).wakes = True


def request_cancel_after_commit(tx: Connection) -> None:
    """Wake the workers once this transaction has committed, so that they stop cancelled runs."""
    _pending(tx).requests_cancel = True


def announce_log_after_commit(tx: Connection, task_id: TaskId) -> None:
    """Wake those who follow the log of a task once this transaction has committed."""
    _pending(tx).grown_logs.add(task_id)


def _pending(tx: Connection) -> AfterCommit:
    """Return the collection of this transaction; one that Db did not begin has none to send."""
    pending: AfterCommit = tx.info.get(_KEY) or AfterCommit()
    return pending
