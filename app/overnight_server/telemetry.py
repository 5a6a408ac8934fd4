"""Log events: the table of all events, and the format of every log line.

Code emits an event with its fields; this module decides level, order of fields and masking.
A line is logfmt, `<instant> <LEVEL> queue=<event> key=value ...`, or one JSON object.
"""

import atexit
import io
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from enum import Enum, unique
from functools import lru_cache
from pathlib import Path
from typing import Final, TextIO, cast

import structlog
from structlog.typing import EventDict, WrappedLogger

from overnight_server.mask import mask_value

DEBUG, INFO, WARN, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "log-events.md"


@unique
class LogEvent(Enum):
    """Every event of the log: its level, its fields in the order of the line, and its meaning."""

    TASK_ADDED = (INFO, "queue_id depth source", "A task was inserted.")
    DAG_ADDED = (
        INFO,
        "dag_id tasks edges depth",
        "A graph was inserted with all its tasks and edges.",
    )
    DISPATCH = (
        INFO,
        "queue_id agent",
        "A task was claimed for `agent`: a pool, a worker that refills its slot, or a pull agent.",
    )
    DISPATCH_SUCCESS = (
        INFO,
        "queue_id task_id",
        "The claimed task was handed over: published, started by its worker, or sent to the agent.",
    )
    DISPATCH_FAILED = (
        WARN,
        "queue_id error attempt final",
        (
            "A claimed task was not run by its agent, which was busy, unreachable or lost;"
            " `final=true` if the task has ended with that, otherwise it is dispatched again."
        ),
    )
    AGENT_URL_IGNORED = (
        WARN,
        "user_id",
        "A submit named an agent by its URL, which is ignored: any free agent may run the task.",
    )
    SUBMIT_REJECTED = (WARN, "reason depth", "A submit was rejected because a limit was reached.")

    TASK_STARTED = (INFO, "queue_id epoch worker user_id type", "A worker started a run.")
    TASK_SETTLED = (
        INFO,
        "queue_id epoch state reason seconds retry_in",
        "A run ended and its result was recorded.",
    )
    TASK_DEAD_LETTERED = (
        WARN,
        "queue_id epoch attempts reason poison",
        "A task was dead-lettered: its attempts are used up, or it may not be retried.",
    )
    TASK_HANDED_BACK = (
        INFO,
        "queue_id epoch reason",
        "A worker gave a run back, to be run again; no attempt was spent.",
    )
    TASK_REAPED = (
        WARN,
        "queue_id epoch state reason holder",
        "A sweep ended a run whose worker stopped sending heartbeats, or which overran its time.",
    )
    TASK_REVIVED = (
        INFO,
        "queue_id actor",
        "The owner or an operator put a finished task back into the queue.",
    )
    TASK_OVERRULED = (
        INFO,
        "queue_id actor",
        "A person accepted the output that a validator had rejected; the task is completed.",
    )
    TASK_CANCELLED = (INFO, "queue_id actor reason", "A task that was not running was cancelled.")
    CANCEL_REQUESTED = (INFO, "queue_id actor", "A running task was requested to stop.")
    RUN_KILLED = (
        WARN,
        "queue_id epoch reason pid",
        "A run did not stop within its grace and was ended by force.",
    )
    RUN_LOST = (
        WARN,
        "queue_id epoch worker",
        "A worker no longer holds the claim of its run, and stops the run.",
    )
    STALE_RESULT = (
        WARN,
        "queue_id epoch reason worker",
        "A result arrived after its claim had ended; it was kept as a stale result, not applied.",
    )
    STALE_MESSAGE = (
        DEBUG,
        "queue_id epoch worker",
        "A message was dropped because its claim had ended or had been started already.",
    )
    RUN_NOT_FOLLOWED = (
        ERROR,
        "queue_id epoch error",
        "The agent driver failed on one run; the run is taken back when its lease ends.",
    )
    AGENT_HEALTH = (
        INFO,
        "agent health error",
        "An HTTP agent answers its driver, or does not answer any more.",
    )
    DRIVER_STEP_FAILED = (
        ERROR,
        "error",
        "The agent driver failed to hold, check, claim or stop; it tries again.",
    )
    NOTIFICATION_SENT = (
        DEBUG,
        "channel kind message count status",
        "A receiver has accepted a message about `count` events.",
    )
    NOTIFICATION_NOT_SENT = (
        WARN,
        "channel kind message status error attempt final",
        "A receiver has not accepted a message; unless `final=true` it is sent again later.",
    )
    CHANNEL_DISABLED = (
        WARN,
        "channel error",
        "A receiver said that it wants no messages any more; its channel is told nothing.",
    )
    NOTIFIER_STEP_FAILED = (
        ERROR,
        "error",
        "The notifier failed to claim, send or record; it tries again.",
    )
    CLAIMS_MADE = (DEBUG, "pool count free", "The dispatcher claimed tasks for free slots.")
    CLAIM_RELEASED = (
        INFO,
        "queue_id epoch reason",
        "A claim was released before its run began; the task is ready again.",
    )
    HEARTBEAT_FAILED = (
        WARN,
        "queue_id epoch error",
        "A heartbeat could not be written; it is retried until the lease may have ended.",
    )
    LOG_LINES_LOST = (
        WARN,
        "queue_id epoch lines",
        "Lines of a run's log were not written before its claim ended, and are lost.",
    )
    ARTIFACT_DELETED = (
        INFO,
        "artifact_id queue_id actor",
        "A user deleted an artifact of a task.",
    )
    ARTIFACT_STORE_FAILED = (
        WARN,
        "operation error",
        "The artifact store is full, or cannot be reached, or refuses an operation.",
    )
    LOCK_RELEASED = (
        WARN,
        "lock_key queue_id actor",
        "An operator released the lock that a task held.",
    )
    LIMITS_CHANGED = (
        INFO,
        (
            "user_id actor plan_tier max_concurrent_agents monthly_agent_hours_limit max_pending"
            " max_tasks_per_dag artifact_storage_mb disabled"
        ),
        "An operator changed a user's plan or limits.",
    )
    BUDGET_RAISED = (
        INFO,
        "budget usd actor task_id",
        "A person raised a budget that a task had used up.",
    )
    BUDGET_SET = (
        INFO,
        "budget usd actor user_id dag_id worker",
        "An operator set the budget of a user's night, a graph or an agent.",
    )
    POISON_FOUND = (
        WARN,
        "queue_id deaths workers",
        "A task was dead-lettered because its runs killed several worker processes.",
    )
    DAG_FINISHED = (INFO, "dag_id state tasks", "All tasks of a graph have ended.")

    BULK_STARTED = (
        INFO,
        "bulk_id action total user_id",
        "A bulk operation was started; `total` is how many tasks its filter matched.",
    )
    BULK_COMPLETED = (
        INFO,
        "bulk_id changed skipped refused",
        "A bulk operation has handled all its tasks.",
    )
    BULK_STUCK = (
        ERROR,
        "bulk_id error",
        "A bulk operation failed; the next pass of the sweep continues it.",
    )

    TRIGGER_STUCK = (
        ERROR,
        "trigger_id error",
        "A trigger failed for a reason its owner cannot change; it is retried later.",
    )
    SCHEDULE_FIRED = (
        INFO,
        "schedule_id fire_time status queue_id",
        "A schedule has submitted its task or graph for a fire time.",
    )
    SCHEDULE_SKIPPED = (
        WARN,
        "schedule_id fire_time status reason",
        "A fire time of a schedule submitted nothing: a limit, the run before, or an invalid task.",
    )
    SCHEDULE_STUCK = (
        ERROR,
        "schedule_id error",
        "A schedule failed for a reason its owner cannot change; it is retried later.",
    )
    HOOK_FAILED = (
        WARN,
        "hook_id error",
        "A webhook came from its sender, but no task could be made of it; it can be replayed.",
    )
    RULE_STUCK = (
        ERROR,
        "rule_id error",
        "An improvement rule failed for a reason its owner cannot change; it is applied again.",
    )
    FILE_ACCEPTED = (INFO, "file user tasks", "A file of the watched folder became tasks.")
    FILE_REFUSED = (
        WARN,
        "file user error",
        "No task was made of a file in the watched folder; it was moved to `refused` there.",
    )
    FILE_WAITS = (
        INFO,
        "file user error",
        "A file of the watched folder, and those after it, wait for a limit. Every ten minutes.",
    )
    FILE_STUCK = (
        ERROR,
        "user error",
        "The files of a user in the watched folder could not be read or moved.",
    )
    INBOX_REFUSED = (
        WARN,
        "row error",
        "A row of the inbox table is not a valid task; the row is kept with the error.",
    )
    INBOX_STUCK = (
        ERROR,
        "user_id error",
        "The inbox rows of a user could not be processed; the next pass retries.",
    )
    SWEEP_RAN = (DEBUG, "sweep changed seconds", "A sweep made one pass.")
    REAPER_RESUMED = (
        WARN,
        "seconds",
        "After an outage that the reaper saw, every run has one more lease before it is lost.",
    )
    SWEEP_FAILED = (ERROR, "sweep error", "A sweep failed; the next tick repeats it.")
    CYCLE_RESET = (INFO, "user_id cycle_start cycle_end", "A user's new billing cycle started.")
    WINDOW_UNREADABLE = (
        ERROR,
        "user_id zone",
        "A user's time zone is unknown on this machine; the night window stays closed.",
    )
    AUDIT_FINDING = (
        ERROR,
        "rule subject user_id repaired detail",
        (
            "Rows contradict each other, which no correct history allows; logged once."
            " `repaired=true`: they were corrected. Otherwise see `overnight audit findings`."
        ),
    )
    AUDIT_FINDING_GONE = (
        INFO,
        "rule subject",
        "A finding of the audit that was open is gone: the rows agree again.",
    )
    USER_STARVING = (
        ERROR,
        "user_id waited_seconds",
        "A user whose tasks could run was not served; pools check again. Please report this bug.",
    )

    BROKER_UNREACHABLE = (
        WARN,
        "error",
        "Redis did not answer or refused a message; no task is lost: tasks are rows in Postgres.",
    )
    BROKER_BACK = (INFO, "seconds", "Redis answers again.")
    DATABASE_UNREACHABLE = (
        ERROR,
        "error",
        "Postgres did not answer, or refused a statement; the process keeps trying.",
    )
    DATABASE_BACK = (INFO, "seconds", "Postgres answers again, and accepts statements.")
    WAKE_UP_FAILED = (
        DEBUG,
        "error",
        "A wake-up could not be published or received; the next poll replaces it.",
    )

    WORKER_JOINED = (
        INFO,
        "worker pool slots capabilities",
        "A worker registered its slots, or ended its draining.",
    )
    SANDBOX_FOUND = (
        INFO,
        "worker sandbox memory",
        (
            "A worker has started and runs commands in sandboxes of this kind; `memory` says"
            " whether a `cgroup` of the kernel holds their memory limit, or process 1 by what it"
            " has `measured`."
        ),
    )
    SANDBOX_MISSING = (
        WARN,
        "worker policy reason remedy",
        (
            "A worker has started on a machine that can make no sandbox. With `policy=strict` it"
            " gets no tasks that run commands; with `policy=permissive` it runs them without"
            " protection."
        ),
    )
    SANDBOX_CONNECTION = (
        INFO,
        "queue_id epoch detail",
        "The proxy of a sandbox made, failed to make or refused a connection to a host.",
    )
    WORKER_LEFT = (INFO, "worker pool reason", "A worker withdrew its slots.")
    WORKER_DRAINING = (
        INFO,
        "worker pool slots",
        "A worker takes no new tasks and finishes its current runs.",
    )
    WORKER_DEAF = (
        ERROR,
        "worker pool",
        "A worker with a free slot no longer reads messages; it restarts when its runs have ended.",
    )
    MESSAGE_DROPPED = (
        WARN,
        "worker reason dropped",
        "A worker dropped a message that the service did not send; of many, few are logged.",
    )
    BROKER_FULL = (
        WARN,
        "error",
        "Redis has no memory left; the worker waits and connects again.",
    )
    HANDLERS_LOADED = (
        INFO,
        "modules types",
        "A worker has imported its handlers; `types` are the task types it accepts.",
    )
    HANDLER_MISSING = (ERROR, "type queue_id", "No handler is registered for a task's type.")
    SERVICE_STARTED = (INFO, "role pid address", "A process is ready.")
    SERVICE_STOPPED = (INFO, "role pid reason", "A process ended in order.")
    SERVICE_FAILED = (ERROR, "role code error", "A process ended with an error.")
    MIGRATED = (INFO, "revision seconds", "The database schema was migrated to this revision.")
    SCHEMA_CHANGED = (
        ERROR,
        "role error",
        "A migration does not serve this process, which ends; `error` says what to do.",
    )
    REQUEST_FAILED = (ERROR, "method path error", "A request failed with an unexpected error.")
    CONNECTION_CLOSED = (
        WARN,
        "reason",
        "The API closed the connection of a client that sent or read too slowly, or found no room.",
    )
    LOG_LINES_LEFT_OUT = (
        WARN,
        "lines count",
        "So many more lines of this kind, about refused requests, were left out in ten seconds.",
    )
    SETTING_IGNORED = (
        WARN,
        "setting instead",
        "A setting has no effect; `instead` says what applies.",
    )

    def __init__(self, level: int, fields: str, meaning: str) -> None:
        self.level = level
        self.fields = tuple(fields.split())
        self.meaning = meaning

    @property
    def log_name(self) -> str:
        """The event's name in a log line."""
        return self.name.lower()


