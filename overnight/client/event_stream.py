"""Read the service's streams of events and logs, reconnecting where the connection broke."""

import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from pydantic import ValidationError

from overnight.client.calls import HEARTBEAT_SECONDS, Call, M, path, without_none
from overnight.client.request_plan import Emit, ItemSteps, OpenStream, ReadLine, Sleep
from overnight.client.retry import MAX_OUTAGE_SECONDS, backoff, is_temporary
from overnight.errors import NotUnderstood, Refused, Unreachable
from overnight.models.account import LogChunk
from overnight.models.tasks import Event

END = "end"


@dataclass
class Parser:
    r"""Parses server-sent events line by line; `last_id` is the id to resume after.

    >>> parser = Parser()
    >>> [event for line in ["id: 7", "data: a", "data: b", ""] for event in parser.feed(line)]
    [('message', 'a\nb')]
    >>> parser.last_id
    '7'
    """

    last_id: str | None = None
    _id: str | None = None
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
            case "id":
                self._id = value
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
    """Emit each event once and in order, over as many connections as it takes."""
    params = without_none({"task_id": task_id, "dag_id": dag_id})
    yield from _follow(
        partial(_stream, path("events"), params),
        Event,
        retries=retries,
        after=None if after is None else str(after),
    )


def follow_log(
    task_id: str, *, retries: int, after: str | None = None, attempt: int | None = None
) -> ItemSteps[LogChunk]:
    """Emit each part of a task's log once and in order, over as many connections as it takes."""
    yield from _follow(
        partial(
            _stream, path("tasks", task_id, "logs", "stream"), without_none({"attempt": attempt})
        ),
        LogChunk,
        kind="chunk",
        retries=retries,
        after=after,
    )


def _follow(
    open_after: Callable[[str | None], Call[None]],
    model: type[M],
    *,
    retries: int,
    after: str | None,
    kind: str | None = None,
) -> ItemSteps[M]:
    """Emit each item of a stream once and in order; with `kind`, only events of that kind.

    Ends when the service sends `end`, because no item can follow. After the first response an
    outage is tolerated for a minute; before it, `retries` applies.
    """
    parser = Parser(after)
    responded_at: float | None = None
    failures = 0
    while True:
        try:
            yield OpenStream(open_after(parser.last_id))
            while (line := (yield ReadLine())) is not None:
                responded_at, failures, previous_id = time.monotonic(), 0, parser.last_id
                for received, data in parser.feed(line):
                    if received == END:
                        return
                    # A proxy may replay buffered events; ids only grow.
                    is_new = _position(parser.last_id) > _position(previous_id)
                    if is_new and kind in {None, received}:
                        yield Emit(_item(model, data))
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


def _stream(url: str, params: Mapping[str, str | int], after: str | None) -> Call[None]:
    return Call(
        "GET",
        url,
        lambda _response: None,
        params=params,
        headers={} if after is None else {"Last-Event-ID": after},
        hold_seconds=HEARTBEAT_SECONDS,
    )


def _position(event_id: str | None) -> tuple[int, ...]:
    """Return an id as numbers that can be compared; () comes before every id.

    >>> _position("2.10") > _position("2.9") > _position(None)
    True
    """
    return tuple(int(part) for part in (event_id or "").split(".") if part.isdigit())


def _item(model: type[M], data: str) -> M:
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise NotUnderstood("the event stream sent data that is not an event") from error
