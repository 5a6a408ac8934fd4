"""Reads the events that a command writes to descriptor 3: one JSON object per line.

{"event": "progress", "fraction": 0.4, "message": "page 4 of 10"}
{"event": "log", "message": "fetched", "pages": 10}
{"event": "cost", "usd": 0.02, "input_tokens": 900, "output_tokens": 150}
{"event": "artifact", "name": "report", "text": "…"} or {…, "json": …}
{"event": "result", "output": {"summary": "Fixed the login."}}

Only this descriptor is read for events: what an agent prints may be anybody's text. A line that is
no event is logged and otherwise ignored.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from overnight.handlers.control_exceptions import Stopped
from overnight_worker.run_context import RunContext

MAX_LINE_BYTES: Final = 1 << 20
READ_BYTES: Final = 1 << 16
SHOWN_CHARACTERS: Final = 200
# A message may quote the event, which may be long.
ERROR_CHARACTERS: Final = 500
_NO_RESULT: Final = object()


class CommandEvents:
    """The events of one command; `result` is the output of its last result event, if it has one."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._result: object = _NO_RESULT

    @property
    def has_result(self) -> bool:
        """Whether the command has reported a result."""
        return self._result is not _NO_RESULT

    @property
    def result(self) -> object:
        """The result that the command has reported; None without one."""
        return self._result if self.has_result else None

    def read(self, descriptor: int) -> None:
        """Read events until the end of the file."""
        for line in lines_of(descriptor, on_too_long=self._refuse_long):
            self._read_line(line)

    def _read_line(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            event = json.loads(line)
            self._apply(event)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            reason = str(error)[:ERROR_CHARACTERS]
            shown = line[:SHOWN_CHARACTERS].decode(errors="replace")
            self._context.log("an event was ignored", error=reason, line=shown)
        except Stopped as stop:
            # The command ends soon; until then it must not wait for somebody to read its events.
            self._context.log("an event came too late", error=f"the run is stopped: {stop.reason}")
        except Exception as error:  # noqa: BLE001 - no event may end the run
            reason = str(error)[:ERROR_CHARACTERS]
            self._context.log("an event could not be applied", error=reason)

    def _refuse_long(self) -> None:
        self._context.log("an event was ignored", error=f"it is longer than {MAX_LINE_BYTES} bytes")

    def _apply(self, event: Mapping[str, Any]) -> None:
        if not isinstance(event, dict):
            raise TypeError("an event is a JSON object")
        kind = event.get("event")
        if kind not in _APPLY:
            raise ValueError(f"{kind!r} is no event; legal: {', '.join(sorted(_APPLY))}, result")
        fields = {name: value for name, value in event.items() if name != "event"}
        if kind == "result":
            self._result = fields.get("output")
        else:
            _APPLY[kind](self._context, fields)


def _progress(context: RunContext, fields: dict[str, Any]) -> None:
    context.progress(fields.pop("fraction", None), fields.pop("message", None), **fields)


def _log(context: RunContext, fields: dict[str, Any]) -> None:
    message = str(fields.pop("message", ""))
    context.log(message, **fields)


def _cost(context: RunContext, fields: dict[str, Any]) -> None:
    context.cost_soon(
        float(fields["usd"]),
        input_tokens=int(fields.get("input_tokens", 0)),
        output_tokens=int(fields.get("output_tokens", 0)),
    )


def _artifact(context: RunContext, fields: dict[str, Any]) -> None:
    if "json" in fields:
        context.artifact(fields["name"], json=fields["json"])
    else:
        context.artifact(fields["name"], str(fields["text"]))


_APPLY: Final[dict[str, Callable[[RunContext, dict[str, Any]], None]]] = {
    "progress": _progress,
    "log": _log,
    "cost": _cost,
    "artifact": _artifact,
    "result": lambda _context, _fields: None,
}


def lines_of(
    descriptor: int, *, on_too_long: Callable[[], None], longest: int = MAX_LINE_BYTES
) -> Iterator[bytes]:
    """Yield the complete and the last lines that are read, without those that are too long."""
    buffer = bytearray()
    is_dropping = False
    while data := os.read(descriptor, READ_BYTES):
        buffer += data
        *complete, rest = buffer.split(b"\n")
        for line in complete:
            if is_dropping:
                is_dropping = False
            elif len(line) > longest:
                on_too_long()
            else:
                yield bytes(line)
        buffer = bytearray(rest)
        if len(buffer) > longest and not is_dropping:
            on_too_long()
            is_dropping = True
        if is_dropping:
            buffer.clear()
    if buffer and not is_dropping:
        yield bytes(buffer)
