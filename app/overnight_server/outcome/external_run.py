"""Record where a run is executed outside of its worker's process, before it begins there."""

from overnight_server.domain.claims import Claim
from overnight_server.store.batched_statements import StatementCall
from overnight_server.store.db import Db


def note_external_run(db: Db, claim: Claim, external_id: str, *, sandbox: str | None) -> bool:
    """Record the run's id and its sandbox on the attempt; False if the claim is lost."""
    params = {
        "task_id": claim.task_id,
        "epoch": claim.epoch,
        "token": claim.token,
        "external_id": external_id,
        "sandbox": sandbox,
    }
    return bool(db.run_batch(StatementCall("note_external_run", params)))
