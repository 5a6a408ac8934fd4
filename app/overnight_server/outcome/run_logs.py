"""Writes the logs of runs: what their handlers printed and logged, in chunks."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import TaskId
from overnight_server.store.batched_statements import StatementCall
from overnight_server.store.db import Db


@dataclass(frozen=True)
class NewLogChunk:
    """A part of the log of a run; in the stream `cut`, `lines` and `size` say what is missing."""

    seq: int
    stream: str
    lines: int
    size: int
    text: str


@dataclass(frozen=True)
class LogWrite:
    """New chunks of the log of one claim.

    Chunks between the two numbers of `cut`, without these two, are deleted.
    """

    claim: Claim
    chunks: Sequence[NewLogChunk]
    cut: tuple[int, int] | None = None


def write_logs(db: Db, writes: Sequence[LogWrite]) -> set[tuple[TaskId, int]]:
    """Write chunks in one transaction; return task and epoch of the claims that were still held.

    A claim that has ended writes nothing. The same chunks may be written again, if it is not known
    whether the first try was committed.
    """
    chunks = json.dumps([_row(write.claim, chunk) for write in writes for chunk in write.chunks])
    rows = db.run_batch(
        StatementCall("commit_without_wait"),
        *(_cut_call(write.claim, *write.cut) for write in writes if write.cut is not None),
        StatementCall("write_log_chunks", {"chunks": chunks}),
    )
    return {(TaskId(row.task_id), row.epoch) for row in rows}


def _row(claim: Claim, chunk: NewLogChunk) -> dict[str, object]:
    return {
        "task_id": str(claim.task_id),
        "epoch": claim.epoch,
        "token": str(claim.token),
        "seq": chunk.seq,
        "stream": chunk.stream,
        "lines": chunk.lines,
        "bytes": chunk.size,
        "text": chunk.text,
    }


def _cut_call(claim: Claim, after_seq: int, before_seq: int) -> StatementCall:
    return StatementCall(
        "cut_log",
        {
            "task_id": claim.task_id,
            "epoch": claim.epoch,
            "token": claim.token,
            "after_seq": after_seq,
            "before_seq": before_seq,
        },
    )
