"""The one agent task: start, run, settle."""

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from sqlalchemy.exc import SQLAlchemyError

from overnight.handlers.registry import registered
from overnight_server.dispatch.celery_settings import EXECUTE
from overnight_server.domain.claims import Claim, Run
from overnight_server.domain.ids import show_task
from overnight_server.domain.results import Result, Waiting
from overnight_server.fault_points import fault
from overnight_server.outcome.start import start_all
from overnight_server.store.db import DatabaseUnreachable
from overnight_server.telemetry import Event, emit
from overnight_worker.bundle import Bundle
from overnight_worker.celery_app import app
from overnight_worker.claim_registry import CLAIM_REGISTRY
from overnight_worker.identity import WORKER_ID
from overnight_worker.lease import Lease, Turn
from overnight_worker.message import read_claims
from overnight_worker.record_results import UNANSWERED_SECONDS, give_up_by
from overnight_worker.resources import WorkerResources, worker_resources
from overnight_worker.result_mapping import ending_of, no_handler, stopped_ending
from overnight_worker.runners.python import RunContext, perform
from overnight_worker.shutdown import DRAIN, outlive_the_group_while_running
from overnight_worker.slot_loop import Refill
from overnight_worker.stop_policy import Spans, StopPolicy, StopReason
from overnight_worker.task_graph import Growth


@app.task(name=EXECUTE)
def execute(*arguments: object) -> None:
    """Carry out the claims of one message; what is not ours to act on is dropped.

    A message without any is an invitation to linger.
    """
    claims = read_claims(arguments)
    if claims:
        fault("execute.on_message")
    if claims or not arguments:
        outlive_the_group_while_running()
        carry_out(worker_resources(), claims)


def carry_out(resources: WorkerResources, claims: Sequence[Claim]) -> None:
    """Start the claims, run their handlers one after the other, and record the ends.

    Quick tasks are followed by more of them: those the gate has for this slot by then, and those
    that come while it lingers. Without claims it lingers at once.
    """
    refill = Refill(resources)
    began = time.monotonic()
    if claims:
        runs = begin(resources, claims)
    else:
        runs = report_started(refill.linger())
        began = refill.began
    counted = False
    with Lease(
        resources.db,
        interval=resources.settings.heartbeat_interval,
        lease=_lease(resources),
        settled=resources.waker.wake,
    ) as lease:
        while runs:
            counted |= perform_all(resources, runs, began, lease, refill)
            resources.pace.report(resources.db)
            runs = refill.take()
            if not runs:
                lease.stand_down()
                if counted:
                    resources.waker.wake()
                    counted = False
                runs = refill.linger()
            began = refill.began
            report_started(runs)


def begin(resources: WorkerResources, claims: Sequence[Claim]) -> list[Run]:
    """Win the starts; a message that is late, a double, forged or unanswered wins none."""
    try:
        runs = start_all(resources.db, claims, holder=WORKER_ID, lease=_lease(resources))
    except (DatabaseUnreachable, SQLAlchemyError) as error:
        emit(Event.DATABASE_UNREACHABLE, error=error)
        give_up_by(resources.db, claims, deadline=time.monotonic() + UNANSWERED_SECONDS)
        return []
    started = {run.claim.task_id for run in runs}
    for claim in claims:
        if claim.task_id not in started:
            emit(Event.STALE_MESSAGE, **_known(claim), worker=WORKER_ID)
    return report_started(runs)


def report_started(runs: list[Run]) -> list[Run]:
    """Say which runs have begun."""
    for run in runs:
        emit(
            Event.TASK_STARTED,
            **_known(run.claim),
            worker=WORKER_ID,
            user_id=run.user_id,
            type=run.type,
        )
    return runs


def perform_all(
    resources: WorkerResources, runs: Sequence[Run], began: float, lease: Lease, refill: Refill
) -> bool:
    """Give every run its turn under the lease, then record them; True if any end counted."""
    bundle = Bundle(resources.db, runs)
    CLAIM_REGISTRY.take([run.claim for run in runs])
    for run in iter(bundle.next, None):
        turn = _turn(resources, run, bundle, began)
        lease.take(turn)
        bundle.end(run, perform_run(resources, turn))
    lease.rest()
    follow = refill.after(turn.run, turn.began)
    return bundle.record(deadline=turn.ladder.trusted_until, then=follow)


def perform_run(resources: WorkerResources, turn: Turn) -> Result | None:
    """Run one handler in its turn; return how it ended, or None if it is not ours to record."""
    run = turn.run
    if DRAIN.begun:
        return stopped_ending(run, StopReason.SHUTDOWN)
    handler = registered().get(run.type)
    if handler is None:
        emit(Event.HANDLER_MISSING, type=run.type, queue_id=show_task(run.claim.task_id))
        return no_handler(run, tuple(sorted(registered())))
    began = time.monotonic()
    fault("execute.before_handler")
    finished = perform(handler, turn.context)
    fault("execute.after_handler")
    ran = time.monotonic() - began
    reason = turn.ladder.reason
    if reason in {None, StopReason.TIMEOUT}:
        # A run that others asked to stop does not tell how long its type takes.
        resources.pace.note(run.type, ran)
    result = ending_of(finished, run, turn.context, reason)
    if isinstance(result, Waiting):
        fault("wait.before_suspend")
    return None if result is None else replace(result, ran_seconds=ran)


def _turn(resources: WorkerResources, run: Run, bundle: Bundle, began: float) -> Turn:
    spans = Spans.of(resources.settings, granted=run.granted_seconds)
    ladder = StopPolicy(spans, began=began, turn=time.monotonic())
    context = RunContext(run, deadline=ladder.deadline, growth=Growth(resources, run))
    return Turn(run, context, ladder, bundle)


def _known(claim: Claim) -> dict[str, object]:
    return {"queue_id": show_task(claim.task_id), "epoch": claim.epoch}


def _lease(resources: WorkerResources) -> timedelta:
    return timedelta(seconds=resources.settings.lease_seconds)
