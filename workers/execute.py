"""The one agent task: start, run, settle."""

import time
from datetime import timedelta

from sqlalchemy.exc import SQLAlchemyError

from app.dispatch.celery_settings import EXECUTE
from app.domain.claims import Claim, Run
from app.domain.ids import show_task
from app.domain.results import Result
from app.outcome.start import start
from app.store.db import DatabaseUnreachable
from app.telemetry import Event, emit
from overnight.handlers import registered
from workers.celery_app import app
from workers.child import House, house
from workers.ending import ending_of, no_handler, stopped_ending
from workers.identity import WORKER_ID
from workers.ladder import Ladder, Spans, StopReason
from workers.lease import Lease, disarm
from workers.message import read_claim
from workers.runners.python import RunContext, perform
from workers.settling import settle_by
from workers.shutdown import DRAIN, outlive_the_group_while_running


@app.task(name=EXECUTE)
def execute(*arguments: object) -> None:
    """Carry out one claimed task; a message that is not ours to act on is dropped."""
    claim = read_claim(arguments)
    if claim is not None:
        outlive_the_group_while_running()
        carry_out(house(), claim)


def carry_out(house: House, claim: Claim) -> None:
    """Start the claim, run its handler, and record the end."""
    began = time.monotonic()
    run = begin(house, claim)
    if run is None:
        return
    try:
        finish(house, run, *perform_run(house, run, began))
    finally:
        disarm()


def begin(house: House, claim: Claim) -> Run | None:
    """Win the start, or drop the message: it was late, a double, forged, or cannot be answered."""
    known = {"queue_id": show_task(claim.task_id), "epoch": claim.epoch, "worker": WORKER_ID}
    try:
        run = start(house.db, claim, holder=WORKER_ID, lease=_lease(house))
    except (DatabaseUnreachable, SQLAlchemyError) as error:
        # The claim runs out by itself and spends no attempt.
        emit(Event.DATABASE_UNREACHABLE, error=error)
        return None
    if run is None:
        emit(Event.STALE_MESSAGE, **known)
        return None
    emit(Event.TASK_STARTED, **known, user_id=run.user_id, type=run.type)
    return run


def perform_run(house: House, run: Run, began: float) -> tuple[Result | None, float]:
    """Run the handler under its lease; return how it ended and until when that may be recorded."""
    ladder = Ladder(Spans.of(house.settings, granted=run.granted_seconds), began=began)
    if DRAIN.begun:
        return stopped_ending(run, StopReason.SHUTDOWN), ladder.trusted_until
    handler = registered().get(run.type)
    if handler is None:
        emit(Event.HANDLER_MISSING, type=run.type, queue_id=show_task(run.claim.task_id))
        return no_handler(run, tuple(sorted(registered()))), ladder.trusted_until
    context = RunContext(run, deadline=ladder.deadline)
    lease = Lease(
        house.db,
        run,
        context,
        ladder,
        interval=house.settings.heartbeat_interval,
        lease=_lease(house),
        settled=house.waker.nudge,
    )
    with lease:
        finished = perform(handler, context)
    return ending_of(finished, run, context, lease.reason), lease.trusted_until


def finish(house: House, run: Run, result: Result | None, deadline: float) -> None:
    """Record the end, then tell the dispatcher that a slot is free."""
    if result is not None and settle_by(house.db, run, result, deadline=deadline):
        house.waker.nudge()


def _lease(house: House) -> timedelta:
    return timedelta(seconds=house.settings.lease_seconds)
