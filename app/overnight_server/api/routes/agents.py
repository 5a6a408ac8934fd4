"""Routes of pull agents, which run outside the deployment: register, heartbeat, claim, leave.

An agent belongs to a user and claims that user's tasks. An admin's agent with the scope
`agents:all-users` may claim tasks of all users. The claim is `async`, so that an agent that waits
for work occupies neither a thread nor a connection.
"""

import time
from base64 import b64encode
from datetime import timedelta
from functools import partial
from typing import Annotated

from anyio.to_thread import run_sync as _thread
from fastapi import APIRouter, Query, Request, Response

from overnight.errors import Forbidden
from overnight.models.agents import AgentHeartbeat, AgentRegister, ClaimedTask, Ok, RegisteredAgent
from overnight.models.scopes import ALL_USERS_AGENTS
from overnight_server.api.http.authentication import AgentRunner, check_again
from overnight_server.api.http.dependencies import Dependencies, Injected
from overnight_server.api.http.openapi import repeated_response
from overnight_server.api.http.pagination import (
    PAGE,
    BeforeName,
    Limit,
    encode_name_cursor,
    name_cursor,
    paginate,
)
from overnight_server.api.http.thread_route import ThreadRoute
from overnight_server.control import agents
from overnight_server.control.agents import (
    AgentCaps,
    AgentRegistration,
    PullAgentDescription,
    record_poll,
)
from overnight_server.control.claim_tokens import ClaimHolder, token_of
from overnight_server.control.keys import Caller
from overnight_server.domain.ids import show_dag, show_task
from overnight_server.domain.results import Raised
from overnight_server.gate.claim import ClaimSettings, claim_for_agent
from overnight_server.gate.dispatch_log import log_dispatch_failed, log_dispatch_success
from overnight_server.insight.agents import get_agent, list_agents
from overnight_server.outcome.agent_claims import HeldClaim, read_claim, settle_claim
from overnight_server.outcome.inputs import inputs_of
from overnight_server.outcome.start import start

router = APIRouter(route_class=ThreadRoute, prefix="/api/v1/agents", tags=["agents"])
MAX_WAIT_SECONDS = 60
# After a wake-up without a task the agent pauses before the next try, longer each time.
FIRST_PAUSE_SECONDS = 0.25
MAX_PAUSE_SECONDS = 5.0


@router.post(
    "",
    status_code=201,
    responses=repeated_response(RegisteredAgent, "The existing agent of this name, updated."),
)
def register_agent(
    body: AgentRegister, response: Response, deps: Injected, caller: AgentRunner
) -> RegisteredAgent:
    """Register an agent; with the name of an existing agent, update that one and respond 200."""
    if body.serves == "everyone":
        _check_all_users_scope(caller)
    defaults = deps.settings
    registered = agents.register(
        deps.gate_db,
        caller,
        PullAgentDescription(
            name=body.name,
            capabilities=body.capabilities,
            types=body.types,
            models=body.models,
            slots=body.slots or defaults.agent_max_concurrent_tasks,
            budget_usd=body.budget_usd,
            claim_ttl=timedelta(seconds=body.claim_ttl_seconds or defaults.agent_claim_ttl_sec),
            stale_after=timedelta(seconds=body.lease_seconds or defaults.agent_stale_after_sec),
            serves_everyone=body.serves == "everyone",
        ),
        AgentCaps.of(defaults),
    )
    if not registered.is_new:
        response.status_code = 200
    response.headers["Location"] = f"{router.prefix}/{registered.agent_id}"
    return get_agent(deps.db, caller.user_id, registered.agent_id)


@router.get("")
def list_own_agents(
    *,
    request: Request,
    response: Response,
    deps: Injected,
    caller: AgentRunner,
    limit: Limit = PAGE,
    before: BeforeName = None,
) -> list[RegisteredAgent]:
    """List the caller's agents, ordered by name; the Link header leads to the next page.

    `before` is the cursor of the previous page: the list continues after the name in it.
    """
    items = list_agents(deps.db, caller.user_id, after=name_cursor(before), limit=limit + 1)
    return paginate(request, response, items, limit, lambda agent: encode_name_cursor(agent.name))


@router.get("/{agent_id}")
def read_agent(agent_id: str, deps: Injected, caller: AgentRunner) -> RegisteredAgent:
    """Return one of the caller's agents."""
    return get_agent(deps.db, caller.user_id, agent_id)


@router.post("/{agent_id}/heartbeat")
def heartbeat_agent(agent_id: str, deps: Injected, caller: AgentRunner) -> AgentHeartbeat:
    """Record an agent's heartbeat; the response says whether the agent is draining."""
    registration = record_poll(deps.gate_db, caller, agent_id)
    return AgentHeartbeat(status="draining" if registration.is_draining else "active")


@router.post("/{agent_id}/drain")
def drain_agent(agent_id: str, deps: Injected, caller: AgentRunner) -> Ok:
    """Drain an agent: it gets no new tasks and may finish those it runs."""
    agents.drain(deps.gate_db, caller.user_id, agent_id)
    return Ok()


