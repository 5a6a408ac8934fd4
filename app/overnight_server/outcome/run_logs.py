"""Writes the logs of runs: what their handlers printed and logged, in chunks.

A worker counts the chunks of its runs and writes many at once. A pull agent sends text, and the
database finds its place.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from overnight.errors import InvalidRequest, StaleAttempt
from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import TaskId
from overnight_server.domain.log_bounds import CUT_TEXT, HEAD_BYTES, TAIL_BYTES, pieces
from overnight_server.mask import mask_text
from overnight_server.store.after_commit import announce_log_after_commit
from overnight_server.store.batched_statements import StatementCall
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


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


def append_log(db: Db, claim: Claim, stream: str, text: str) -> None:
    """Add text of a pull agent to the log of its run, and wake those who follow it.

    Passwords and credentials are masked, what cannot be stored is replaced. Of each run the first
    HEAD_BYTES and about the last TAIL_BYTES are kept. Raises StaleAttempt if the run has lost its
    claim or has not started, and InvalidRequest if a worker writes the log, or it is full.
    """
    text = mask_text(text.encode(errors="replace").decode().replace("\0", "\ufffd"))
    parts = [
        {"number": number, "lines": part.count("\n"), "bytes": len(part.encode()), "text": part}
        for number, part in enumerate(pieces(text if text.endswith("\n") else f"{text}\n"))
    ]
    params = {
        "task_id": claim.task_id,
        "epoch": claim.epoch,
        "token": claim.token,
        "stream": stream,
        "parts": json.dumps(parts),
        "head_bytes": HEAD_BYTES,
        "tail_bytes": TAIL_BYTES,
        "cut_text": CUT_TEXT,
    }

    def work(tx: Connection) -> str:
        answer = str(tx.execute(statement("append_log"), params).scalar_one())
        if answer == "written":
            announce_log_after_commit(tx, claim.task_id)
        return answer

    match db.atomically(work):
        case "lost":
            raise StaleAttempt
        case "worker":
            legal = "text of a run of a pull agent; a handler in a worker prints, or calls ctx.log"
            raise InvalidRequest("text", "a worker writes the log of this run", legal=legal)
        case "full":
            raise InvalidRequest("text", "the log of the run is full", legal="990 MB of text")


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
