"""What a run says from outside: started, still here, done, failed, and what it grows.

Every route here is opened by the token of one claim, and by nothing else. A token that was never
good is answered with 401. One whose claim is over is answered with 409 STALE_ATTEMPT: whatever it
brings is kept aside and changes nothing.
"""

import base64
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Annotated, TypedDict
from uuid import uuid4

from fastapi import APIRouter, Depends, Request, Response

from overnight.errors import InvalidRequest, StaleAttempt, TaskNotFound, Unauthenticated
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
    RunStarted,
    SpawnRequest,
    SuspendRequest,
    TaskResult,
)
from overnight.models.tasks import TaskResponse
from overnight_server.api.http.authentication import presented
from overnight_server.api.http.dependencies import Parts, Use
from overnight_server.api.http.middleware import add_headers
from overnight_server.api.http.openapi import again
from overnight_server.control.claim_tokens import PREFIX, ClaimEnded, Holder, Superseded, verify
from overnight_server.domain.claims import Run
from overnight_server.domain.ids import MalformedId, TaskId, parse_task, show_artifact, show_task
from overnight_server.domain.results import (
    Deferred,
    Interrupted,
    Raised,
    Result,
    Returned,
    Stopped,
    Suspended,
    TimedOut,
    Waiting,
)
from overnight_server.insight.tasks import get_task
from overnight_server.intake.spawn import NewChild, SpawnCaps, spawn
from overnight_server.intake.translate_request import new_task
from overnight_server.outcome import agent_claims
from overnight_server.outcome.agent_claims import Held
from overnight_server.outcome.artifacts import ArtifactCaps, Made, keep
from overnight_server.outcome.heartbeat import Answer, Cost, heartbeat
from overnight_server.outcome.inputs import children_of
from overnight_server.outcome.presence import heartbeat_claim_holder
from overnight_server.outcome.start import start
from overnight_server.store.db import ActingUser, Db

router = APIRouter(prefix="/api/v1/tasks/{task_id}", tags=["runs"])
# Classes of failure after which a known wait spends no attempt.
NOT_YET = frozenset({"rate_limit", "snooze"})


class Spending(TypedDict):
    """Money and tokens a run reported."""

    cost_usd: float
    tokens: dict[str, int]


# How a claim is known to have ended that its holder reports as ended a second time, because it
# heard no answer the first time. Nobody but the holder ends a claim so.
REPEATS: dict[type[RunCost], frozenset[str]] = {
    TaskResult: frozenset({"completed"}),
    RunFailure: frozenset({"failed", "deferred"}),
    ReleaseRequest: frozenset({"interrupted", "suspended"}),
    SuspendRequest: frozenset({"suspended"}),
}


@dataclass(frozen=True)
class Call:
    """A call of a run: what serves its owner, and the claim that its token is for, held or over."""

    parts: Parts
    task_id: TaskId
    shown: "Holder | Over"

    @property
    def db(self) -> Db:
        """The database, as the run's owner sees it."""
        return self.parts.db

    @property
    def usual(self) -> timedelta:
        """The lease of runs whose agent has none of its own."""
        return timedelta(seconds=self.parts.settings.lease_seconds)

    def holder(self) -> Holder:
        """Return the claim, or raise StaleAttempt if it is over."""
        if isinstance(self.shown, Over):
            raise self.shown
        return self.shown

    def begun(self) -> Held:
        """Return the run, if it has begun and still holds its task."""
        claim = self.holder().claim
        return agent_claims.begun(self.db, claim, self.usual)


class Over(StaleAttempt):
    """The claim was this token's, and is over."""

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self.epoch = epoch


