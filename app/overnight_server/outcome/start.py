"""Start claimed tasks: the holder of a fresh claim turns it into a run."""

import json
from collections.abc import Sequence
from datetime import timedelta

from overnight_server.domain.claims import Claim, Run
from overnight_server.domain.lifecycle import LifecycleEvent, sources, target
from overnight_server.fault_points import fault
from overnight_server.store.batched_statements import StatementCall
from overnight_server.store.db import Db
from overnight_server.store.run_rows import run_of


def start(db: Db, claim: Claim, *, holder: str, lease: timedelta) -> Run | None:
    """Start a claim and return its run; None if the claim has ended or was started already."""
    runs = start_all(db, [claim], holder=holder, lease=lease)
    return runs[0] if runs else None


def start_all(db: Db, claims: Sequence[Claim], *, holder: str, lease: timedelta) -> list[Run]:
    """Start claims and return their runs in the same order.

    Claims that have ended or were started already are left out: a late, repeated or forged message
    is no error.
    """
    claims = list(dict.fromkeys(claims))
    params = {
        "claims": json.dumps([_claim_row(claim) for claim in claims]),
        "holder": holder,
        "lease": lease.total_seconds(),
        "sources": sources(LifecycleEvent.START),
        "target": target(LifecycleEvent.START),
    }
    fault("start.before_commit")
    started = {row.id: row for row in db.run_batch(StatementCall("start", params))}
    fault("start.after_commit")
    return [run_of(claim, started[claim.task_id]) for claim in claims if claim.task_id in started]


def _claim_row(claim: Claim) -> dict[str, object]:
    return {"task_id": str(claim.task_id), "epoch": claim.epoch, "token": str(claim.token)}