def emit(event: LogEvent, /, **fields: object) -> None:
    """Log an event; fields that are None are left out, undeclared fields follow the declared."""
    # Every task logs several events, so events below the log level must cost nothing.
    if not is_logged(event):
        return
    ordered = {name: fields[name] for name in event.fields if name in fields}
    level = logging.getLevelName(event.level).lower()
    line = _format.line(_LOGGER, level, {"event": event.log_name} | ordered | fields)
    # Not `_logger.log`, which first searches the stack for the caller; no line shows it.
    record = _logger.makeRecord(_LOGGER, event.level, __file__, 0, line, (), None, extra=_IS_LINE)
    _logger.handle(record)


def text_line(level: str, text: str, fields: Mapping[str, object]) -> str:
    """Return a line for people: time, level, text and fields; fields with secret names are masked.

    >>> text_line("info", "read a page", {"page": 3})[24:]
    ' INFO read a page page=3'
    """
    shown = [f"{name}={_quoted(name, mask_value(name, value))}" for name, value in fields.items()]
    return " ".join([utc_stamp(), _LEVEL_NAMES.get(level, level.upper()), text, *shown])


def fields_of_others(fields: Mapping[str, object]) -> dict[str, object]:
    """Return fields that a task has named, under names that can pass for nothing else in a line.

    >>> fields_of_others({"pages": 3, "queue_id": "another", "two words": 1})
    {'pages': 3, 'queue_id_': 'another', 'two_words': 1}
    """
    named: dict[str, object] = {}
    for name, value in fields.items():
        plain = _NO_NAME.sub("_", name)[:_LONGEST_NAME] or "_"
        named[f"{plain}_" if plain in _OWN_NAMES else plain] = value
    return named


