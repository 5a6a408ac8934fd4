"""Say what happens, once and in one form: the events of the deployment and the lines they become.

Code emits an event with its fields; this module decides level, order, wording and masking.
A line is logfmt, `<instant> <LEVEL> queue=<event> key=value ...`, or one JSON object.
"""

import atexit
import io
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from enum import Enum, unique
from pathlib import Path
from typing import Final, TextIO, cast

import structlog
from structlog.typing import EventDict, WrappedLogger

from overnight_server.mask import mask_value

DEBUG, INFO, WARN, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "log-events.md"


@unique
class Event(Enum):
    """Everything the deployment reports: level, fields in the order of the line, and meaning."""

    TASK_ADDED = (INFO, "queue_id depth source", "A task entered the queue.")
    DAG_ADDED = (INFO, "dag_id tasks edges depth", "A graph entered the queue, whole.")
    DISPATCH = (INFO, "queue_id agent", "A claimed task is being sent to an agent or a pool.")
    DISPATCH_SUCCESS = (INFO, "queue_id task_id", "The message for a claimed task was published.")
    DISPATCH_FAILED = (
        WARN,
        "queue_id error attempt final",
        "A task could not be handed over; `final=true` if it will not be tried again.",
    )
    AGENT_URL_IGNORED = (
        WARN,
        "user_id",
        "A submit named an agent by its address; whichever is free first gets the work.",
    )
    SUBMIT_REJECTED = (WARN, "reason depth", "A submit was refused because a limit was reached.")

    TASK_STARTED = (INFO, "queue_id epoch worker user_id type", "A worker won the start of a run.")
    TASK_SETTLED = (
        INFO,
        "queue_id epoch state reason seconds retry_in",
        "A run ended and its end was recorded.",
    )
    TASK_DEAD_LETTERED = (
        WARN,
        "queue_id epoch attempts reason poison",
        "A task used up its attempts, or may not be retried, and now waits for a person.",
    )
    TASK_HANDED_BACK = (
        INFO,
        "queue_id epoch reason",
        "A worker gave a task back without spending an attempt.",
    )
    TASK_REAPED = (
        WARN,
        "queue_id epoch state reason holder",
        "A sweep took a task from a holder that went silent or overran its time.",
    )
    TASK_REVIVED = (INFO, "queue_id actor", "An operator brought a finished task back.")
    TASK_CANCELLED = (INFO, "queue_id actor reason", "A task that was not running was cancelled.")
    CANCEL_REQUESTED = (INFO, "queue_id actor", "A running task was asked to stop.")
    RUN_KILLED = (
        WARN,
        "queue_id epoch reason pid",
        "A run did not stop by itself within its grace and was ended by force.",
    )
    RUN_LOST = (
        WARN,
        "queue_id epoch worker",
        "A worker learned that it no longer holds its task, and stopped the run.",
    )
    STALE_RESULT = (
        WARN,
        "queue_id epoch reason worker",
        "A result came from a claim that had ended; it was kept aside and not applied.",
    )
    STALE_MESSAGE = (
        DEBUG,
        "queue_id epoch worker",
        "A message named a claim that had ended or begun already; it was dropped.",
    )
    CLAIMS_MADE = (DEBUG, "pool count free", "A pass of the gate claimed tasks for free slots.")
    CLAIM_RELEASED = (
        INFO,
        "queue_id epoch reason",
        "A claim that never started was given up and its slot freed.",
    )
    HEARTBEAT_FAILED = (
        WARN,
        "queue_id epoch error",
        "A heartbeat could not be written; it is tried again until the lease could have ended.",
    )
    LOCK_RELEASED = (WARN, "lock_key queue_id actor", "An operator released a lock by force.")
    LIMITS_CHANGED = (
        INFO,
        (
            "user_id actor plan_tier max_concurrent_agents monthly_agent_hours_limit max_pending"
            " max_tasks_per_dag disabled"
        ),
        "An operator changed a user's plan, or made an exception to it.",
    )
    BUDGET_RAISED = (
        INFO,
        "budget usd actor task_id",
        "A person approved more money for a task that had used up a budget.",
    )
    BUDGET_SET = (
        INFO,
        "budget usd actor user_id dag_id worker",
        "An operator set what a user's night, a graph or an agent may cost.",
    )
    POISON_FOUND = (
        WARN,
        "queue_id deaths workers",
        "A task killed its run on several workers and was set aside.",
    )
    DAG_FINISHED = (INFO, "dag_id state tasks", "The last task of a graph ended.")

    BULK_STARTED = (
        INFO,
        "bulk_id action total user_id",
        "Something is to be done to many tasks; `total` is how many the filter chose.",
    )
    BULK_COMPLETED = (
        INFO,
        "bulk_id changed skipped refused",
        "A bulk operation has dealt with every task it was meant for.",
    )
    BULK_STUCK = (
        ERROR,
        "bulk_id error",
        "A bulk operation could not go on; it is tried again with the next pass.",
    )

    TRIGGER_STUCK = (
        ERROR,
        "trigger_id error",
        "A trigger could not fire, for no reason its owner could help; it is tried again later.",
    )
    INBOX_REFUSED = (
        WARN,
        "row error",
        "A task left in a program's transaction cannot be let in; its row is kept.",
    )
    INBOX_STUCK = (
        ERROR,
        "user_id error",
        "A user's rows of the inbox could not be gone through; the next pass tries again.",
    )
    SWEEP_RAN = (DEBUG, "sweep changed seconds", "A sweep made one pass.")
    SWEEP_FAILED = (ERROR, "sweep error", "A sweep ended with an error; the next tick repeats it.")
    CYCLE_RESET = (INFO, "user_id cycle_start cycle_end", "A user's billing cycle began anew.")
    WINDOW_UNREADABLE = (
        ERROR,
        "user_id zone",
        "A user's time zone is not known here; the window stays shut and is looked at again.",
    )
    LANE_DRIFT = (
        ERROR,
        "user_id column stored counted",
        "A lane's count differed from the task rows and was repaired: a bug worth reporting.",
    )
    LEADER_ELECTED = (INFO, "duty holder", "This process took over a duty that one may hold.")
    LEADER_LOST = (WARN, "duty holder", "This process no longer holds its duty.")

    BROKER_UNREACHABLE = (WARN, "error", "Redis did not answer; tasks stay safe in Postgres.")
    BROKER_BACK = (INFO, "seconds", "Redis answers again.")
    DATABASE_UNREACHABLE = (ERROR, "error", "Postgres did not answer; the process keeps trying.")
    DATABASE_BACK = (INFO, "seconds", "Postgres answers again.")
    WAKE_UP_FAILED = (DEBUG, "error", "A wake-up ping was lost; the next poll makes up for it.")

    WORKER_JOINED = (INFO, "worker pool slots capabilities", "A worker offers its slots.")
    WORKER_LEFT = (INFO, "worker pool reason", "A worker withdrew its slots, or fell silent.")
    WORKER_DRAINING = (
        INFO,
        "worker pool slots",
        "A worker takes no more work and finishes what it runs.",
    )
    HANDLERS_LOADED = (INFO, "modules types", "A worker knows these task types.")
    HANDLER_MISSING = (ERROR, "type queue_id", "No handler is registered for a task's type.")
    SERVICE_STARTED = (INFO, "role pid address", "A process of the deployment is ready.")
    SERVICE_STOPPED = (INFO, "role pid reason", "A process of the deployment ended in order.")
    SERVICE_FAILED = (ERROR, "role code error", "A process of the deployment ended with an error.")
    MIGRATED = (INFO, "revision seconds", "The schema was brought to this revision.")
    REQUEST_FAILED = (ERROR, "method path error", "The API met an error it did not expect.")
    SETTING_IGNORED = (WARN, "setting instead", "A setting has no effect; the line says why.")

    def __init__(self, level: int, fields: str, meaning: str) -> None:
        self.level = level
        self.fields = tuple(fields.split())
        self.meaning = meaning

    @property
    def word(self) -> str:
        """The event's name in a line."""
        return self.name.lower()


