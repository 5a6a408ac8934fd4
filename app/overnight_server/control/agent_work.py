"""Claim a task for a pull agent, and write it as the JSON that the agent receives.

The claim route of the API and the agent driver both call this, so that every pull agent gets the
same work under the same rules.
"""

from base64 import b64encode
from dataclasses import dataclass
from typing import Final

from overnight.models.agents import ClaimedTask
from overnight_server.artifact_store.store import ArtifactStore, BlobNotFound
from overnight_server.control.agents import AgentRegistration
from overnight_server.control.claim_tokens import ClaimHolder, token_of
from overnight_server.domain.ids import show_dag, show_task
from overnight_server.domain.results import Raised
from overnight_server.gate.claim import ClaimSettings, claim_for_agent
from overnight_server.gate.dispatch_log import log_dispatch_failed
from overnight_server.outcome.agent_claims import HeldClaim, read_claim, settle_claim
from overnight_server.outcome.inputs import InputsTooLarge, inputs_of
from overnight_server.outcome.start import start
from overnight_server.outcome.validation import latest_feedback
from overnight_server.store.db import Db

# What one response to an agent may have of artifacts: the process has all of it in memory.
MAX_ARTIFACT_BYTES: Final = 32_000_000


@dataclass(frozen=True)
class AgentWork:
    """A claimed task: its claim, and a `ClaimedTask` as JSON."""

    held_claim: HeldClaim
    body: bytes


def claim_next_work(
    gate_db: Db,
    db: Db,
    agent: AgentRegistration,
    defaults: ClaimSettings,
    store: ArtifactStore | None,
    *,
    logged_as: str | None = None,
) -> AgentWork | None:
    """Claim one task through the gate and commit; return None if there is none.

    A task that cannot be written as JSON is failed for good, and the next one is claimed. `db` is
    for that failure; `store` has inputs that are too large for a row. The log names the agent by
    `logged_as`, or else by its id.
    """
    while True:
        claimed = claim_for_agent(
            gate_db,
            agent.pool,
            agent=agent.agent_id,
            claim_settings=ClaimSettings(agent.claim_ttl, defaults.liveness, defaults.slots_max),
            serves=agent.serves,
            types=agent.types,
            logged_as=logged_as,
        )
        if claimed is None:
            return None
        held_claim = read_claim(gate_db, claimed.claim, agent.lease)
        try:
            return AgentWork(held_claim, work_as_json(gate_db, agent, held_claim, store))
        except (InputsTooLarge, BlobNotFound) as error:
            _fail_for_good(db, held_claim, f"the task's inputs cannot be sent to an agent: {error}")
        except (ValueError, RecursionError) as error:
            reason = f"the task's inputs cannot be sent to an agent as JSON: {type(error).__name__}"
            _fail_for_good(db, held_claim, reason)


def work_as_json(
    gate_db: Db, agent: AgentRegistration, held_claim: HeldClaim, store: ArtifactStore | None
) -> bytes:
    """Return a claimed task as JSON; raise ValueError or RecursionError if that fails.

    Raises InputsTooLarge if the artifacts that it reads have more than MAX_ARTIFACT_BYTES, and
    BlobNotFound if the content of one is lost.
    """
    run = held_claim.run
    task_id = run.claim.task_id
    inputs = (
        inputs_of(gate_db, run.user_id, task_id, store, max_artifact_bytes=MAX_ARTIFACT_BYTES)
        if run.is_linked
        else {}
    )
    raw = {name: value for name, value in inputs.items() if isinstance(value, bytes)}
    work = ClaimedTask(
        task_id=show_task(task_id),
        dag_id=show_dag(run.dag_id),
        epoch=run.claim.epoch,
        attempt=run.attempt,
        max_attempts=run.max_attempts,
        type=run.type,
        title=run.title,
        description=held_claim.description,
        payload=run.payload,
        spec=run.spec,
        inputs=inputs | {name: b64encode(value).decode() for name, value in raw.items()},
        base64_inputs=list(raw),
        feedback=latest_feedback(gate_db, task_id) if run.attempts else None,
        timeout_seconds=run.granted_seconds,
        ceiling_usd=run.ceiling_usd,
        spent_usd=run.spent_usd,
        claim_ttl_seconds=agent.claim_ttl.total_seconds(),
        lease_seconds=agent.lease.total_seconds(),
        token=token_of(run.claim),
    )
    return work.model_dump_json().encode()


def _fail_for_good(db: Db, held_claim: HeldClaim, message: str) -> None:
    """Fail a task whose inputs cannot be sent; a retry would fail the same way."""
    run = held_claim.run
    failure = Raised(
        error_class="invalid_input", message=message, error_type="InvalidInput", retryable=False
    )
    db = db.acting_for(ClaimHolder(run.claim, run.user_id).served)
    if start(db, run.claim, holder=held_claim.agent, lease=held_claim.lease):
        settle_claim(db, held_claim, failure)
        log_dispatch_failed(
            run.claim.task_id,
            message,
            attempt=run.attempt,
            max_attempts=run.max_attempts,
            is_final=True,
        )
