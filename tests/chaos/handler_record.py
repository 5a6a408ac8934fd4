"""The record that the chaos handlers write of their runs, as an append-only file of JSON lines."""

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from overnight_server.domain.ids import parse_task
from tests.support.recorded_actions import RecordedAction

#: Environment variable with the path of the record.
RECORD_PATH: Final = "CHAOS_HANDLER_RECORD"


def append(what: str, key: str, **more: object) -> None:
    """Append one line in a single write, so that lines of several processes never mix.

    `guard` is the pid that Celery knows the process by.
    """
    process = {"pid": os.getpid(), "guard": os.getppid()}
    line = {"what": what, "key": key, **process, "at": time.monotonic(), **more}
    file = os.open(os.environ[RECORD_PATH], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


@dataclass
class HandlerRecord:
    """Starts and ends of runs; the key of a run is `<task>:<epoch>`."""

    starts: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    ends: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def read(cls, path: Path) -> "HandlerRecord":
        """Read the record; return an empty one if no handler has written yet."""
        return cls.of(path.read_text().splitlines() if path.exists() else [])

    @classmethod
    def of(cls, lines: Iterable[str]) -> "HandlerRecord":
        """Sort lines into starts and ends."""
        record = cls()
        for text in lines:
            line = json.loads(text)
            (record.starts if line["what"] == "start" else record.ends)[line["key"]].append(line)
        return record

    def recorded_actions(self) -> list[RecordedAction]:
        """Return one action for each start with its end, and for each end without a start."""
        missing: dict[str, Any] = {}
        return [
            _recorded_action(key, start, end)
            for key in self.starts.keys() | self.ends.keys()
            for start, end in zip_longest(
                self.starts.get(key, ()), self.ends.get(key, ()), fillvalue=missing
            )
        ]

    def running_pids(self) -> set[int]:
        """Return the pids of processes that have started a run and not ended it."""
        return {
            start["pid"]
            for key, starts in self.starts.items()
            for start in starts
            if all(end["pid"] != start["pid"] for end in self.ends.get(key, ()))
        }

    def overtaken(self) -> list[str]:
        """Return the runs whose handler ended after a later run of the task had started.

        This is unavoidable in a process that was stopped beyond its lease; the result of such a
        run must not be accepted.
        """
        started_at: dict[str, dict[int, float]] = defaultdict(dict)
        for key, lines in self.starts.items():
            task, _, epoch = key.rpartition(":")
            started_at[task][int(epoch)] = lines[0]["at"]
        late = []
        for key, lines in self.ends.items():
            task, _, epoch = key.rpartition(":")
            later = [at for other, at in started_at[task].items() if other > int(epoch)]
            if later and lines[0]["at"] > min(later):
                late.append(key)
        return late


def _recorded_action(key: str, start: dict[str, Any], end: dict[str, Any]) -> RecordedAction:
    task, _, epoch = key.rpartition(":")
    run = parse_task(task), int(epoch), (start or end)["token_suffix"]
    if start.get("pid") != end.get("pid"):
        return RecordedAction(*run)
    return RecordedAction(*run, seconds=end["at"] - start["at"], ok=end["ok"])