def emit(event: Event, /, **fields: object) -> None:
    """Report an event; fields that are None are left out, undeclared ones follow the declared."""
    # Several lines for every task: no more work than the line itself takes.
    if not _logger.isEnabledFor(event.level):
        return
    ordered = {name: fields[name] for name in event.fields if name in fields}
    level = logging.getLevelName(event.level).lower()
    line = _voice.line(_LOGGER, level, {"event": event.word} | ordered | fields)
    _logger.log(event.level, line, extra=_IS_LINE)


def get(name: str) -> structlog.stdlib.BoundLogger:
    """Return a logger for what is no event: `get(__name__).info("reading", path=path)`."""
    # Wrapped by hand and not through structlog's global configuration, which a user's handler
    # module may change for itself.
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
    """Send this process's lines, the libraries' too, to stderr in the chosen form.

    Celery and uvicorn must be told to leave logging alone: connect `celery.signals.setup_logging`
    to a call of this function and give uvicorn `log_config=None`.
    """
    _voice.speak(log_format, role, stamp or utc_stamp)
    if stream is None:
        _write_output_by_line()
    root = logging.getLogger()
    root.setLevel(_level(level))
    for handler in root.handlers[:]:
        if isinstance(handler, _Handler):
            root.removeHandler(handler)
    # Bound now: Celery may later replace sys.stderr by a proxy that logs, a loop without end.
    root.addHandler(_Handler(stream or sys.stderr))
    for name in _LOUD:
        logging.getLogger(name).setLevel(max(WARN, root.level))
    for name in _SELF_WILLED:
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
    microseconds: str = _CLOCK(None, "", {})["timestamp"]
    return f"{microseconds[:-3]}Z"


