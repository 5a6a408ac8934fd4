"""Claim tokens: an agent outside the deployment shows one to act for one claim while it holds it.

A token reads `overnight_claim_<task>_<epoch>_<digest>`. The digest is made from the random token
that the claim itself carries, so there is no secret to keep or to change, nothing to store and
nothing to clean up: with the claim the token ends, whoever ended it. It opens what a run may do
(heartbeat, progress, result, spawn) for that very task, and no other door.
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
Standing = Literal["held", "superseded", "over"]


class ClaimOver(Exception):
    """The token was never good, or its claim has ended; which of the two is not told."""


class ClaimEnded(ClaimOver):
    """The token was good, so that its holder may know: the claim it was made for has ended."""

    def __init__(self, user_id: UserId, epoch: int) -> None:
        super().__init__()
        self.user_id = user_id
        self.epoch = epoch


class Superseded(StaleAttempt):
    """The token was good, but a later attempt has the task now."""

    def __init__(self, user_id: UserId, epoch: int) -> None:
        super().__init__()
        self.user_id = user_id
        self.epoch = epoch


@dataclass(frozen=True)
class Holder:
    """A run that holds its task: the claim to act with, and whose task it is."""

    claim: Claim
    user_id: UserId

    @property
    def served(self) -> ActingUser:
        """What the database must know to serve this run and nobody else."""
        return ActingUser(self.user_id, f"claim:{self.claim.task_id}:{self.claim.epoch}")


def issue(claim: Claim) -> str:
    """Return the token of a claim; the same claim always has the same."""
    return f"{PREFIX}{claim.task_id.hex}_{claim.epoch}_{_digest(claim)}"


def verify(db: Db, task_id: TaskId, shown: str) -> Holder:
    """Return the run that shows this token about this task, if it holds the task still.

    Another task's token raises TaskNotFound, that of an attempt which a later one has taken over
    from StaleAttempt, and any other that is not good ClaimOver. Nothing is changed. The answer may
    be old a moment later: whatever is then done goes through the claim's own compare-and-set.
    """
    found = SHAPE.fullmatch(shown)
    if found is None:
        raise ClaimOver
    if UUID(found[1]) != task_id:
        raise TaskNotFound
    named = {"task_id": task_id, "epoch": int(found[2]), "digest": found[3]}
    row = db.atomically(lambda tx: tx.execute(statement("holder_of_claim"), named).one_or_none())
    if row is None:
        raise ClaimOver
    standing = cast("Standing", row.claim_status)
    match standing:
        case "held":
            return Holder(Claim(task_id, int(found[2]), row.token), UserId(row.user_id))
        case "superseded":
            raise Superseded(UserId(row.user_id), int(found[2]))
        case "over":
            raise ClaimEnded(UserId(row.user_id), int(found[2]))
        case _:
            assert_never(standing)


def _digest(claim: Claim) -> str:
    text = f"overnight-claim|{claim.task_id}|{claim.epoch}|{claim.token}"
    return hashlib.sha256(text.encode()).hexdigest()