def is_logged(event: LogEvent) -> bool:
    """Whether the log level of this process lets an event through."""
    return _logger.isEnabledFor(event.level)


class Outage:
    """Logs the begin and the end of an outage once each, however often it is noticed."""

    def __init__(self, begin: LogEvent, end: LogEvent) -> None:
        self._begin_event = begin
        self._end_event = end
        self._began_at: float | None = None

    @property
    def is_on(self) -> bool:
        """Whether the outage has begun and not ended."""
        return self._began_at is not None

    def begin(self, error: Exception) -> None:
        """Note that a try failed."""
        if self._began_at is None:
            self._began_at = time.monotonic()
            emit(self._begin_event, error=str(error).strip())

    def end(self) -> None:
        """Note that a try succeeded."""
        if self._began_at is not None:
            emit(self._end_event, seconds=round(time.monotonic() - self._began_at, 1))
            self._began_at = None


def get(name: str) -> structlog.stdlib.BoundLogger:
    """Return a logger for lines that are not events: `get(__name__).info("text", key=value)`."""
    # Not through structlog's global configuration, which a user's handler module may change.
    return cast(
        "structlog.stdlib.BoundLogger",
        structlog.wrap_logger(
            logging.getLogger(name),
            processors=[
                structlog.stdlib.filter_by_level,
                structlog.processors.format_exc_info,
                _finish,
            ],
            wrapper_class=structlog.stdlib.BoundLogger,
        ),
    )


