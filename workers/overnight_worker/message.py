"""Reads the claims of a message; anyone who can write to Redis may have sent it."""

from collections.abc import Sequence
from uuid import UUID

from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import parse_task
from overnight_server.telemetry import get

_log = get(__name__)


def read_claims(arguments: Sequence[object]) -> list[Claim]:
    """Return the claims among a message's arguments; malformed arguments are left out."""
    return [claim for argument in arguments if (claim := _read(argument)) is not None]


def _read(argument: object) -> Claim | None:
    match argument:
        case [str(task_id), int(epoch), str(token)] if not isinstance(epoch, bool):
            try:
                return Claim(parse_task(task_id), epoch, UUID(token))
            except ValueError as error:
                _log.debug("a malformed message was dropped", error=error)
        case _:
            _log.debug("a message with arguments of other types was dropped")
    return None
