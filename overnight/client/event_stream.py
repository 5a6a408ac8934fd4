"""Following what happens: an event stream that is taken up again where it broke."""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from pydantic import ValidationError

from overnight.client import task_calls
from overnight.client.retry import PATIENCE_SECONDS, backoff, is_passing
from overnight.client.scripts import Item, Line, Open, Pause, Series
from overnight.errors import NotUnderstood, Refused, Unreachable
from overnight.models.tasks import Event

END = "end"


@dataclass
class Parser:
    r"""Reads server-sent events line by line; `last_id` is where to resume.

    >>> parser = Parser()
    >>> [told for line in ["id: 7", "data: a", "data: b", ""] for told in parser.feed(line)]
    [('message', 'a\nb')]
    >>> parser.last_id
    7
    """

    last_id: int | None = None
    _id: int | None = None
    _kind: str = ""
    _data: list[str] = field(default_factory=list)

    def feed(self, line: str) -> Iterator[tuple[str, str]]:
        """Take one line, and yield the event it ends, as its kind and its data."""
        if line:
            name, _, value = line.partition(":")
            self._note(name, value.removeprefix(" "))
            return
        # An id counts with the blank line after it: an event that broke off was not told.
        kind, data, told = self._kind or "message", "\n".join(self._data), bool(self._data)
        if self._id is not None:
            self.last_id = self._id
        self.forget()
        if told:
            yield kind, data

    def forget(self) -> None:
        """Drop what was read of an event that did not end."""
        self._id, self._kind, self._data = None, "", []

    def _note(self, name: str, value: str) -> None:
        match name:
            case "id" if value.isdigit():
                self._id = int(value)
            case "event":
                self._kind = value
            case "data":
                self._data.append(value)


def follow(
    *,
    retries: int,
    task_id: str | None = None,
    dag_id: str | None = None,
    after: int | None = None,
) -> Series[Event]:
    """Yield events as they happen, none lost and none twice, over as many connections as it takes.

    Ends when the service says that nothing can follow. A service that was heard once is waited
    for while it restarts; one that never was gets its usual `retries`.
    """
    parser = Parser(after)
    heard: float | None = None
    failed = 0
    while True:
        try:
            yield Open(task_calls.events(task_id=task_id, dag_id=dag_id, after=parser.last_id))
            while (line := (yield Line())) is not None:
                heard, failed, seen = time.monotonic(), 0, parser.last_id
                for kind, data in parser.feed(line):
                    if kind == END:
                        return
                    # A proxy may repeat what it kept; an event has one id for ever.
                    if seen is None or parser.last_id is None or parser.last_id > seen:
                        yield Item(_event(data))
            asked = 0.0
        except (Refused, Unreachable) as error:
            silence = 0.0 if heard is None else time.monotonic() - heard
            given_up = failed >= retries if heard is None else silence > PATIENCE_SECONDS
            if given_up or not is_passing(error):
                raise
            asked = getattr(error, "retry_after", None) or 0.0
        failed += 1
        yield Pause(asked + backoff(failed, random.random()))  # noqa: S311 - no secret
        parser.forget()


def _event(data: str) -> Event:
    try:
        return Event.model_validate_json(data)
    except ValidationError as error:
        raise NotUnderstood("an event came that no Overnight server would send") from error
