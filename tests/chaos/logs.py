"""What the servers and the processes said: every complaint is ours unless a fault explains it."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tests.chaos.checks import Findings, named
from tests.chaos.stack import ChaosStack

# What Postgres may complain of when it and its clients are killed; anything else is ours.
OF_POSTGRES: Final = re.compile(
    r"terminating connection|canceling statement|could not receive data|the database system is"
    r"|unexpected EOF|connection to client lost|could not send data|lock timeout"
    r"|canceling authentication|incomplete startup packet|invalid length of startup packet"
    r"|Connection reset by peer|statement timeout|idle-in-transaction|interrupted; last known up"
)
SEVERE: Final = re.compile(r"\b(?:ERROR|FATAL|PANIC): +(.*)")
# What a process may say while a server is away, silent or cut off, and what it may be told then.
# While Postgres is silent every connection waits for it; one that is never given back is a leak.
SERVER_AWAY: Final = re.compile(
    r"server closed the connection|[Cc]onnection (?:refused|reset|closed|timed out|was aborted)"
    r"|Broken pipe|Timeout (?:reading|connecting)|timeout expired|timed out|connection to server at"
    r"|terminating connection|the database system is|lock timeout|statement timeout"
    r"|Error while reading from|Error \d+ (?:while )?(?:writing|connecting)|Redis is loading"
    r"|could not receive data from server|could not send data to server|no answer within"
    r"|every connection is in use|connection already closed"
)
# What a worker says of a child that was killed: by us, or by poison.
CHILD_KILLED: Final = re.compile(
    r"exited with 'signal 9 \(SIGKILL\)'|Worker exited prematurely: signal 9 \(SIGKILL\)"
)
# A run that was frozen beyond its lease is ended by its own watchdog, which shows where it stood;
# to look at threads that run again meanwhile may end the process a moment earlier.
WATCHDOG: Final = re.compile(r"^Timeout \(\d+:\d+:\d+(?:\.\d+)?\)!", re.MULTILINE)
BY_WATCHDOG: Final = re.compile(
    r"exited (?:with '|prematurely: )(?:exitcode 1\b|signal 11 \(SIGSEGV\))"
)
STAMPED: Final = re.compile(r"(?P<at>\d{4}-\d\d-\d\dT[\d:.]+Z) (?P<level>[A-Z]+) (?P<said>.*)")
BEGINNING: Final = "Traceback (most recent call last)"
SEVERE_LEVELS: Final = {"ERROR", "CRITICAL"}
# Names, numbers and addresses differ each time; the same complaint is counted, not repeated.
VARYING: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|task_\w{20,}|\d+")
SHOWN_LENGTH: Final = 240


@dataclass(frozen=True)
class Complaint:
    """Something a process said that should not be said on a good day; `at`: if it said when."""

    at: datetime | None
    said: str

    @property
    def cause(self) -> str:
        """What it comes to: of a traceback, the error it ends with."""
        if BEGINNING not in self.said:
            return self.said
        lines = self.said[self.said.rindex(BEGINNING) :].replace("\\n", "\n").splitlines()
        return next((line for line in lines[1:] if line[:1] not in (" ", "")), self.said)

    @property
    def is_explained(self) -> bool:
        """Whether a broken server or a killed child is enough to explain it."""
        return bool(SERVER_AWAY.search(self.cause) or CHILD_KILLED.search(self.cause))


def complaints(text: str) -> Iterator[Complaint]:
    """Find what a process complained of, and the tracebacks that nobody caught."""
    lines = iter(text.splitlines())
    for line in lines:
        stamped = STAMPED.match(line)
        if stamped is None:
            if line.startswith(BEGINNING):
                yield Complaint(None, "\n".join([line, *_traceback(lines)]))
        elif stamped["level"] in SEVERE_LEVELS or BEGINNING in line:
            at = datetime.strptime(stamped["at"], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
            yield Complaint(at, stamped["said"])


def _traceback(lines: Iterator[str]) -> Iterator[str]:
    """Take lines up to the error, which is the first that is not indented."""
    for line in lines:
        yield line
        if line[:1] not in (" ", ""):
            return


def of_postgres(stack: ChaosStack) -> tuple[Findings, Counter[str]]:
    """What Postgres complained of: deadlocks, broken rules and too many clients are ours."""
    text = stack.postgres.log.read_text(errors="replace")
    errors = Counter(VARYING.sub("…", message) for message in SEVERE.findall(text))
    ours = [f"{n} times {said}" for said, n in errors.items() if not OF_POSTGRES.search(said)]
    return named({"errors in the log of Postgres": ours}), errors


def of_deployment(
    stack: ChaosStack, quiet_since: datetime | None = None
) -> tuple[Findings, Counter[str]]:
    """What the processes said, and what of it no fault explains.

    From `quiet_since` on nothing was broken any more, so nothing explains anything.
    """
    events: Counter[str] = Counter()
    ours: Counter[str] = Counter()
    late: Counter[str] = Counter()
    for name in stack.services:
        text = stack.log_text(name)
        events.update(re.findall(r"\bqueue=(\w+)", text))
        for one in complaints(text):
            told = f"{name}: {VARYING.sub('…', one.cause)[:SHOWN_LENGTH]}"
            by_watchdog = BY_WATCHDOG.search(one.cause) and WATCHDOG.search(text)
            if not (one.is_explained or by_watchdog):
                ours[told] += 1
            elif quiet_since is not None and one.at is not None and one.at > quiet_since:
                late[told] += 1
            else:
                events[f"complaint: {told}"] += 1
    return named(
        {
            "complaints that no fault explains": [f"{n} times {said}" for said, n in ours.items()],
            "complaints after all was healed": [f"{n} times {said}" for said, n in late.items()],
        }
    ), events


def drift(stack: ChaosStack) -> Findings:
    """What the audit found: a lane that does not agree with its rows is a bug, whatever broke."""
    lines = [line for name in stack.services for line in stack.log_text(name).splitlines()]
    return named({"lanes that drifted": [line for line in lines if "queue=lane_drift" in line]})
