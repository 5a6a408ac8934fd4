"""The routes of agents outside the deployment: register, show oneself, claim, drain, leave.

An agent is its owner's and claims its owner's tasks. An admin's, with `agents:all-users`,
may claim everybody's. The wait for work is `async`: it holds neither a thread nor a connection.
"""

import time
from base64 import b64encode
from datetime import timedelta
from functools import partial
from typing import Annotated

from anyio.to_thread import run_sync as _thread
from fastapi import APIRouter, Query, Request, Response

from overnight.errors import Forbidden
from overnight.models.agents import Agent, AgentHeartbeat, AgentRegister, ClaimedTask, Ok
from overnight_server.api.http.authentication import AgentRunner, check_again
from overnight_server.api.http.dependencies import Parts, Use
from overnight_server.api.http.openapi import again
from overnight_server.control import agents
from overnight_server.control.agents import OutsideCard, Seat, take_seat
from overnight_server.control.claim_tokens import Holder, issue
from overnight_server.control.keys import Caller
from overnight_server.domain.ids import show_dag, show_task
from overnight_server.domain.results import Raised
from overnight_server.domain.scopes import ALL_USERS_AGENTS
from overnight_server.gate.claim import ClaimSettings, claim_for_agent
from overnight_server.insight.agents import get_agent, list_agents
from overnight_server.outcome.agent_claims import Held, end, held
from overnight_server.outcome.inputs import inputs_of
from overnight_server.outcome.start import start

router = APIRouter(prefix="/api/v1/agents", tags=["agents"])
LONGEST_WAIT_SECONDS = 60
# Whoever was woken in vain looks again a little later each time.
FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 5.0


@router.post(
    "",
    status_code=201,
    responses=again(Agent, "The agent of this name, changed."),
)
def register_agent(
    body: AgentRegister, response: Response, parts: Use, caller: AgentRunner
) -> Agent:
    """Register an agent; the same name again is the same agent, changed, and answers 200."""
    if body.serves == "everyone":
        _check_all_users_scope(caller)
    known = {one.name for one in list_agents(parts.db, caller.user_id)}
    usual = parts.settings
    agent_id = agents.register(
        parts.gate_db,
        caller.user_id,
        OutsideCard(
            name=body.name,
            capabilities=body.capabilities,
            types=body.types,
            models=body.models,
            slots=body.slots or usual.agent_max_concurrent_tasks,
            budget_usd=body.budget_usd,
            claim_ttl=timedelta(seconds=body.claim_ttl_seconds or usual.agent_claim_ttl_sec),
            stale_after=timedelta(seconds=body.lease_seconds or usual.agent_stale_after_sec),
            serves_everyone=body.serves == "everyone",
        ),
    )
    if body.name in known:
        response.status_code = 200
    response.headers["Location"] = f"{router.prefix}/{agent_id}"
    return get_agent(parts.db, caller.user_id, agent_id)


@router.get("")
def list_own_agents(parts: Use, caller: AgentRunner) -> list[Agent]:
    """List the caller's agents by name."""
    return list_agents(parts.db, caller.user_id)


@router.get("/{agent_id}")
def read_agent(agent_id: str, parts: Use, caller: AgentRunner) -> Agent:
    """Tell how one of the caller's agents stands."""
    return get_agent(parts.db, caller.user_id, agent_id)


@router.post("/{agent_id}/heartbeat")
def heartbeat_agent(agent_id: str, parts: Use, caller: AgentRunner) -> AgentHeartbeat:
    """Take an agent's sign of life, and tell it whether it is to drain."""
    seat = take_seat(parts.gate_db, caller.user_id, agent_id)
    return AgentHeartbeat(status="draining" if seat.is_draining else "active")


@router.post("/{agent_id}/drain")
def drain_agent(agent_id: str, parts: Use, caller: AgentRunner) -> Ok:
    """Give an agent nothing new; what it runs it may finish."""
    agents.drain(parts.gate_db, caller.user_id, agent_id)
    return Ok()


@router.delete("/{agent_id}")
def remove_agent(agent_id: str, parts: Use, caller: AgentRunner) -> Ok:
    """Take an agent's slots away; nothing is deleted, and it may register again."""
    agents.leave(parts.gate_db, caller.user_id, agent_id)
    return Ok()