def configure(
    log_format: str,
    level: str,
    role: str,
    *,
    stream: TextIO | None = None,
    stamp: Callable[[], str] | None = None,
) -> None:
    """Write all log lines of this process, those of libraries too, to stderr in one format.

    Celery and uvicorn must not configure logging themselves: connect `celery.signals.setup_logging`
    to a call of this function and give uvicorn `log_config=None`.
    """
    _format.choose(log_format, role, stamp or utc_stamp)
    if stream is None:
        _write_output_by_line()
    root = logging.getLogger()
    root.setLevel(_level(level))
    for handler in root.handlers[:]:
        if isinstance(handler, _Handler):
            root.removeHandler(handler)
    # Bound now: Celery may later replace sys.stderr by a proxy that logs, which would recurse.
    root.addHandler(_Handler(stream or sys.stderr))
    for name in _VERBOSE_LIBRARIES:
        logging.getLogger(name).setLevel(max(WARN, root.level))
    for name in _LIBRARIES_WITH_HANDLERS:
        library = logging.getLogger(name)
        library.handlers.clear()
        library.propagate = True


def _write_output_by_line() -> None:
    """Write each printed line at once, and let the process end well if nobody reads its output.

    Without this, what a handler prints to a pipe or a file stays in a buffer of 8 KiB, which is
    lost when the process is killed, unless PYTHONUNBUFFERED is set.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    atexit.unregister(_discard_unwritable_output)
    atexit.register(_discard_unwritable_output)


def _discard_unwritable_output() -> None:
    """Send buffered output whose reader is gone to the null device.

    The interpreter flushes both streams as it ends, and exits with code 120 if that fails.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
        except ValueError:
            continue  # already closed