def call(task_id: str, request: Request, parts: Use) -> Call:
    """Return whose run calls, and serve its owner; a token that never was good opens nothing."""
    token = presented(request)
    if not token.startswith(PREFIX):
        raise Unauthenticated
    try:
        named = parse_task(task_id)
    except MalformedId:
        raise TaskNotFound from None
    shown: Holder | Over
    try:
        shown = holder = verify(parts.db, named, token)
        served = holder.served
    except (ClaimEnded, Superseded) as over:
        # Each route says for itself what becomes of what came too late.
        shown = Over(over.epoch)
        served = ActingUser(over.user_id, f"claim:{named}:{over.epoch}")
    if parts.rates is not None:
        # Only a good token is counted, and each claim by itself: nobody else can silence a run,
        # not even who had the task before.
        add_headers(request, parts.rates.take(served.actor))
    parts.db = parts.db.acting_for(served)
    return Call(parts, named, shown)


Running = Annotated[Call, Depends(call)]


@router.post("/start")
def start_run(run: Running) -> RunStarted:
    """Begin a claimed task; until then it can be handed back for nothing, and nobody pays.

    A second time the answer is the same.
    """
    claim = run.holder().claim
    found = agent_claims.held(run.db, claim, run.usual)
    if not found.has_begun and not start(run.db, claim, holder=found.agent, lease=found.lease):
        raise StaleAttempt
    return RunStarted(
        lease_seconds=found.lease.total_seconds(), timeout_seconds=found.run.granted_seconds
    )


@router.post("/heartbeat")
def beat_run(run: Running, body: RunHeartbeat | None = None) -> HeartbeatReply:
    """Take a run's sign of life with its progress and cost; tell it to go on, or why not."""
    said = body or RunHeartbeat()
    found = run.begun()
    owner = found.run.user_id
    answer = heartbeat(
        run.db,
        found.run.claim,
        lease=found.lease,
        progress=said.progress,
        cost=None if said.cost_usd is None else Cost(owner, said.cost_usd),
    )
    heartbeat_claim_holder(run.parts.gate_db, found.run.claim)
    return _answered(answer, found.lease)


@router.post("/extend")
def extend_run(body: LeaseExtension, run: Running) -> HeartbeatReply:
    """Let a run be silent for so many seconds from now, once."""
    found = run.begun()
    lease = timedelta(seconds=body.seconds)
    return _answered(heartbeat(run.db, found.run.claim, lease=lease), lease)


@router.post("/complete")
def complete_run(body: TaskResult, run: Running) -> Ok:
    """Record a run's end: its output and what it cost. The same again is no error."""
    if body.status == "failed":
        return _failed(
            run,
            RunFailure(
                cost_usd=body.cost_usd, tokens=body.tokens, error=body.error or "the run failed"
            ),
        )

    def result(_: Run) -> Result:
        return Returned(
            output=body.output,
            summary=body.summary,
            files_changed=tuple(body.files_changed or ()),
            **_spending(body),
        )

    return _ended(run, body, result)


@router.post("/fail")
def fail_run(body: RunFailure, run: Running) -> Ok:
    """Record a failed run; whether it is tried again the task's policy says, or the report."""
    return _failed(run, body)


@router.post("/release")
def release_run(run: Running, body: ReleaseRequest | None = None) -> Ok:
    """Give a run, or a claim that has not begun, back; no attempt is spent."""
    said = body or ReleaseRequest()

    def result(_: Run) -> Result:
        match said.reason:
            case "cancelled":
                return Stopped(**_spending(said))
            case "budget":
                return Suspended(**_spending(said))
            case reason:
                return Interrupted(reason, **_spending(said))

    return _ended(run, said, result, needs_start=said.reason in {"cancelled", "budget"})


@router.post("/suspend")
def suspend_run(body: SuspendRequest, run: Running) -> Ok:
    """End a run until other tasks have ended; it goes on as a new run, no attempt spent."""
    tasks = tuple(_tasks("tasks", body.tasks))
    return _ended(run, body, lambda _: Waiting(tasks, **_spending(body)))


