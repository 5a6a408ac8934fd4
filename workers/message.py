"""What a message says: which claim to carry out. Anyone who reaches Redis can write one."""

from collections.abc import Sequence
from uuid import UUID

from app.domain.claims import Claim
from app.domain.ids import parse_task
from app.telemetry import get

_log = get(__name__)


def read_claim(arguments: Sequence[object]) -> Claim | None:
    """Read a message's arguments; None if they cannot be a claim of ours."""
    match arguments:
        case [str(task_id), int(epoch), str(token)] if not isinstance(epoch, bool):
            try:
                return Claim(parse_task(task_id), epoch, UUID(token))
            except ValueError as error:
                _log.debug("a malformed message was dropped", error=error)
        case _:
            _log.debug("a message with arguments of other types was dropped")
    return None
