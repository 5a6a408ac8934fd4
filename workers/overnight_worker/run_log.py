"""The log of a run: what it printed and logged, bounded, and written to Postgres in chunks.

A `RunLog` keeps text until the process's `LogWriter` has written it, one second later or as soon as
there are 16 KB. Of each run the first 256 KB and the last 768 KB are kept. What lies between is
dropped, oldest first, also while Postgres is slow or away: a run never waits for its log. One row
says how much is missing. A run that writes nothing costs no thread, no row and no round trip.
"""

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from threading import Condition, RLock, Thread
from typing import Final

from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import TaskId, show_task
from overnight_server.domain.log_bounds import (
    CHUNK_BYTES,
    CUT,
    CUT_TEXT,
    HEAD_BYTES,
    TAIL_BYTES,
    pieces,
)
from overnight_server.outcome.run_logs import LogWrite, NewLogChunk, write_logs
from overnight_server.store.db import DATABASE_ERRORS, Db, is_transient
from overnight_server.telemetry import LogEvent, Outage, emit
from overnight_worker.log_text import LogText

FLUSH_SECONDS: Final = 1.0
# A run that prints without a pause is written this often; most of it would be cut again.
SHORTEST_PAUSE_SECONDS: Final = 0.25
# How long the end of a run waits until its last lines are written; a forced end has two seconds for
# everything.
LAST_FLUSH_SECONDS: Final = 1.0
# Lines of two streams keep their order, unless they alternate more often than this in one write.
MAX_OPEN_CHUNKS: Final = 16


@dataclass(eq=False)
class _LogChunk:
    seq: int
    stream: str
    is_head: bool
    lines: int = 0
    size: int = 0
    parts: list[str] = field(default_factory=list)

    def add(self, text: str, size: int) -> None:
        self.parts.append(text)
        self.lines += text.count("\n")
        self.size += size

    def finished(self) -> NewLogChunk:
        return NewLogChunk(self.seq, self.stream, self.lines, self.size, "".join(self.parts))


class RunLog:
    """The log of one claim; handler threads write it, the `LogWriter` takes its text.

    Only the holder of the claim makes one, so it alone counts the chunks. `copy` gets all text,
    also what is cut.
    """

    def __init__(
        self, claim: Claim, writer: "LogWriter", *, copy: Callable[[str], None] | None = None
    ) -> None:
        self.claim = claim
        self._copy = copy
        self._writer = writer
        # Reentrant, because a destructor may print while its thread writes.
        self._lock = RLock()
        self._texts: dict[str, LogText] = {}
        self._unwritten: deque[_LogChunk] = deque()
        self._unwritten_bytes = 0
        self._tail: deque[_LogChunk] = deque()
        self._tail_bytes = 0
        self._head_bytes_left = HEAD_BYTES
        self._last_seq = self._last_head_seq = 0
        self._cut_lines = self._cut_bytes = self._cut_seq = self._written_cut_seq = 0

    def write(self, stream: str, data: bytes | str) -> None:
        """Add output of `stdout`, `stderr` or `log`; the log shows it when its line is complete."""
        with self._lock:
            text = self._texts.get(stream)
            if text is None:
                text = self._texts[stream] = LogText(longest_line=CHUNK_BYTES)
            self._append(stream, text.feed(data))

    def close(self) -> None:
        """Add the lines that are not complete: the run has ended."""
        with self._lock:
            for stream, text in self._texts.items():
                self._append(stream, text.rest())

    def take(self) -> LogWrite | None:
        """Return what is not written yet, None if that is nothing; for the `LogWriter`."""
        with self._lock:
            chunks = [chunk.finished() for chunk in self._unwritten]
            for chunk in self._unwritten:
                chunk.parts = []
            self._unwritten.clear()
            self._unwritten_bytes = 0
            if self._cut_seq == self._written_cut_seq:
                return LogWrite(self.claim, chunks) if chunks else None
            self._written_cut_seq = self._cut_seq
            return LogWrite(
                self.claim, [*chunks, self._marker()], (self._last_head_seq, self._cut_seq)
            )

    def restore(self, write: LogWrite) -> None:
        """Keep what could not be written for the next try, unless it is to be cut by now."""
        with self._lock:
            self._written_cut_seq = 0
            kept = {chunk.seq: chunk for chunk in self._tail}
            for written in reversed(write.chunks):
                is_head = written.seq <= self._last_head_seq
                if written.stream == CUT or not (is_head or written.seq in kept):
                    continue
                chunk = kept.get(written.seq) or _LogChunk(
                    written.seq, written.stream, is_head=True
                )
                chunk.lines, chunk.size, chunk.parts = written.lines, written.size, [written.text]
                self._unwritten.appendleft(chunk)
                self._unwritten_bytes += chunk.size

    def _append(self, stream: str, text: str) -> None:
        if text and self._copy is not None:
            self._copy(text)
        for piece in pieces(text):
            size = len(piece) if piece.isascii() else len(piece.encode())
            self._append_piece(stream, piece, size)
        if self._unwritten:
            self._writer.add(self, is_urgent=self._unwritten_bytes >= CHUNK_BYTES)

    def _append_piece(self, stream: str, piece: str, size: int) -> None:
        if size > self._head_bytes_left:
            self._head_bytes_left = 0
        is_head = self._head_bytes_left > 0
        chunk = self._open_chunk(stream, size, is_head=is_head)
        chunk.add(piece, size)
        self._unwritten_bytes += size
        if is_head:
            self._head_bytes_left -= size
            self._last_head_seq = chunk.seq
        else:
            self._tail_bytes += size
            self._cut_oldest()

    def _open_chunk(self, stream: str, size: int, *, is_head: bool) -> _LogChunk:
        """Return the chunk to which text is added: the last one if it fits, else a new one."""
        reach = 1 if len(self._unwritten) < MAX_OPEN_CHUNKS else MAX_OPEN_CHUNKS
        for chunk in list(self._unwritten)[: -reach - 1 : -1]:
            is_same_kind = (chunk.stream, chunk.is_head) == (stream, is_head)
            if is_same_kind and chunk.size + size <= CHUNK_BYTES:
                return chunk
        self._last_seq += 1
        chunk = _LogChunk(self._last_seq, stream, is_head)
        self._unwritten.append(chunk)
        if not is_head:
            self._tail.append(chunk)
        return chunk

    def _cut_oldest(self) -> None:
        while self._tail_bytes > TAIL_BYTES:
            chunk = self._tail.popleft()
            self._tail_bytes -= chunk.size
            self._cut_lines += chunk.lines
            self._cut_bytes += chunk.size
            self._cut_seq = chunk.seq
            if chunk in self._unwritten:
                self._unwritten.remove(chunk)
                self._unwritten_bytes -= chunk.size

    def _marker(self) -> NewLogChunk:
        """Return the row that stands for what was cut; its number is that of the last chunk cut."""
        text = CUT_TEXT.format(lines=f"{self._cut_lines:,}", bytes=f"{self._cut_bytes:,}")
        return NewLogChunk(self._cut_seq, CUT, self._cut_lines, self._cut_bytes, text)


