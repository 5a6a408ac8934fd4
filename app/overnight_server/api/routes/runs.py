"""Routes for the runs of pull agents: start, heartbeat, complete, fail, spawn and so on.

Every route needs the token of one claim. An invalid token gets 401. A token whose claim has ended
gets 409 STALE_ATTEMPT: the result that it reports is stored as a stale result and not applied.
"""

import base64
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Annotated
from uuid import uuid4

from fastapi import APIRouter, Depends, Request, Response
from starlette.concurrency import run_in_threadpool

from overnight.errors import InvalidRequest, StaleAttempt, Unauthenticated
from overnight.handlers.spawn import NUMBERED_KEY_PREFIX
from overnight.models.agents import (
    ArtifactCreated,
    ArtifactUpload,
    Child,
    HeartbeatReply,
    LeaseExtension,
    Ok,
    ReleaseRequest,
    RunCost,
    RunFailure,
    RunHeartbeat,
    RunLogText,
    RunStarted,
    SpawnRequest,
    SuspendRequest,
    TaskResult,
)
from overnight.models.tasks import TaskResponse
from overnight.trace_context import valid_traceparent
from overnight_server.api.http.admission import admitted
from overnight_server.api.http.authentication import credential
from overnight_server.api.http.dependencies import Dependencies
from overnight_server.api.http.middleware import add_headers
from overnight_server.api.http.openapi import repeated_response
from overnight_server.api.http.params import parse_task_ids, parse_task_param
from overnight_server.api.http.thread_route import ThreadRoute
from overnight_server.control.claim_tokens import (
    PREFIX,
    ClaimEnded,
    ClaimHolder,
    Superseded,
    verify,
)
from overnight_server.domain.ids import TaskId, show_artifact, show_task
from overnight_server.domain.results import (
    Result,
    StoppedByBudget,
    StoppedByCancel,
    WaitingForTasks,
)
from overnight_server.insight.tasks import get_task
from overnight_server.intake.spawn import NewChild, SpawnCaps, spawn
from overnight_server.intake.translate_request import new_task
from overnight_server.outcome import agent_claims
from overnight_server.outcome.agent_claims import HeldClaim
from overnight_server.outcome.artifacts import ArtifactCaps, NewArtifact, store_artifact
from overnight_server.outcome.heartbeat import CostSoFar, HeartbeatAnswer, heartbeat
from overnight_server.outcome.inputs import children_of
from overnight_server.outcome.presence import heartbeat_claim_holder
from overnight_server.outcome.run_logs import append_log
from overnight_server.outcome.start import start
from overnight_server.store.db import ActingUser, Db

router = APIRouter(route_class=ThreadRoute, prefix="/api/v1/tasks/{task_id}", tags=["runs"])

# An agent that got no response may send the end of its run again. The claim has then ended with
# one of these outcomes, which only its holder can report.
REPEATED_OUTCOMES: dict[type[RunCost], frozenset[str]] = {
    TaskResult: frozenset({"completed"}),
    RunFailure: frozenset({"failed", "deferred"}),
    ReleaseRequest: frozenset({"interrupted", "busy", "released", "suspended"}),
    SuspendRequest: frozenset({"suspended"}),
}


@dataclass(frozen=True)
class RunRequest:
    """A request of a run: the dependencies, limited to the task's owner, and the token's claim."""

    deps: Dependencies
    task_id: TaskId
    claim: "ClaimHolder | EndedClaim"

    @property
    def db(self) -> Db:
        """The database, limited to the rows of the task's owner."""
        return self.deps.db

    @property
    def default_lease(self) -> timedelta:
        """The lease of runs whose agent has not set one."""
        return timedelta(seconds=self.deps.settings.lease_seconds)

    @property
    def epoch(self) -> int:
        """The epoch of the token's claim."""
        return self.claim.epoch if isinstance(self.claim, EndedClaim) else self.claim.claim.epoch

    def holder(self) -> ClaimHolder:
        """Return the claim; raise StaleAttempt if it has ended."""
        if isinstance(self.claim, EndedClaim):
            raise self.claim
        return self.claim

    def started(self) -> HeldClaim:
        """Return the started run; raise StaleAttempt if it no longer holds its task."""
        claim = self.holder().claim
        return agent_claims.read_started_claim(self.db, claim, self.default_lease)


class EndedClaim(StaleAttempt):
    """The token is that of a claim that has ended."""

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self.epoch = epoch


