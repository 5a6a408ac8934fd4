"""The supervisor: start services in order, restart those that end, stop them in reverse order.

Each service runs under a guard (`local/guard_process.py`), so that no process is left even after
`kill -9` of the supervisor. One loop on the main thread does all the work.
"""

import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Self

from overnight_server.local.console import Console
from overnight_server.local.logfile import LogFile
from overnight_server.local.service_state import (
    Service,
    SupervisedService,
    pause_before_restart,
    read_available,
)
from overnight_server.telemetry import LogEvent, emit

READINESS_PAUSE = 0.1
LONGEST_SLEEP = 1.0
#: Seconds that a hurried stop leaves the services before it kills them.
HURRY_GRACE = 2.0
#: A service that failed this often without ever being ready is not started again.
MAX_START_FAILURES = 3
#: The log file of the supervisor's own messages.
OWN_LOG = "supervisor"
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# INFO lines of libraries (uvicorn, Celery) are kept in the log file and not shown.
_LIBRARY_INFO = (" INFO logger=", '"level": "INFO", "role": ', '"logger": ')


class Supervisor:
    """Run services until a stop is requested. Use it as a context manager on the main thread.

    All output goes to one log file per service. The terminal shows a service's lines only while
    `shows_output` is set. `held` are descriptors (the lock of the home) that stay open until every
    service has ended.
    """

    def __init__(self, logs: Path, console: Console, *, held: Sequence[int] = ()) -> None:
        self.logs = logs
        self.console = console
        self.held = held
        self.stop_requests = 0
        self.shows_output = False
        self._services: dict[str, SupervisedService] = {}
        self._files: dict[str, LogFile] = {}
        self._unwritable: set[Path] = set()
        self._stopping = False

    def __enter__(self) -> Self:
        self._wakeup_reader, self._wakeup_writer = os.pipe()
        os.set_blocking(self._wakeup_reader, False)
        os.set_blocking(self._wakeup_writer, False)
        self._old_wakeup = signal.set_wakeup_fd(self._wakeup_writer, warn_on_full_buffer=False)
        self._old_handlers = {
            number: signal.signal(number, self._on_stop_signal) for number in _STOP_SIGNALS
        }
        # The handler does nothing: the signal only wakes the loop, which looks for ended services.
        self._old_handlers[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda _n, _f: None)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_wakeup)
        os.close(self._wakeup_reader)
        os.close(self._wakeup_writer)
        for file in self._files.values():
            file.close()

    def _on_stop_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.stop_requests += 1

    @property
    def log(self) -> LogFile:
        """The log file of the supervisor itself."""
        return self._log_file(OWN_LOG)

    def add(self, services: Iterable[Service]) -> None:
        """Add services; each starts as soon as the services it depends on are ready."""
        for service in services:
            self._services[service.name] = SupervisedService(service)

    def run_until(self, condition: Callable[[], bool], *, timeout: float | None = None) -> bool:
        """Start, watch and restart services until `condition()` is true; return True then.

        Return False on a stop request or after `timeout` seconds. A service that keeps failing does
        not end the loop.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not condition():
            if self.stop_requests or (deadline is not None and time.monotonic() > deadline):
                return False
            self._step()
        return True

    def run_until_ready(self, timeout: float) -> bool:
        """Supervise until every service is ready; return False if one keeps failing."""

        def is_decided() -> bool:
            return not self.unready() or self._has_failed_start()

        return self.run_until(is_decided, timeout=timeout) and not self.unready()

    def _has_failed_start(self) -> bool:
        return any(
            supervised.failures >= MAX_START_FAILURES and not supervised.is_ready
            for supervised in self._services.values()
        )

    def run(self) -> None:
        """Supervise until a stop is requested."""
        self.run_until(lambda: False)

    def run_once(self, service: Service, *, timeout: float | None = None) -> int | None:
        """Run a program to its end beside the services and return its exit code.

        Return None if it was stopped by a stop request or the timeout.
        """
        supervised = SupervisedService(service, restarts=False)
        self._services[service.name] = supervised
        ended = self.run_until(lambda: supervised.exit_code is not None, timeout=timeout)
        if supervised.process:
            supervised.process.request_stop()
            self._wait_for([supervised])
        del self._services[service.name]
        return supervised.exit_code if ended else None

    def unready(self) -> list[str]:
        """Return the names of the services that are not ready now."""
        return [name for name, supervised in self._services.items() if not supervised.is_ready]

    def last_lines(self, name: str) -> list[str]:
        """Return the last lines that a service printed."""
        return list(self._services[name].last_lines)

    def report(self, text: str) -> None:
        """Print a message on the terminal and write it to the supervisor's log."""
        self.console.message(text)
        self.log.append(text)

    def stop(self) -> None:
        """Stop all services; another stop request makes it kill them after a few seconds.

        A service is stopped when no running service depends on it, so Postgres is the last one.
        """
        self._stopping = True
        self.shows_output = False
        requests_before = self.stop_requests
        pending = list(reversed(self._services.values()))
        while self.running() and self.stop_requests == requests_before:
            for supervised in [item for item in pending if not self._is_needed(item)]:
                pending.remove(supervised)
                if supervised.process:
                    supervised.process.request_stop()
            self._step()
        if self.running():
            self._stop_in_a_hurry()
        self._services.clear()
        self._stopping = False

    def restart(self, name: str) -> None:
        """Stop a service in order and start it again; that does not count as a failure."""
        supervised = self._services[name]
        if supervised.process:
            supervised.is_restarting = True
            supervised.process.request_stop()

    def running(self) -> list[str]:
        """Return the names of the services of which any process still runs."""
        return [name for name, supervised in self._services.items() if supervised.process]

    def _is_needed(self, supervised: SupervisedService) -> bool:
        return any(
            other.process and supervised.service.name in other.service.depends_on
            for other in self._services.values()
        )

    def _stop_in_a_hurry(self) -> None:
        self.report(f"Killing what still runs in {HURRY_GRACE:.0f} s: {', '.join(self.running())}.")
        running = [supervised for supervised in self._services.values() if supervised.process]
        for supervised in running:
            if supervised.process:
                supervised.process.request_stop()
        deadline = time.monotonic() + HURRY_GRACE
        self._wait_for(running, unless=lambda: time.monotonic() > deadline)
        for supervised in running:
            if supervised.process:
                supervised.process.send_signal(signal.SIGKILL)
        self._wait_for(running)

    def _wait_for(
        self,
        services: Sequence[SupervisedService],
        *,
        unless: Callable[[], bool] = lambda: False,
    ) -> None:
        while any(supervised.process for supervised in services) and not unless():
            self._step()

    def _step(self) -> None:
        """Wait for output, a signal or a timeout; then handle output, exits, starts, readiness."""
        self._wait_for_input()
        for supervised in list(self._services.values()):
            # Checked before the output is read, so that the last line is not missed.
            has_ended = supervised.has_ended()
            self._read_output(supervised, has_ended=has_ended)
            if has_ended:
                self._record_exit(supervised)
        if self._stopping or self.stop_requests:
            return
        for supervised in list(self._services.values()):
            if supervised.is_due and self._dependencies_are_ready(supervised):
                supervised.start(self.held)
            if supervised.becomes_ready() and supervised.failures:
                self.report(f"{supervised.service.name} is ready again.")

    def _wait_for_input(self) -> None:
        outputs = [item.process.output for item in self._services.values() if item.process]
        sources = [output for output in outputs if output is not None]
        is_changing = self._stopping or self.unready()
        timeout = READINESS_PAUSE if is_changing else LONGEST_SLEEP
        descriptors = [self._wakeup_reader, *(source.fileno() for source in sources)]
        select.select(descriptors, [], [], timeout)
        read_available(self._wakeup_reader)

    def _dependencies_are_ready(self, supervised: SupervisedService) -> bool:
        dependencies = (self._services.get(name) for name in supervised.service.depends_on)
        return all(other is not None and other.is_ready for other in dependencies)

    def _read_output(self, supervised: SupervisedService, *, has_ended: bool) -> None:
        service = supervised.service
        for line in supervised.read_lines(has_ended=has_ended):
            self._log_file(service.name).append(line)
            if self.shows_output and service.shown and not is_library_info(line):
                self.console.service_line(service.name, line)

    def _record_exit(self, supervised: SupervisedService) -> None:
        description = supervised.record_exit()
        if not supervised.restarts or self._stopping or self.stop_requests:
            return
        if supervised.is_restarting:
            supervised.start_again_now()
            return
        name = supervised.service.name
        emit(LogEvent.SERVICE_FAILED, role=name, code=supervised.exit_code, error=description)
        pause = pause_before_restart(supervised.failures)
        self.report(f"{name} {description}. It starts again in {pause:.0f} s. {self._tail(name)}")

    def _tail(self, name: str) -> str:
        lines = self.last_lines(name)
        if not lines:
            return "It printed nothing."
        shown = "\n".join(f"    {line}" for line in lines)
        return f"Its last lines (more in {self.logs / name}.log):\n{shown}"

    def _log_file(self, name: str) -> LogFile:
        if name not in self._files:
            path = self.logs / f"{name}.log"
            self._files[name] = LogFile(path, report=partial(self._report_log, path))
        return self._files[name]

    def _report_log(self, path: Path, problem: str | None) -> None:
        """Print once that log files cannot be written, and once that all can be written again."""
        if problem is None:
            self._unwritable.discard(path)
            if not self._unwritable:
                self.console.message("All log files are written again.")
            return
        if not self._unwritable:
            self.console.message(
                f"Cannot write {path}: {problem}. Log lines are lost until there is room again; "
                "everything else continues."
            )
        self._unwritable.add(path)


def is_library_info(line: str) -> bool:
    """Return whether a log line is an INFO line of a library, in logfmt or JSON.

    >>> is_library_info('2026-01-01T00:00:00.000Z INFO logger=uvicorn.error msg="Shutting down"')
    True
    >>> is_library_info("2026-01-01T00:00:00.000Z INFO queue=task_started queue_id=task_1")
    False
    """
    logfmt, json_level, json_logger = _LIBRARY_INFO
    return logfmt in line or (json_level in line and json_logger in line)