def utc_stamp() -> str:
    """Return this instant as RFC 3339 in UTC, to the millisecond."""
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    return f"{_utc_second(seconds)}.{nanoseconds // 1_000_000:03d}Z"


# Many lines are written in one second, and formatting a date takes longer than the rest of a line.
@lru_cache(maxsize=2)
def _utc_second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


# Libraries that add their own log handlers, and libraries that log every request.
_LIBRARIES_WITH_HANDLERS: Final = (
    "uvicorn",
    "uvicorn.error",
    "uvicorn.access",
    "celery",
    "celery.task",
)
_VERBOSE_LIBRARIES: Final = ("alembic", "httpx2", "httpcore2", "asyncio", "tornado.access")
# The specified log format has WARN where Python has WARNING.
_LEVEL_NAMES: Final = {"warning": "WARN", "exception": "ERROR"}
# S002 quotes an error even if it has no space; messages are quoted alike.
_ALWAYS_QUOTED: Final = ("error", "msg")
_LOGGER: Final = "overnight"
# The fields by which programs read a line, and those with which structlog does something.
_OWN_NAMES: Final = frozenset(
    {"ts", "level", "role", "logger", "msg", "queue", "queue_id", "epoch"}
    | {"event", "exception", "exc_info", "stack_info"}
)
_NO_NAME: Final = re.compile(r"[^\w.-]")
_LONGEST_NAME: Final = 100


