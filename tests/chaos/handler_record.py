"""The fake agents' own record of what they did: lines that only grow, whoever is killed when."""

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

PLACE: Final = "CHAOS_TRUTH"


def note(what: str, key: str, **more: object) -> None:
    """Append one line; a single write, so that lines of many processes never mix."""
    line = {"what": what, "key": key, "pid": os.getpid(), "at": time.monotonic(), **more}
    place = os.open(os.environ[PLACE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(place, json.dumps(line).encode() + b"\n")
    finally:
        os.close(place)


@dataclass
class HandlerRecord:
    """What really happened, by run; a run is named `<task>:<epoch>`."""

    starts: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    ends: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def read(cls, place: Path) -> "HandlerRecord":
        """Read the record; a line that a kill cut short tells nothing."""
        return cls.of(place.read_text().splitlines() if place.exists() else [])

    @classmethod
    def of(cls, lines: Iterable[str]) -> "HandlerRecord":
        """Sort lines into starts and ends."""
        truth = cls()
        for text in lines:
            line = json.loads(text)
            (truth.starts if line["what"] == "start" else truth.ends)[line["key"]].append(line)
        return truth

    def recorded_actions(self) -> list[RecordedAction]:
        """Return the record run by run: each start with its end, and an end without a start."""
        return [
            _recorded_action(key, start, end)
            for key in self.starts.keys() | self.ends.keys()
            for start, end in zip_longest(
                self.starts.get(key, ()), self.ends.get(key, ()), fillvalue={}
            )
        ]

    def at_work(self) -> set[int]:
        """Return the processes that have begun a run and not come to its end."""
        return {
            start["pid"]
            for key, starts in self.starts.items()
            for start in starts
            if all(end["pid"] != start["pid"] for end in self.ends.get(key, ()))
        }

    def overtaken(self) -> list[str]:
        """Return runs whose handler came to its end after a later run of the task had begun.

        Nobody can prevent that in a process that was stopped beyond its lease; its result must
        not count, that is all.
        """
        begun: dict[str, dict[int, float]] = defaultdict(dict)
        for key, lines in self.starts.items():
            task, _, epoch = key.rpartition(":")
            begun[task][int(epoch)] = lines[0]["at"]
        late = []
        for key, lines in self.ends.items():
            task, _, epoch = key.rpartition(":")
            later = [at for other, at in begun[task].items() if other > int(epoch)]
            if later and lines[0]["at"] > min(later):
                late.append(key)
        return late


def _recorded_action(key: str, start: dict[str, Any], end: dict[str, Any]) -> RecordedAction:
    task, _, epoch = key.rpartition(":")
    run = parse_task(task), int(epoch), (start or end)["seal"]
    if start.get("pid") != end.get("pid"):
        return RecordedAction(*run)
    return RecordedAction(*run, seconds=end["at"] - start["at"], ok=end["ok"])