@router.post(
    "/spawn",
    status_code=201,
    responses=again(TaskResponse, "The task that this key spawned before."),
)
def spawn_child(body: SpawnRequest, run: Running, response: Response) -> TaskResponse:
    """Add a task to the run's graph; the same key again answers 200 with the first."""
    holder = run.holder()
    key = body.key or f"{NUMBERED_KEY_PREFIX}{uuid4().hex}"
    own = body.task.model_fields_set
    task = new_task(body.task, run.parts.settings, None)
    seed = NewChild(
        task=task if key.startswith(NUMBERED_KEY_PREFIX) else replace(task, name=key),
        key=key,
        depends_on=_tasks("depends_on", body.depends_on),
        inherits_priority=not own & {"priority", "priority_score"},
    )
    caps = SpawnCaps.of(run.parts.settings)
    made = spawn(run.db, holder.user_id, holder.claim, seed, caps)
    if not made.created:
        response.status_code = 200
    return get_task(run.db, holder.user_id, made.task_id)


@router.get("/children")
def list_children(run: Running) -> list[Child]:
    """List what the task has spawned, in this run or an earlier one, as it stands now."""
    run.holder()
    return [
        Child(
            id=show_task(one.task_id),
            **{name: value for name, value in vars(one).items() if name != "task_id"},
        )
        for one in children_of(run.db, run.task_id)
    ]


@router.post("/artifacts", status_code=201)
def upsert_artifact(body: ArtifactUpload, run: Running) -> ArtifactCreated:
    """Keep something for others to read; the same name again replaces its content."""
    holder = run.holder()
    made = Made(body.name, body.kind, _content(body))
    kept = keep(run.db, holder.claim, made, ArtifactCaps.of(run.parts.settings))
    return ArtifactCreated(id=show_artifact(kept))


def _answered(answer: Answer, lease: timedelta) -> HeartbeatReply:
    if answer is Answer.LOST:
        raise StaleAttempt
    return HeartbeatReply(answer=answer.value, lease_seconds=lease.total_seconds())


def _failed(run: Call, body: RunFailure) -> Ok:
    def result(of: Run) -> Result:
        if body.error_class in NOT_YET and body.retry_after is not None:
            return Deferred(body.retry_after, body.error_class, **_spending(body))
        if body.error_class == "timeout":
            return TimedOut(by_plan=of.plan_limited, **_spending(body))
        return Raised(
            error_class=body.error_class,
            message=body.error,
            error_type=body.error_type,
            detail=body.detail,
            retryable=body.retryable,
            wait_seconds=body.retry_after,
            **_spending(body),
        )

    return _ended(run, body, result)


def _ended(
    run: Call, said: RunCost, result: Callable[[Run], Result], *, needs_start: bool = True
) -> Ok:
    """End a run as it says; what it says too late is kept aside, unless it was heard before."""
    try:
        claim = run.holder().claim
    except Over as over:
        if not agent_claims.has_ended(run.db, run.task_id, over.epoch, REPEATS[type(said)]):
            agent_claims.keep_late(run.db, run.task_id, over.epoch, said.model_dump(mode="json"))
            raise StaleAttempt from None
        return Ok()
    find = agent_claims.begun if needs_start else agent_claims.held
    found = find(run.db, claim, run.usual)
    agent_claims.end(run.db, found, result(found.run))
    return Ok()


def _spending(said: RunCost) -> Spending:
    tokens = said.tokens.model_dump(exclude_defaults=True)
    return {"cost_usd": said.cost_usd, "tokens": tokens}


def _tasks(field: str, texts: list[str]) -> list[TaskId]:
    try:
        return [parse_task(text) for text in texts]
    except MalformedId as error:
        raise InvalidRequest(field, str(error), legal="ids as they were answered") from None


def _content(body: ArtifactUpload) -> bytes:
    if body.kind == "bytes":
        try:
            return base64.b64decode(body.content, validate=True)
        except ValueError:
            raise InvalidRequest("content", "is no base 64", legal="bytes in base 64") from None
    return body.content.encode()
