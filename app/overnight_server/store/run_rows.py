"""Reading a run back from its row: what a worker needs to carry it out and to judge its end."""

import json
from dataclasses import fields
from functools import lru_cache

from overnight_server.domain.claims import Claim, Failure, Run
from overnight_server.domain.ids import DagId, UserId
from overnight_server.domain.retry import Escalation, RetryPolicy, Strategy
from overnight_server.store.batched_statements import Answer


def run_of(claim: Claim, row: Answer) -> Run:
    """Read the run that a start, or a claim that begins at once, has answered with."""
    return Run(
        claim=claim,
        user_id=UserId(row.user_id),
        dag_id=DagId(row.dag_id),
        type=row.type,
        title=row.title,
        payload=row.payload,
        spec=row.spec,
        attempts=row.attempts,
        max_attempts=row.max_attempts,
        retry=policy_of(row.retry),
        granted_seconds=row.granted_seconds,
        plan_limited=row.plan_limited,
        failures=failures_of(row.failures),
        bundle=row.bundle,
        ceiling_usd=None if row.ceiling_usd is None else float(row.ceiling_usd),
        spent_usd=float(row.spent_usd),
        is_linked=row.is_linked,
    )


@lru_cache
def policy_of(text: str) -> RetryPolicy:
    """Read a retry policy back from its column's text; most tasks share one.

    What only another release knows is left out: one such row must not stop a reaper's batch.
    """
    stored = json.loads(text)
    known = {part.name: stored[part.name] for part in fields(RetryPolicy) if part.name in stored}
    strategy = known.pop("strategy", None)
    if strategy in set(Strategy):
        known["strategy"] = Strategy(strategy)
    rule = known.pop("escalate", None)
    if rule in set(Escalation):
        known["escalate"] = Escalation(rule)
    for name in ("retry_on", "no_retry_on"):
        if name in known:
            known[name] = tuple(known[name])
    return RetryPolicy(**known)


def failures_of(stored: list[dict[str, str]] | None) -> tuple[Failure, ...]:
    """Read earlier failures back from their aggregate."""
    return tuple(Failure(entry["agent"], entry["outcome"]) for entry in stored or ())
