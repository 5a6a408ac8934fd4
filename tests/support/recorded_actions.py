"""The handlers' own record of their runs, which tests compare with the rows."""

from dataclasses import dataclass
from typing import Final

from overnight_server.domain.ids import TaskId

SUFFIX_LENGTH: Final = 16


@dataclass(frozen=True)
class RecordedAction:
    """One start of a handler.

    `token_suffix` identifies the claim token it was given. `seconds` and `ok` are None if the
    handler did not end.
    """

    task_id: TaskId
    epoch: int
    token_suffix: str
    seconds: float | None = None
    ok: bool | None = None


def token_suffix(token: str) -> str:
    """Return the end of a claim token, which identifies it and is too short to be used as one."""
    return token[-SUFFIX_LENGTH:]
