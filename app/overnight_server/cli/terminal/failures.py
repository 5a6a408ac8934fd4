"""How a command fails: one line saying what, one saying what to do, and a code for scripts."""

import json
from collections.abc import Mapping, Sequence
from enum import IntEnum

from overnight_server.cli.terminal.output import note


class Code(IntEnum):
    """What a script may read from the exit code."""

    OK = 0
    FAILED = 1
    USAGE = 2
    WAITED_IN_VAIN = 3
    NOT_AUTHENTICATED = 4
    ENDED_BADLY = 5
    LIMITED = 6
    INCONCLUSIVE = 7
    INTERRUPTED = 130


class Failure(Exception):
    """An expected fault, told in one line without a traceback; `word` names it for programs.

    Several faults of one thing stand each on a line before it; programs read them as `faults`.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        code: Code = Code.FAILED,
        word: str = "",
        lines: Sequence[str] = (),
        faults: Sequence[Mapping[str, object]] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code
        self.word = word or code.name
        self.lines = lines
        self.faults = faults


def tell(
    message: str,
    hint: str = "",
    *,
    word: str = "",
    lines: Sequence[str] = (),
    faults: Sequence[Mapping[str, object]] = (),
    as_json: bool = False,
) -> None:
    """Say on stderr what went wrong and, if known, what to do about it."""
    if as_json:
        error = {"code": word, "message": " ".join(message.split()), "hint": hint or None}
        more = {"faults": faults} if faults else {}
        note(json.dumps({"error": {**error, **more}}, ensure_ascii=False))
        return
    for line in lines:
        note(line)
    note(f"Error: {' '.join(message.split())}")
    for line in hint.splitlines():
        note(line)