# Libraries that bring handlers of their own, and libraries that tell of every request.
_SELF_WILLED: Final = ("uvicorn", "uvicorn.error", "uvicorn.access", "celery", "celery.task")
_LOUD: Final = ("alembic", "httpx2", "httpcore2", "asyncio", "tornado.access")
# S002 writes WARN where Python says WARNING.
_LEVEL_WORDS: Final = {"warning": "WARN", "exception": "ERROR"}
# S002 quotes an error even when it is one word; a message reads best the same way.
_ALWAYS_QUOTED: Final = ("error", "msg")
_LOGGER: Final = "overnight"
_CLOCK: Final = structlog.processors.TimeStamper(fmt="%Y-%m-%dT%H:%M:%S.%f", utc=True)


class _Voice:
    """How this process speaks: the form of its lines, its role, and where instants come from."""

    def __init__(self) -> None:
        self.speak("logfmt", "", utc_stamp)

    def speak(self, log_format: str, role: str, stamp: Callable[[], str]) -> None:
        """Choose anew."""
        if log_format not in _FORMATS:
            raise ValueError(f"no such log format: {log_format} (known: {', '.join(_FORMATS)})")
        self._write = _FORMATS[log_format]
        self._role = role
        self._stamp = stamp

    def line(self, logger: str, method: str, fields: Mapping[str, object]) -> str:
        """Return the finished line of one report: ordered, masked and on one line."""
        rest = dict(fields)
        text = rest.pop("event", None)
        what = {"queue": text} if logger == _LOGGER else {"logger": logger, "msg": text}
        body = {
            name: mask_value(name, value)
            for name, value in (what | rest).items()
            if value is not None
        }
        level = _LEVEL_WORDS.get(method, method.upper())
        return self._write(self._stamp(), level, self._role, body)


class _Handler(logging.StreamHandler[TextIO]):
    """Writes finished lines as they are and turns the libraries' records into such lines."""

    def format(self, record: logging.LogRecord) -> str:
        if getattr(record, "is_line", False):
            return record.getMessage()
        fields: dict[str, object] = {"event": record.getMessage()}
        if record.exc_info:
            fields["exception"] = logging.Formatter().formatException(record.exc_info)
        return _voice.line(record.name, record.levelname.lower(), fields)


def _finish(
    logger: WrappedLogger, method: str, fields: EventDict
) -> tuple[tuple[str], dict[str, dict[str, bool]]]:
    """Finish the line before any handler, a test's too, so that each sees it masked and whole."""
    return (_voice.line(logger.name, method, fields),), {"extra": _IS_LINE}


def _json(stamp: str, level: str, role: str, body: dict[str, object]) -> str:
    return json.dumps({"ts": stamp, "level": level, "role": role} | body, default=_plain)


def _logfmt(stamp: str, level: str, _role: str, body: dict[str, object]) -> str:
    # The role is left to the supervisor's prefix: S002 fixes these lines to the letter.
    return " ".join([stamp, level, *(f"{name}={_quoted(name, body[name])}" for name in body)])


def _quoted(name: str, value: object) -> str:
    """Write a value so that a line stays one line and splits at its spaces."""
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


def _level(word: str) -> int:
    known = logging.getLevelNamesMapping()
    if word.upper() not in known:
        raise ValueError(f"no such level: {word} (known: debug, info, warn, error)")
    return known[word.upper()]


_FORMATS: Final = {"logfmt": _logfmt, "json": _json}
_voice: Final = _Voice()
_logger: Final = logging.getLogger(_LOGGER)
_IS_LINE: Final = {"is_line": True}


def page() -> str:
    """Return the reference page of log events, written from the table above."""
    rows = [
        f"| `{event.word}` | {_LEVEL_WORDS.get(name, name.upper())} "
        f"| {' '.join(f'`{field}`' for field in event.fields)} | {event.meaning} |"
        for event in Event
        for name in [logging.getLevelName(event.level).lower()]
    ]
    return "\n".join([_PREFACE, *rows, ""])


_PREFACE: Final = """\
# Log events

After this page you can read, search and parse every line the deployment writes to stderr.
It is written by `python -m overnight_server.telemetry`; do not edit it by hand.

A line is logfmt: the instant (RFC 3339, UTC), the level, the event, and its fields in this order.

```
2025-01-17T10:00:00.000Z INFO queue=task_added queue_id=task_01J8K depth=5 source=cli
2025-01-17T10:00:01.250Z WARN queue=dispatch_failed queue_id=task_01J8K error="agent busy"
```

`OVERNIGHT_LOG_FORMAT=json` writes the same keys as one JSON object a line, with `ts`, `level` and
the `role` of the process. `OVERNIGHT_LOG_LEVEL` chooses the least level shown. A field without a
value is left out. Values under names such as `token`, `password`, `secret`, `api_key` and
`authorization`, and passwords inside addresses, appear as `***`. Lines of libraries (Celery,
uvicorn, SQLAlchemy) have `logger=` and `msg=` in place of `queue=`.

| Event | Level | Fields | Meaning |
|---|---|---|---|"""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