class LogWriter:
    """Writes the logs of a process's runs from a thread of its own, which starts with the first.

    `announce` is called with the tasks whose logs have grown. Text that Postgres does not take is
    tried again until the claim has ended.
    """

    def __init__(self, db: Db, announce: Callable[[Collection[TaskId]], None]) -> None:
        self._db = db
        self._announce = announce
        self._changed = Condition()
        self._waiting: set[RunLog] = set()
        self._is_urgent = self._is_flush_wanted = self._is_writing = self._is_closed = False
        self._thread: Thread | None = None
        self._outage = Outage(LogEvent.DATABASE_UNREACHABLE, LogEvent.DATABASE_BACK)

    def add(self, log: RunLog, *, is_urgent: bool) -> None:
        """Have a log written within FLUSH_SECONDS; soon, if it is urgent."""
        if log in self._waiting and (self._is_urgent or not is_urgent):
            return
        with self._changed:
            self._waiting.add(log)
            self._is_urgent |= is_urgent
            if self._thread is None:
                self._thread = Thread(target=self._write_logs, name="run logs", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, seconds: float = LAST_FLUSH_SECONDS) -> None:
        """Wait until everything so far is written, or until `seconds` have passed."""
        if not (self._waiting or self._is_writing):
            return
        with self._changed:
            self._is_flush_wanted = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not (self._waiting or self._is_writing), seconds)
            self._is_flush_wanted = False

    def close(self) -> None:
        """End the thread; what is not written is lost."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _write_logs(self) -> None:
        while not self._is_closed:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                self._changed.wait_for(lambda: self._is_write_due, FLUSH_SECONDS)
                logs, self._waiting = self._waiting, set()
                self._is_urgent, self._is_writing = False, True
            failed = self._write(logs)
            with self._changed:
                self._is_writing = False
                self._waiting |= failed
                self._changed.notify_all()
                if failed:
                    self._changed.wait_for(lambda: self._is_closed, FLUSH_SECONDS)
                else:
                    self._changed.wait_for(
                        lambda: self._is_flush_wanted or self._is_closed, SHORTEST_PAUSE_SECONDS
                    )

    @property
    def _is_write_due(self) -> bool:
        return self._is_urgent or self._is_flush_wanted or self._is_closed

    def _write(self, logs: Collection[RunLog]) -> set[RunLog]:
        """Write what the logs have; return those that must be tried again."""
        writes_by_log = {log: write for log in logs if (write := log.take()) is not None}
        if not writes_by_log:
            return set()
        try:
            held_claims = write_logs(self._db, list(writes_by_log.values()))
        except DATABASE_ERRORS as error:
            self._outage.begin(error)
            if not is_transient(error):
                return set()
            for log, write in writes_by_log.items():
                log.restore(write)
            return set(writes_by_log)
        self._outage.end()
        self._report_late(writes_by_log.values(), held_claims)
        self._announce({task_id for task_id, _ in held_claims})
        return set()

    def _report_late(
        self, writes: Collection[LogWrite], held_claims: Collection[tuple[TaskId, int]]
    ) -> None:
        for write in writes:
            claim = write.claim
            if (claim.task_id, claim.epoch) not in held_claims:
                emit(
                    LogEvent.LOG_LINES_LOST,
                    queue_id=show_task(claim.task_id),
                    epoch=claim.epoch,
                    lines=sum(chunk.lines for chunk in write.chunks),
                )