class RunAccess:
    """Admits the holder of a claim, by the claim's token; FastAPI injects the run."""

    async def admit(self, request: Request, deps: Dependencies, cost: int) -> RunRequest:
        """Return the run of the token, with the database limited to the task's owner.

        Raises Unauthenticated if the token is not valid. An ended claim is not an error here,
        because some routes accept a repeated report.
        """
        return await run_in_threadpool(_run_of, request, deps, cost)

    async def __call__(self, task_id: str, request: Request) -> RunRequest:  # noqa: ARG002 - the parameter of the path
        """Return the run that `admit` has returned before the body was read."""
        return admitted(request, RunRequest)


CurrentRun = Annotated[RunRequest, Depends(RunAccess())]


@router.post("/start")
def start_run(run: CurrentRun) -> RunStarted:
    """Start the run of a claimed task; a repeated start gets the same response.

    Before the start the claim can be released without spending an attempt or hours.
    """
    claim = run.holder().claim
    held_claim = agent_claims.read_claim(run.db, claim, run.default_lease)
    if not held_claim.has_begun and not start(
        run.db, claim, holder=held_claim.agent, lease=held_claim.lease
    ):
        raise StaleAttempt
    return RunStarted(
        lease_seconds=held_claim.lease.total_seconds(),
        timeout_seconds=held_claim.run.granted_seconds,
    )


@router.post("/heartbeat")
def beat_run(run: CurrentRun, body: RunHeartbeat | None = None) -> HeartbeatReply:
    """Record a run's heartbeat, progress and cost; the response says whether to continue."""
    report = body or RunHeartbeat()
    held_claim = run.started()
    owner = held_claim.run.user_id
    answer = heartbeat(
        run.db,
        held_claim.run.claim,
        lease=held_claim.lease,
        progress=report.progress,
        cost=None if report.cost_usd is None else CostSoFar(owner, report.cost_usd),
    )
    heartbeat_claim_holder(run.deps.gate_db, held_claim.run.claim)
    return _heartbeat_reply(answer, held_claim.lease)


@router.post("/extend")
def extend_run(body: LeaseExtension, run: CurrentRun) -> HeartbeatReply:
    """Extend the lease of a run once: the next heartbeat is due after `seconds`."""
    held_claim = run.started()
    lease = timedelta(seconds=body.seconds)
    return _heartbeat_reply(heartbeat(run.db, held_claim.run.claim, lease=lease), lease)


@router.post("/complete")
def complete_run(body: TaskResult, run: CurrentRun) -> Ok:
    """Record that a run completed: its output and cost. A repeated report is accepted."""
    if body.status == "failed":
        return _failed(
            run,
            RunFailure(
                cost_usd=body.cost_usd, tokens=body.tokens, error=body.error or "the run failed"
            ),
        )

    return _end(run, body, lambda held_claim: agent_claims.completed(body, held_claim.run))


@router.post("/fail")
def fail_run(body: RunFailure, run: CurrentRun) -> Ok:
    """Record that a run failed; the report or the task's policy decides about a retry."""
    return _failed(run, body)


@router.post("/release")
def release_run(run: CurrentRun, body: ReleaseRequest | None = None) -> Ok:
    """Release a run, or a claim that was not started.

    What an agent of the task's owner has worked is billed. Its first three releases of a task spend
    no attempt.
    """
    request = body or ReleaseRequest()

    def result(held_claim: HeldClaim) -> Result:
        match request.reason:
            case "cancelled":
                return StoppedByCancel(**agent_claims.spending(request))
            case "budget":
                return StoppedByBudget(**agent_claims.spending(request))
            case reason:
                return held_claim.handed_back(reason, **agent_claims.spending(request))

    needs_start = request.reason in {"cancelled", "budget"}
    return _end(run, request, result, needs_start=needs_start)


@router.post("/suspend")
def suspend_run(body: SuspendRequest, run: CurrentRun) -> Ok:
    """Suspend a run until other tasks have ended; it resumes as a new run, no attempt spent."""
    tasks = tuple(parse_task_ids("tasks", body.tasks))
    return _end(run, body, lambda _: WaitingForTasks(tasks, **agent_claims.spending(body)))