@router.delete("/{agent_id}")
def remove_agent(agent_id: str, deps: Injected, caller: AgentRunner) -> Ok:
    """Set an agent offline, without its slots; it may register again."""
    agents.leave(deps.gate_db, caller.user_id, agent_id)
    return Ok()


@router.post(
    "/{agent_id}/claim",
    response_model=ClaimedTask,
    responses={204: {"description": "No task could be claimed within the wait."}},
)
async def claim_work(
    *,
    agent_id: str,
    request: Request,
    deps: Injected,
    caller: AgentRunner,
    wait: Annotated[
        int, Query(ge=0, le=MAX_WAIT_SECONDS, description="How many seconds to wait for a task.")
    ] = 0,
) -> Response:
    """Claim a task for a free slot of the agent; respond 204 if there is none within `wait`."""
    deadline = time.monotonic() + wait
    registration = await _thread(partial(record_poll, deps.gate_db, caller, agent_id))
    if registration.serves is None:
        _check_all_users_scope(caller)
    claim = partial(_claim, deps, caller, registration)
    work = await _thread(claim, limiter=deps.claim_limiter)
    if work is None and wait:
        pause, long_poll = FIRST_PAUSE_SECONDS, deps.agent_long_poll
        with long_poll.register(caller.user_id, registration.pool, registration.serves) as waiting:
            # Checked in each round: a pause would ignore the wake-up that comes with the closing.
            while work is None and not long_poll.is_closed:
                await waiting.wait_for_work(deadline - time.monotonic())
                # A claim for a client that has disconnected would block its task until it expires.
                is_over = long_poll.is_closed or time.monotonic() >= deadline
                if is_over or await request.is_disconnected():
                    break
                # A key that was revoked in the meantime must not claim anything.
                await _thread(partial(check_again, request, deps, caller))
                work = await _thread(claim, limiter=deps.claim_limiter)
                if work is None:
                    await waiting.pause(min(pause, max(0.0, deadline - time.monotonic())))
                    pause = min(2 * pause, MAX_PAUSE_SECONDS)
    if work is None:
        return Response(status_code=204)
    return Response(work, media_type="application/json")


def _claim(deps: Dependencies, caller: Caller, registration: AgentRegistration) -> bytes | None:
    """Claim one task through the gate; return it as JSON, or None if there is none.

    A task that cannot be written as JSON is failed for good, and the next one is claimed.
    """
    # Read again for each try: the agent may have been drained or updated while it waited.
    registration = record_poll(deps.gate_db, caller, registration.agent_id)
    if registration.is_draining:
        return None
    defaults = ClaimSettings.from_settings(deps.settings)
    while True:
        claimed = claim_for_agent(
            deps.gate_db,
            registration.pool,
            agent=registration.agent_id,
            claim_settings=ClaimSettings(
                registration.claim_ttl, defaults.liveness, defaults.slots_max
            ),
            serves=registration.serves,
            types=registration.types,
        )
        if claimed is None:
            return None
        held_claim = read_claim(deps.gate_db, claimed.claim, registration.lease)
        try:
            work = _serialize(deps, registration, held_claim)
        except (ValueError, RecursionError) as error:
            _fail_for_good(deps, held_claim, error)
        else:
            log_dispatch_success([claimed.claim.task_id])
            return work


def _serialize(deps: Dependencies, registration: AgentRegistration, held_claim: HeldClaim) -> bytes:
    """Return a claimed task as JSON; raise ValueError or RecursionError if that fails."""
    run = held_claim.run
    task_id = run.claim.task_id
    inputs = (
        inputs_of(deps.gate_db, run.user_id, task_id, deps.artifact_store) if run.is_linked else {}
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
        timeout_seconds=run.granted_seconds,
        ceiling_usd=run.ceiling_usd,
        spent_usd=run.spent_usd,
        claim_ttl_seconds=registration.claim_ttl.total_seconds(),
        lease_seconds=registration.lease.total_seconds(),
        token=token_of(run.claim),
    )
    return work.model_dump_json().encode()


def _fail_for_good(deps: Dependencies, held_claim: HeldClaim, error: Exception) -> None:
    """Fail a task whose inputs cannot be written as JSON; a retry would fail the same way."""
    run = held_claim.run
    message = f"the task's inputs cannot be sent to an agent as JSON: {type(error).__name__}"
    failure = Raised(
        error_class="invalid_input", message=message, error_type="InvalidInput", retryable=False
    )
    db = deps.db.acting_for(ClaimHolder(run.claim, run.user_id).served)
    if start(db, run.claim, holder=held_claim.agent, lease=held_claim.lease):
        settle_claim(db, held_claim, failure)
        log_dispatch_failed(
            run.claim.task_id,
            message,
            attempt=run.attempt,
            max_attempts=run.max_attempts,
            is_final=True,
        )


def _check_all_users_scope(caller: Caller) -> None:
    """Raise Forbidden unless the caller is an admin with the scope for agents of all users."""
    if not (caller.is_admin and caller.may(ALL_USERS_AGENTS)):
        raise Forbidden(ALL_USERS_AGENTS)
