"""What the agent driver records about a run: its start, its heartbeats and its end."""

from sqlalchemy.exc import DataError

from overnight.errors import StaleAttempt
from overnight_server.control.claim_tokens import ClaimHolder
from overnight_server.domain.claims import Claim
from overnight_server.domain.results import Result
from overnight_server.domain.verdicts import Verdict
from overnight_server.outcome.agent_claims import HeldClaim, has_ended, read_claim
from overnight_server.outcome.heartbeat import CostSoFar, HeartbeatAnswer, heartbeat
from overnight_server.outcome.settle import settle_all, unstorable
from overnight_server.outcome.start import start
from overnight_server.store.db import Db

# How a claim ends if its agent reported the end itself.
REPORTED = frozenset(
    {"completed", "failed", "deferred", "timeout", "plan_timeout", "suspended", "released", "busy"}
)


def start_run(db: Db, held_claim: HeldClaim) -> bool:
    """Start a claimed task; return False if the claim has ended. A repetition does no harm."""
    claim = held_claim.run.claim
    if start(_acting(db, held_claim), claim, holder=held_claim.agent, lease=held_claim.lease):
        return True
    try:
        return read_claim(db, claim, held_claim.lease).has_begun
    except StaleAttempt:
        return False


def extend_run(
    db: Db, held_claim: HeldClaim, progress: dict[str, object] | None, cost_usd: float
) -> HeartbeatAnswer:
    """Record that the agent still works on a run, its progress and its cost so far."""
    owner = held_claim.run.user_id
    return heartbeat(
        _acting(db, held_claim),
        held_claim.run.claim,
        lease=held_claim.lease,
        progress=progress,
        cost=CostSoFar(owner, cost_usd) if cost_usd else None,
    )


def end_run(db: Db, held_claim: HeldClaim, result: Result) -> Verdict | None:
    """Settle a run; return the verdict, or None if the claim has ended already."""
    if not is_held(db, held_claim):
        return None
    acting, run = _acting(db, held_claim), held_claim.run
    try:
        settled = settle_all(acting, [(run, result)], agent=held_claim.agent)
    except DataError as error:
        settled = settle_all(acting, [(run, unstorable(result, error))], agent=held_claim.agent)
    # A slot is free, and other tasks may have waited for this one.
    db.wake()
    return settled.won[0].verdict if settled.won else None


def is_held(db: Db, held_claim: HeldClaim) -> bool:
    """Return whether a run still holds its task."""
    try:
        read_claim(db, held_claim.run.claim, held_claim.lease)
    except StaleAttempt:
        return False
    return True


def was_reported(db: Db, claim: Claim) -> bool:
    """Return whether a claim has ended because its agent reported so with the claim's token."""
    return has_ended(db, claim.task_id, claim.epoch, REPORTED)


def _acting(db: Db, held_claim: HeldClaim) -> Db:
    """Return the database with the run as the actor of events."""
    return db.acting_for(ClaimHolder(held_claim.run.claim, held_claim.run.user_id).served)
