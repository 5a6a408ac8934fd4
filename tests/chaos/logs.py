"""Check the logs of servers and services: a fault must explain every error in them."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tests.chaos.checks import Findings, as_findings
from tests.chaos.stack import ChaosStack

# Errors that Postgres may log when it and its clients are killed; any other is a finding.
OF_POSTGRES: Final = re.compile(
    r"terminating connection|canceling statement|could not receive data|the database system is"
    r"|unexpected EOF|connection to client lost|could not send data|lock timeout"
    r"|canceling authentication|incomplete startup packet|invalid length of startup packet"
    r"|Connection reset by peer|statement timeout|idle-in-transaction|interrupted; last known up"
)
SEVERE: Final = re.compile(r"\b(?:ERROR|FATAL|PANIC): +(.*)")
# Errors that a process may log while a server is stopped, suspended or cut off. While Postgres is
# suspended every connection waits for it; a connection that is never returned is a leak.
SERVER_AWAY: Final = re.compile(
    r"server closed the connection|[Cc]onnection (?:refused|reset|closed|timed out|was aborted)"
    r"|Broken pipe|Timeout (?:reading|connecting)|timeout expired|timed out|connection to server at"
    r"|terminating connection|the database system is|lock timeout|statement timeout"
    r"|Error while reading from|Error \d+ (?:while )?(?:writing|connecting)|Redis is loading"
    r"|could not receive data from server|could not send data to server|no answer within"
    r"|every connection is in use|connection already closed"
    # Nobody cancels statements here: Postgres calls a statement timeout that strikes just as the
    # statement ends a request of the user.
    r"|canceling statement due to user request"
    # A full Redis refuses writes.
    r"|OOM command not allowed|used memory > 'maxmemory'"
)
# Errors that a worker logs when a child was killed, by a fault or by poison.
CHILD_KILLED: Final = re.compile(
    r"exited with 'signal 9 \(SIGKILL\)'|Worker exited prematurely: signal 9 \(SIGKILL\)"
)
# A run that was suspended beyond its lease is ended by its watchdog, which prints the stacks of all
# threads; printing them while they run may crash the process a moment earlier.
WATCHDOG: Final = re.compile(r"^Timeout \(\d+:\d+:\d+(?:\.\d+)?\)!", re.MULTILINE)
BY_WATCHDOG: Final = re.compile(
    r"exited (?:with '|prematurely: )(?:exitcode 1\b|signal 11 \(SIGSEGV\))"
)
STAMPED: Final = re.compile(r"(?P<at>\d{4}-\d\d-\d\dT[\d:.]+Z) (?P<level>[A-Z]+) (?P<text>.*)")
TRACEBACK: Final = "Traceback (most recent call last)"
SEVERE_LEVELS: Final = {"ERROR", "CRITICAL"}
# Ids, numbers and addresses vary; without them equal errors can be counted.
VARYING: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|task_\w{20,}|\d+")
SHOWN_LENGTH: Final = 240


@dataclass(frozen=True)
class LogError:
    """An error or an uncaught traceback in a log; `at` is None if the line has no time."""

    at: datetime | None
    text: str

    @property
    def cause(self) -> str:
        """The cause: the last error of a traceback, else the whole text."""
        if TRACEBACK not in self.text:
            return self.text
        lines = self.text[self.text.rindex(TRACEBACK) :].replace("\\n", "\n").splitlines()
        return next((line for line in lines[1:] if line[:1] not in (" ", "")), self.text)

    @property
    def is_explained(self) -> bool:
        """Whether a lost server or a killed child explains it."""
        return bool(SERVER_AWAY.search(self.cause) or CHILD_KILLED.search(self.cause))


def log_errors(text: str) -> Iterator[LogError]:
    """Yield the errors and the uncaught tracebacks of a log."""
    lines = iter(text.splitlines())
    for line in lines:
        stamped = STAMPED.match(line)
        if stamped is None:
            if line.startswith(TRACEBACK):
                yield LogError(None, "\n".join([line, *_traceback(lines)]))
        elif stamped["level"] in SEVERE_LEVELS or TRACEBACK in line:
            at = datetime.strptime(stamped["at"], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
            yield LogError(at, stamped["text"])


def _traceback(lines: Iterator[str]) -> Iterator[str]:
    """Yield lines up to the error, which is the first line that is not indented."""
    for line in lines:
        yield line
        if line[:1] not in (" ", ""):
            return


def of_postgres(stack: ChaosStack) -> tuple[Findings, Counter[str]]:
    """Find errors in the log of Postgres, such as deadlocks; also return all error counts."""
    text = stack.postgres.log.read_text(errors="replace")
    errors = Counter(VARYING.sub("…", message) for message in SEVERE.findall(text))
    ours = [f"{n} times {text}" for text, n in errors.items() if not OF_POSTGRES.search(text)]
    return as_findings({"errors in the log of Postgres": ours}), errors


def of_deployment(
    stack: ChaosStack, quiet_since: datetime | None = None
) -> tuple[Findings, Counter[str]]:
    """Find errors of services that no fault explains; also return the counts of log events.

    After `quiet_since` no fault was active, so every error is a finding.
    """
    events: Counter[str] = Counter()
    ours: Counter[str] = Counter()
    late: Counter[str] = Counter()
    for name in stack.services:
        text = stack.log_text(name)
        events.update(re.findall(r"\bqueue=(\w+)", text))
        for error in log_errors(text):
            description = f"{name}: {VARYING.sub('…', error.cause)[:SHOWN_LENGTH]}"
            by_watchdog = BY_WATCHDOG.search(error.cause) and WATCHDOG.search(text)
            if not (error.is_explained or by_watchdog):
                ours[description] += 1
            elif quiet_since is not None and error.at is not None and error.at > quiet_since:
                late[description] += 1
            else:
                events[f"error: {description}"] += 1
    return as_findings(
        {
            "errors that no fault explains": [f"{n} times {text}" for text, n in ours.items()],
            "errors after all faults had ended": [f"{n} times {text}" for text, n in late.items()],
        }
    ), events


def of_audit(stack: ChaosStack) -> Findings:
    """Return what the audit of the deployment found while faults were injected: it must be nothing.

    Some log lines are lost with a killed process, but no row of a finding is.
    """
    rows = stack.deployment.rows("SELECT check_name, subject, status, detail FROM audit_findings")
    return as_findings({"findings of the audit": [str(row) for row in rows]})
