"""Claim tokens: a pull agent sends one with each request about a claim that it holds.

A token is `overnight_claim_<task>_<epoch>_<digest>`. The digest is computed from the random token
in the claim's row alone, so whoever can read the row or the message in Redis can compute it. It
becomes invalid when the claim ends, and allows what a run may do (heartbeat, progress, result,
spawn) for that task only.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Literal, assert_never, cast
from uuid import UUID

from overnight.errors import StaleAttempt, TaskNotFound
from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.store.db import ActingUser, Db
from overnight_server.store.statements import statement

PREFIX = "overnight_claim_"
SHAPE = re.compile(PREFIX + r"([0-9a-f]{32})_([1-9][0-9]{0,8})_([0-9a-f]{64})")
ClaimStatus = Literal["held", "superseded", "over"]


class ClaimOver(Exception):
    """The token is invalid, or its claim has ended; the response does not say which."""


class ClaimEnded(ClaimOver):
    """The token was valid, and the claim has ended."""

    def __init__(self, user_id: UserId, epoch: int) -> None:
        super().__init__()
        self.user_id = user_id
        self.epoch = epoch


class Superseded(StaleAttempt):
    """The token was valid, but a later attempt holds the task now."""

    def __init__(self, user_id: UserId, epoch: int) -> None:
        super().__init__()
        self.user_id = user_id
        self.epoch = epoch


@dataclass(frozen=True)
class ClaimHolder:
    """The claim that a token proves, and the owner of its task."""

    claim: Claim
    user_id: UserId

    @property
    def served(self) -> ActingUser:
        """The user and actor that the database transaction of this run acts for."""
        return ActingUser(self.user_id, f"claim:{self.claim.task_id}:{self.claim.epoch}")


def token_of(claim: Claim) -> str:
    """Return the token of a claim; nothing is created or stored."""
    return f"{PREFIX}{claim.task_id.hex}_{claim.epoch}_{_digest(claim)}"


def verify(db: Db, task_id: TaskId, token: str) -> ClaimHolder:
    """Return the claim that a token proves, if it still holds this task.

    Raises TaskNotFound for the token of another task, StaleAttempt if a later attempt holds the
    task, and ClaimOver for every other token that is not valid. The claim may end right after this
    check: each write also compares epoch and token.
    """
    parts = SHAPE.fullmatch(token)
    if parts is None:
        raise ClaimOver
    if UUID(parts[1]) != task_id:
        raise TaskNotFound
    params = {"task_id": task_id, "epoch": int(parts[2]), "digest": parts[3]}
    row = db.atomically(lambda tx: tx.execute(statement("holder_of_claim"), params).one_or_none())
    if row is None:
        raise ClaimOver
    status = cast("ClaimStatus", row.claim_status)
    match status:
        case "held":
            return ClaimHolder(Claim(task_id, int(parts[2]), row.token), UserId(row.user_id))
        case "superseded":
            raise Superseded(UserId(row.user_id), int(parts[2]))
        case "over":
            raise ClaimEnded(UserId(row.user_id), int(parts[2]))
        case _:
            assert_never(status)


def _digest(claim: Claim) -> str:
    text = f"overnight-claim|{claim.task_id}|{claim.epoch}|{claim.token}"
    return hashlib.sha256(text.encode()).hexdigest()
