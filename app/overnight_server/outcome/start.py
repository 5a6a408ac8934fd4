"""Beginning claimed runs."""

import json
from collections.abc import Sequence
from datetime import timedelta

from overnight_server.domain.claims import Claim, Run
from overnight_server.domain.lifecycle import Event, sources, target
from overnight_server.fault_points import fault
from overnight_server.store.batched_statements import Call
from overnight_server.store.db import Db
from overnight_server.store.run_rows import run_of


def start(db: Db, claim: Claim, *, holder: str, lease: timedelta) -> Run | None:
    """Turn a fresh claim into a run, or return None if it is not this caller's to start."""
    runs = start_all(db, [claim], holder=holder, lease=lease)
    return runs[0] if runs else None


def start_all(db: Db, claims: Sequence[Claim], *, holder: str, lease: timedelta) -> list[Run]:
    """Turn fresh claims into runs, in the order given; those not the caller's are left out.

    A message that came late, twice or forged matches nothing: that is no error.
    """
    claims = list(dict.fromkeys(claims))
    asked = {
        "claims": json.dumps([_message(claim) for claim in claims]),
        "holder": holder,
        "lease": lease.total_seconds(),
        "sources": sources(Event.START),
        "target": target(Event.START),
    }
    fault("start.before_commit")
    begun = {row.id: row for row in db.run_batch(Call("start", asked))}
    fault("start.after_commit")
    return [run_of(claim, begun[claim.task_id]) for claim in claims if claim.task_id in begun]


def _message(claim: Claim) -> dict[str, object]:
    return {"task_id": str(claim.task_id), "epoch": claim.epoch, "token": str(claim.token)}
