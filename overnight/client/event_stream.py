"""Read the service's event stream, reconnecting where the connection broke."""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from pydantic import ValidationError

from overnight.client.calls import HEARTBEAT_SECONDS, Call, path, without_none
from overnight.client.request_plan import Emit, ItemSteps, OpenStream, ReadLine, Sleep
from overnight.client.retry import MAX_OUTAGE_SECONDS, backoff, is_temporary
from overnight.errors import NotUnderstood, Refused, Unreachable
from overnight.models.tasks import Event

END = "end"


@dataclass
class Parser:
    r"""Parses server-sent events line by line; `last_id` is the id to resume after.

    >>> parser = Parser()
    >>> [event for line in ["id: 7", "data: a", "data: b", ""] for event in parser.feed(line)]
    [('message', 'a\nb')]
    >>> parser.last_id
    7
    """

    last_id: int | None = None
    _id: int | None = None
    _kind: str = ""
    _data: list[str] = field(default_factory=list)

    def feed(self, line: str) -> Iterator[tuple[str, str]]:
        """Parse one line, and yield the event that it completes as its kind and its data."""
        if line:
            name, _, value = line.partition(":")
            self._set_field(name, value.removeprefix(" "))
            return
        # The id counts from the blank line on: an incomplete event must be sent again.
        kind, data, is_event = self._kind or "message", "\n".join(self._data), bool(self._data)
        if self._id is not None:
            self.last_id = self._id
        self.discard()
        if is_event:
            yield kind, data

    def discard(self) -> None:
        """Drop the lines of an event that is not complete."""
        self._id, self._kind, self._data = None, "", []

    def _set_field(self, name: str, value: str) -> None:
        match name:
            case "id" if value.isdigit():
                self._id = int(value)
            case "event":
                self._kind = value
            case "data":
                self._data.append(value)


def follow_events(
    *,
    retries: int,
    task_id: str | None = None,
    dag_id: str | None = None,
    after: int | None = None,
) -> ItemSteps[Event]:
    """Emit each event once and in order, over as many connections as it takes.

    Ends when the service sends `end`, because no event can follow. After the first response an
    outage is tolerated for a minute; before it, `retries` applies.
    """
    parser = Parser(after)
    responded_at: float | None = None
    failures = 0
    while True:
        try:
            yield OpenStream(_events(task_id, dag_id, after=parser.last_id))
            while (line := (yield ReadLine())) is not None:
                responded_at, failures, previous_id = time.monotonic(), 0, parser.last_id
                for kind, data in parser.feed(line):
                    if kind == END:
                        return
                    # A proxy may replay buffered events; ids only grow.
                    if previous_id is None or (parser.last_id or 0) > previous_id:
                        yield Emit(_event(data))
            minimum = 0.0
        except (Refused, Unreachable) as error:
            if responded_at is None:
                is_over = failures >= retries
            else:
                is_over = time.monotonic() - responded_at > MAX_OUTAGE_SECONDS
            if is_over or not is_temporary(error):
                raise
            minimum = getattr(error, "retry_after", None) or 0.0
        failures += 1
        yield Sleep(minimum + backoff(failures, random.random()))  # noqa: S311 - no secret
        parser.discard()


def _events(task_id: str | None, dag_id: str | None, *, after: int | None) -> Call[None]:
    return Call(
        "GET",
        path("events"),
        lambda _response: None,
        params=without_none({"task_id": task_id, "dag_id": dag_id}),
        headers={} if after is None else {"Last-Event-ID": str(after)},
        hold_seconds=HEARTBEAT_SECONDS,
    )


def _event(data: str) -> Event:
    try:
        return Event.model_validate_json(data)
    except ValidationError as error:
        raise NotUnderstood("the event stream sent data that is not an event") from error
