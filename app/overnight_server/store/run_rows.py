"""Converts rows of claimed tasks to `Run`, the value from which a worker executes and settles."""

import json
from dataclasses import fields
from functools import lru_cache

from overnight_server.domain.claims import Claim, FailedRun, Run
from overnight_server.domain.ids import DagId, UserId
from overnight_server.domain.retry import Escalation, RetryRules, Strategy
from overnight_server.store.batched_statements import ResultRow


def run_of(claim: Claim, row: ResultRow) -> Run:
    """Return the run of a row that the statements start, claim or held_claim returned."""
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
        execution=row.execution,
    )


@lru_cache
def policy_of(text: str) -> RetryRules:
    """Return the retry policy that a JSON text describes; cached, because most tasks share one.

    Fields and values that this release does not know are ignored: such a row, written by another
    release, must not fail a reaper's whole batch.
    """
    stored = json.loads(text)
    values = {
        field.name: stored[field.name] for field in fields(RetryRules) if field.name in stored
    }
    strategy = values.pop("strategy", None)
    if strategy in set(Strategy):
        values["strategy"] = Strategy(strategy)
    escalation = values.pop("escalate", None)
    if escalation in set(Escalation):
        values["escalate"] = Escalation(escalation)
    for name in ("retry_on", "no_retry_on"):
        if name in values:
            values[name] = tuple(values[name])
    return RetryRules(**values)


def failures_of(stored: list[dict[str, str]] | None) -> tuple[FailedRun, ...]:
    """Return earlier failures from the JSON that `spent_runs` aggregated."""
    return tuple(FailedRun(entry["agent"], entry["outcome"]) for entry in stored or ())