@router.post(
    "/{agent_id}/claim",
    response_model=ClaimedTask,
    responses={204: {"description": "Nothing for it by now."}},
)
async def claim_work(
    *,
    agent_id: str,
    request: Request,
    parts: Use,
    caller: AgentRunner,
    wait: Annotated[
        int, Query(ge=0, le=LONGEST_WAIT_SECONDS, description="How many seconds to wait for work.")
    ] = 0,
) -> Response:
    """Claim a task for one of the agent's free slots, waiting so many seconds for it; or 204."""
    deadline = time.monotonic() + wait
    seat = await _thread(partial(take_seat, parts.gate_db, caller.user_id, agent_id))
    if seat.serves is None:
        _check_all_users_scope(caller)
    look = partial(_claim, parts, caller, seat)
    work = await _thread(look, limiter=parts.claim_places)
    if work is None and wait:
        pause = FIRST_PAUSE_SECONDS
        with parts.bell.register(caller.user_id, seat.pool, seat.serves) as waiting:
            while work is None and (left := deadline - time.monotonic()) > 0:
                await waiting.wait_for_work(left)
                # A claim for somebody who has hung up would have to wait for its end.
                if parts.bell.is_closed or await request.is_disconnected():
                    break
                # Nor is anything claimed for a key that was shut off meanwhile.
                await _thread(partial(check_again, request, parts, caller))
                work = await _thread(look, limiter=parts.claim_places)
                if work is None:
                    await waiting.pause(min(pause, max(0.0, deadline - time.monotonic())))
                    pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
    if work is None:
        return Response(status_code=204)
    return Response(work, media_type="application/json")


def _claim(parts: Parts, caller: Caller, seat: Seat) -> bytes | None:
    """Look through the gate, with the agent's own settings; return the work as the answer tells it.

    A task that cannot be told has failed: nobody could ever be given it.
    """
    # Looked at anew each time: it may have been drained, or changed, while it waited.
    seat = take_seat(parts.gate_db, caller.user_id, seat.agent_id)
    if seat.is_draining:
        return None
    usual = ClaimSettings.from_settings(parts.settings)
    while True:
        claimed = claim_for_agent(
            parts.gate_db,
            seat.pool,
            agent=seat.agent_id,
            claim_settings=ClaimSettings(seat.claim_ttl, usual.liveness, usual.slots_max),
            serves=seat.serves,
            types=seat.types,
        )
        if claimed is None:
            return None
        found = held(parts.gate_db, claimed.claim, seat.lease)
        try:
            return _told(parts, seat, found)
        except (ValueError, RecursionError) as error:
            _give_up(parts, found, error)


def _told(parts: Parts, seat: Seat, found: Held) -> bytes:
    """Write the work as JSON, before anybody is told that there is some."""
    run = found.run
    task_id = run.claim.task_id
    inputs = inputs_of(parts.gate_db, run.user_id, task_id) if run.is_linked else {}
    raw = {name: value for name, value in inputs.items() if isinstance(value, bytes)}
    work = ClaimedTask(
        task_id=show_task(task_id),
        dag_id=show_dag(run.dag_id),
        epoch=run.claim.epoch,
        attempt=run.attempt,
        max_attempts=run.max_attempts,
        type=run.type,
        title=run.title,
        description=found.description,
        payload=run.payload,
        spec=run.spec,
        inputs=inputs | {name: b64encode(value).decode() for name, value in raw.items()},
        base64_inputs=list(raw),
        timeout_seconds=run.granted_seconds,
        ceiling_usd=run.ceiling_usd,
        spent_usd=run.spent_usd,
        claim_ttl_seconds=seat.claim_ttl.total_seconds(),
        lease_seconds=seat.lease.total_seconds(),
        token=issue(run.claim),
    )
    return work.model_dump_json().encode()


def _give_up(parts: Parts, found: Held, error: Exception) -> None:
    """Fail a task whose claim cannot be told, for good; another claim would end the same way."""
    run = found.run
    message = f"what the task reads cannot be given to an agent: {type(error).__name__}"
    failure = Raised(
        error_class="invalid_input", message=message, error_type="InvalidInput", retryable=False
    )
    db = parts.db.acting_for(Holder(run.claim, run.user_id).served)
    if start(db, run.claim, holder=found.agent, lease=found.lease):
        end(db, found, failure)


def _check_all_users_scope(caller: Caller) -> None:
    """Refuse whoever may not have everybody's tasks done; being an admin is part of it."""
    if not (caller.is_admin and caller.may(ALL_USERS_AGENTS)):
        raise Forbidden(ALL_USERS_AGENTS)