@router.post(
    "/spawn",
    status_code=201,
    responses=repeated_response(TaskResponse, "The existing child; its key was used before."),
)
def spawn_child(body: SpawnRequest, run: CurrentRun, response: Response) -> TaskResponse:
    """Add a task to the run's graph; a repeated key responds 200 with the existing child."""
    holder = run.holder()
    key = body.key or f"{NUMBERED_KEY_PREFIX}{uuid4().hex}"
    sent = body.task.model_fields_set
    task = new_task(body.task, run.deps.settings, None)
    child = NewChild(
        task=task if key.startswith(NUMBERED_KEY_PREFIX) else replace(task, name=key),
        key=key,
        depends_on=parse_task_ids("depends_on", body.depends_on),
        inherits_priority=not sent & {"priority", "priority_score"},
    )
    caps = SpawnCaps.of(run.deps.settings)
    spawned = spawn(run.db, holder.user_id, holder.claim, child, caps)
    if not spawned.created:
        response.status_code = 200
    return get_task(run.db, holder.user_id, spawned.task_id)


@router.get("/children")
def list_children(run: CurrentRun) -> list[Child]:
    """List the tasks that this task has spawned, in this run or an earlier one."""
    run.holder()
    return [
        Child(
            id=show_task(child.task_id),
            **{name: value for name, value in vars(child).items() if name != "task_id"},
        )
        for child in children_of(run.db, run.task_id)
    ]


@router.post("/artifacts", status_code=201)
def upsert_artifact(body: ArtifactUpload, run: CurrentRun) -> ArtifactCreated:
    """Store an artifact of the task; the same name again replaces its content."""
    holder = run.holder()
    made = NewArtifact(body.name, body.kind, _content(body))
    caps, store = ArtifactCaps.of(run.deps.settings), run.deps.artifact_store
    kept = store_artifact(run.db, holder.claim, made, caps, store)
    return ArtifactCreated(id=show_artifact(kept))


@router.post("/logs")
def append_run_log(body: RunLogText, run: CurrentRun) -> Ok:
    """Add lines to the log of a run; passwords and credentials in it are masked.

    Lines that are sent again, because no response arrived, appear again.
    """
    append_log(run.db, run.holder().claim, body.stream, body.text)
    return Ok()


def _run_of(request: Request, deps: Dependencies, cost: int) -> RunRequest:
    token = credential(request)
    if not token.startswith(PREFIX):
        raise Unauthenticated
    parsed_id = parse_task_param(request.path_params["task_id"])
    claim: ClaimHolder | EndedClaim
    try:
        claim = holder = verify(deps.db, parsed_id, token)
        served = holder.served
    except (ClaimEnded, Superseded) as ended:
        claim = EndedClaim(ended.epoch)
        served = ActingUser(ended.user_id, f"claim:{parsed_id}:{ended.epoch}")
    traceparent = valid_traceparent(request.headers.get("traceparent")) or ""
    served = replace(served, traceparent=traceparent)
    if deps.rate_limiter is not None:
        # Each claim has its own rate limit, and only valid tokens are counted, so that nobody
        # else can use up the limit of a run.
        add_headers(request, deps.rate_limiter.take(served.actor, cost))
    deps.db = deps.db.acting_for(served)
    deps.acting_user = served
    return RunRequest(deps, parsed_id, claim)


def _heartbeat_reply(answer: HeartbeatAnswer, lease: timedelta) -> HeartbeatReply:
    if answer is HeartbeatAnswer.LOST:
        raise StaleAttempt
    return HeartbeatReply(answer=answer.value, lease_seconds=lease.total_seconds())


def _failed(run: RunRequest, body: RunFailure) -> Ok:
    return _end(run, body, lambda held_claim: agent_claims.failed(body, held_claim.run))


def _end(
    run: RunRequest,
    report: RunCost,
    result: Callable[[HeldClaim], Result],
    *,
    needs_start: bool = True,
) -> Ok:
    """End a run with a result.

    If the claim has ended already: accept the report if it repeats that end, else store it as a
    stale result and raise StaleAttempt.
    """
    read = agent_claims.read_started_claim if needs_start else agent_claims.read_claim
    try:
        held_claim = read(run.db, run.holder().claim, run.default_lease)
    except StaleAttempt:
        outcomes = REPEATED_OUTCOMES[type(report)]
        if not agent_claims.has_ended(run.db, run.task_id, run.epoch, outcomes):
            reported = report.model_dump(mode="json")
            agent_claims.keep_late_result(run.db, run.task_id, run.epoch, reported)
            raise StaleAttempt from None
        return Ok()
    agent_claims.settle_claim(run.db, held_claim, result(held_claim))
    return Ok()


def _content(body: ArtifactUpload) -> bytes:
    if body.kind == "bytes":
        try:
            return base64.b64decode(body.content, validate=True)
        except ValueError:
            raise InvalidRequest("content", "is not base64", legal="bytes in base64") from None
    return body.content.encode()
