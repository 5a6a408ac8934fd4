"""Leads what a run prints and logs to the run's log, besides the log of the worker.

The streams `sys.stdout` and `sys.stderr` and a handler of the root logger are installed before
handlers are imported. They look up the run of the calling thread: the thread that called the
handler, and threads that were started during the run. Text of other threads, of forked processes
and of programs that a handler starts reaches the worker's log only: it may belong to another run.
"""

import io
import logging
import os
import sys
import threading
from typing import Any, Final, TextIO

from overnight_server.mask import mask_text
from overnight_server.telemetry import text_line
from overnight_worker.run_log import RunLog

# Loggers of the worker itself; `ctx.log` writes to the run's log without a logger.
OWN_LOGGERS: Final = frozenset({"overnight", "overnight_worker", "overnight_server", "celery"})


class RunOutput:
    """The log of this process's current run, and the threads that do not belong to that run."""

    def __init__(self) -> None:
        self._log: RunLog | None = None
        self._other_threads: frozenset[threading.Thread] = frozenset()
        os.register_at_fork(after_in_child=self.end)

    def begin(self, log: RunLog) -> None:
        """Begin a run of the calling thread."""
        self._other_threads = frozenset(threading.enumerate()) - {threading.current_thread()}
        self._log = log

    def end(self) -> None:
        """End the run; what its threads print from now on is in no run's log."""
        self._log, self._other_threads = None, frozenset()

    def write(self, stream: str, text: bytes | str) -> None:
        """Add text to the log of the calling thread's run, if it has one."""
        log = self._log
        if log is not None and threading.current_thread() not in self._other_threads:
            log.write(stream, text)


RUN_OUTPUT: Final = RunOutput()


class OutputStream:
    """A text stream that masks secrets, and adds what is written to the current run's log."""

    def __init__(self, name: str, stream: TextIO) -> None:
        self._name = name
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text, as every text stream does."""
        self._stream.write(mask_text(text))
        RUN_OUTPUT.write(self._name, text)
        return len(text)

    def writelines(self, lines: Any) -> None:  # noqa: ANN401 - any iterable of texts
        """Write several texts."""
        for line in lines:
            self.write(line)

    @property
    def buffer(self) -> "_BinaryOutput":
        """The stream for bytes."""
        return _BinaryOutput(self)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the stream has
        return getattr(self._stream, name)


class _BinaryOutput(io.RawIOBase):
    """The stream for bytes of an `OutputStream`."""

    def __init__(self, text: OutputStream) -> None:
        self._text = text

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:  # noqa: ANN401 - any buffer
        self._text.write(bytes(data).decode(errors="replace"))
        return len(data)

    def flush(self) -> None:
        self._text.flush()


class _RunLogHandler(logging.Handler):
    """Adds records of the standard library's loggers to the current run's log."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] in OWN_LOGGERS:
            return
        try:
            text = text_line(record.levelname.lower(), f"{record.name}: {record.getMessage()}", {})
            if record.exc_info:
                text = f"{text}\n{logging.Formatter().formatException(record.exc_info)}"
        except Exception:  # noqa: BLE001 - a handler's wrong format string is not its end
            self.handleError(record)
        else:
            RUN_OUTPUT.write("log", f"{text}\n")


def install() -> None:
    """Install the streams and the log handler in this process, unless it has them already."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, OutputStream):
            setattr(sys, name, OutputStream(name, stream))
    root = logging.getLogger()
    if not any(isinstance(handler, _RunLogHandler) for handler in root.handlers):
        root.addHandler(_RunLogHandler())
