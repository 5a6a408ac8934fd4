"""What agents themselves say of their runs, for whoever compares it with the rows."""

from dataclasses import dataclass
from typing import Final

from overnight_server.domain.ids import TaskId

SEAL_LENGTH: Final = 16


@dataclass(frozen=True)
class RecordedAction:
    """One time that an agent began to work.

    `seal` is the end of the token it was given for the claim. How long it worked, and whether it
    ended well, is only known of one that came to its end.
    """

    task_id: TaskId
    epoch: int
    seal: str
    seconds: float | None = None
    ok: bool | None = None


def token_suffix(token: str) -> str:
    """Return by what a claim's token is recognised; too little of it to act with."""
    return token[-SEAL_LENGTH:]
