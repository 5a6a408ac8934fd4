"""Report how a command fails: what happened, what to do, and an exit code for scripts."""

import json
from collections.abc import Mapping, Sequence
from enum import IntEnum

from overnight_server.cli.terminal.output import note


class Code(IntEnum):
    """The exit codes of `overnight`."""

    OK = 0
    FAILED = 1
    USAGE = 2
    WAIT_TIMED_OUT = 3
    DECLINED = WAIT_TIMED_OUT
    NOT_AUTHENTICATED = 4
    NOT_COMPLETED = 5
    LIMITED = 6
    INCONCLUSIVE = 7
    INTERRUPTED = 130


class CommandFailure(Exception):
    """An expected failure, reported without a traceback.

    `error_code` names it for programs. `lines` are printed before the message, one for each fault
    of a file; programs read the same faults as `faults`.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        code: Code = Code.FAILED,
        error_code: str = "",
        lines: Sequence[str] = (),
        faults: Sequence[Mapping[str, object]] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code
        self.error_code = error_code or code.name
        self.lines = lines
        self.faults = faults


def report(failure: CommandFailure, *, as_json: bool = False) -> None:
    """Print on stderr what went wrong and what to do about it."""
    message = " ".join(failure.message.split())
    if as_json:
        error = {"code": failure.error_code, "message": message, "hint": failure.hint or None}
        faults = {"faults": failure.faults} if failure.faults else {}
        note(json.dumps({"error": {**error, **faults}}, ensure_ascii=False))
        return
    for line in failure.lines:
        note(line)
    note(f"Error: {message}")
    for line in failure.hint.splitlines():
        note(line)
