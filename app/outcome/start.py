"""Beginning claimed runs."""

import json
from collections.abc import Sequence
from dataclasses import fields
from datetime import timedelta
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Row

from app.domain.claims import Claim, Failure, Run
from app.domain.ids import DagId, UserId
from app.domain.lifecycle import Event, sources, target
from app.domain.retry import Escalation, RetryPolicy, Strategy
from app.faults import fault
from app.store.db import Db
from app.store.statements import statement


def start(db: Db, claim: Claim, *, holder: str, lease: timedelta) -> Run | None:
    """Turn a fresh claim into a run, or return None if it is not this caller's to start."""
    runs = start_all(db, [claim], holder=holder, lease=lease)
    return runs[0] if runs else None


def start_all(db: Db, claims: Sequence[Claim], *, holder: str, lease: timedelta) -> list[Run]:
    """Turn fresh claims into runs, in the order given; those not the caller's are left out.

    A message that came late, twice or forged matches nothing: that is no error.
    """
    runs = db.atomically(lambda tx: begin(tx, claims, holder=holder, lease=lease))
    fault("start.after_commit")
    return runs


def begin(tx: Connection, claims: Sequence[Claim], *, holder: str, lease: timedelta) -> list[Run]:
    """Turn fresh claims into runs in the caller's transaction."""
    claims = list(dict.fromkeys(claims))
    rows = tx.execute(
        statement("start"),
        {
            "claims": json.dumps([_message(claim) for claim in claims]),
            "holder": holder,
            "lease": lease.total_seconds(),
            "sources": sources(Event.START),
            "target": target(Event.START),
        },
    )
    begun = {row.id: row for row in rows}
    fault("start.before_commit")
    return [_run(claim, begun[claim.task_id]) for claim in claims if claim.task_id in begun]


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


def _message(claim: Claim) -> dict[str, object]:
    return {"task_id": str(claim.task_id), "epoch": claim.epoch, "token": str(claim.token)}


def _run(claim: Claim, row: Row[Any]) -> Run:
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
    )
