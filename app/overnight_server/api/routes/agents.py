"""Routes of pull agents, which run outside the deployment: register, heartbeat, claim, leave.

An agent belongs to a user and claims that user's tasks. An admin's agent with the scope
`agents:all-users` may claim tasks of all users. The claim is `async`, so that an agent that waits
for work occupies neither a thread nor a connection.
"""

import time
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Annotated

from anyio.to_thread import run_sync as _thread
from fastapi import APIRouter, Query, Request, Response

from overnight.errors import Forbidden
from overnight.models.agents import AgentHeartbeat, AgentRegister, ClaimedTask, Ok, RegisteredAgent
from overnight.models.http_agents import HttpAgentAdd, HttpAgentAdded
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
from overnight_server.control import agents, http_agents
from overnight_server.control.agent_work import claim_next_work
from overnight_server.control.agents import (
    AgentCaps,
    AgentRegistration,
    PullAgentDescription,
    RegisterResult,
    record_poll,
)
from overnight_server.control.keys import Caller
from overnight_server.gate.claim import ClaimSettings
from overnight_server.gate.dispatch_log import log_dispatch_success
from overnight_server.insight.agents import get_agent, list_agents

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
    description, caps = _description(body, deps, caller), AgentCaps.of(deps.settings)
    registered = agents.register(deps.gate_db, caller, description, caps)
    return _registered(response, deps, caller, registered)


@router.post(
    "/http",
    status_code=201,
    responses=repeated_response(HttpAgentAdded, "The existing agent of this name, updated."),
)
def add_http_agent(
    body: HttpAgentAdd, response: Response, deps: Injected, caller: AgentRunner
) -> HttpAgentAdded:
    """Add an agent that the service calls; with the name of an existing agent, change that one.

    Only an admin with the scope `admin` may add an address in a private network.
    """
    description, caps = _description(body, deps, caller), AgentCaps.of(deps.settings)
    description = replace(description, slots=body.slots or 1)
    is_short = deps.settings.allow_short_clocks
    added = http_agents.add(
        deps.gate_db,
        caller,
        description,
        body.url,
        secret=body.secret,
        caps=caps,
        min_lease=timedelta(0) if is_short else http_agents.MIN_LEASE,
    )
    agent = _registered(response, deps, caller, added.registration)
    return HttpAgentAdded(**agent.model_dump(), secret=added.secret)


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


def _description(body: AgentRegister, deps: Dependencies, caller: Caller) -> PullAgentDescription:
    """Return what is registered, with the defaults; raise Forbidden without the scope for it."""
    if body.serves == "everyone":
        _check_all_users_scope(caller)
    defaults = deps.settings
    return PullAgentDescription(
        name=body.name,
        capabilities=body.capabilities,
        types=body.types,
        models=body.models,
        slots=body.slots or defaults.agent_max_concurrent_tasks,
        budget_usd=body.budget_usd,
        claim_ttl=timedelta(seconds=body.claim_ttl_seconds or defaults.agent_claim_ttl_sec),
        stale_after=timedelta(seconds=body.lease_seconds or defaults.agent_stale_after_sec),
        serves_everyone=body.serves == "everyone",
    )


def _registered(
    response: Response, deps: Dependencies, caller: Caller, registration: RegisterResult
) -> RegisteredAgent:
    if not registration.is_new:
        response.status_code = 200
    response.headers["Location"] = f"{router.prefix}/{registration.agent_id}"
    return get_agent(deps.db, caller.user_id, registration.agent_id)


def _claim(deps: Dependencies, caller: Caller, registration: AgentRegistration) -> bytes | None:
    """Claim one task through the gate; return it as JSON, or None if there is none."""
    # Read again for each try: the agent may have been drained or updated while it waited.
    registration = record_poll(deps.gate_db, caller, registration.agent_id)
    if registration.is_draining:
        return None
    defaults = ClaimSettings.from_settings(deps.settings)
    work = claim_next_work(deps.gate_db, deps.db, registration, defaults, deps.artifact_store)
    if work is None:
        return None
    log_dispatch_success([work.held_claim.run.claim.task_id])
    return work.body


def _check_all_users_scope(caller: Caller) -> None:
    """Raise Forbidden unless the caller is an admin with the scope for agents of all users."""
    if not (caller.is_admin and caller.may(ALL_USERS_AGENTS)):
        raise Forbidden(ALL_USERS_AGENTS)