class _LineFormat:
    """How this process writes its log lines: format, role, and source of the timestamp."""

    def __init__(self) -> None:
        self.choose("logfmt", "", utc_stamp)

    def choose(self, log_format: str, role: str, stamp: Callable[[], str]) -> None:
        """Set format, role and timestamp; raise ValueError for an unknown format."""
        if log_format not in _FORMATS:
            formats = ", ".join(_FORMATS)
            raise ValueError(f"unknown log format {log_format!r}; use one of: {formats}")
        self._write = _FORMATS[log_format]
        self._role = role
        self._stamp = stamp

    def line(self, logger: str, method: str, fields: Mapping[str, object]) -> str:
        """Return one finished log line, with secrets masked."""
        rest = dict(fields)
        text = rest.pop("event", None)
        head = {"queue": text} if logger == _LOGGER else {"logger": logger, "msg": text}
        body = {
            name: mask_value(name, value)
            for name, value in (head | rest).items()
            if value is not None
        }
        level = _LEVEL_NAMES.get(method, method.upper())
        return self._write(self._stamp(), level, self._role, body)


class _Handler(logging.StreamHandler[TextIO]):
    """Writes finished lines as they are, and formats records of libraries."""

    def format(self, record: logging.LogRecord) -> str:
        if getattr(record, "is_line", False):
            return record.getMessage()
        fields: dict[str, object] = {"event": record.getMessage()}
        if record.exc_info:
            fields["exception"] = logging.Formatter().formatException(record.exc_info)
        return _format.line(record.name, record.levelname.lower(), fields)


def _finish(
    logger: WrappedLogger, method: str, fields: EventDict
) -> tuple[tuple[str], dict[str, dict[str, bool]]]:
    """Format and mask the line before any handler receives it, also those that tests add."""
    return (_format.line(logger.name, method, fields),), {"extra": _IS_LINE}


def _json(stamp: str, level: str, role: str, body: dict[str, object]) -> str:
    return json.dumps({"ts": stamp, "level": level, "role": role} | body, default=_plain)


def _logfmt(stamp: str, level: str, _role: str, body: dict[str, object]) -> str:
    # Without the role, because S002 fixes the format; the supervisor adds it as a prefix.
    return " ".join([stamp, level, *(f"{name}={_quoted(name, body[name])}" for name in body)])


def _quoted(name: str, value: object) -> str:
    """Return a value, quoted if it has spaces, quotes, equals signs or control characters."""
    text = _plain(value)
    bare = text and text.isprintable() and not any(mark in text for mark in ' "=')
    if bare and name not in _ALWAYS_QUOTED:
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, dict):
        return json.dumps(value, default=str)
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(map(str, value))
    return str(value)


def _level(name: str) -> int:
    levels = logging.getLevelNamesMapping()
    if name.upper() not in levels:
        raise ValueError(f"unknown log level {name!r}; use one of: debug, info, warn, error")
    return levels[name.upper()]


_FORMATS: Final = {"logfmt": _logfmt, "json": _json}
_format: Final = _LineFormat()
_logger: Final = logging.getLogger(_LOGGER)
_IS_LINE: Final = {"is_line": True}


def page() -> str:
    """Return the reference page of log events."""
    rows = [
        f"| `{event.log_name}` | {_LEVEL_NAMES.get(name, name.upper())} "
        f"| {' '.join(f'`{field}`' for field in event.fields)} | {event.meaning} |"
        for event in LogEvent
        for name in [logging.getLevelName(event.level).lower()]
    ]
    return "\n".join([_PREFACE, *rows, ""])


_PREFACE: Final = """\
# Log events

After this page you can read, search and parse every log line that Overnight writes to stderr.
It is written by `python -m overnight_server.telemetry`; do not edit it by hand.

A line is logfmt: the time (RFC 3339, UTC), the level, the event, and its fields in this order.

```
2025-01-17T10:00:00.000Z INFO queue=task_added queue_id=task_01J depth=5 source=cli
2025-01-17T10:00:01.250Z WARN queue=dispatch_failed queue_id=task_01J error="agent busy" attempt=1/3
```

`OVERNIGHT_LOG_FORMAT=json` writes the same keys as one JSON object a line, with `ts`, `level` and
the `role` of the process. `OVERNIGHT_LOG_LEVEL` sets the lowest level that is written. A field
without a value is left out. Values under names such as `token`, `password`, `secret`, `api_key` and
`authorization`, and passwords inside addresses, appear as `***`. Lines of libraries (Celery,
uvicorn, SQLAlchemy) have `logger=` and `msg=` in place of `queue=`.

| Event | Level | Fields | Meaning |
|---|---|---|---|"""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
