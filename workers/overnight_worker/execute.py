"""The Celery task that carries out claims: start, prepare, run, collect, validate, settle.

The stages are the same for every runner; `runners` has what differs: how a run begins and ends.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from overnight.handlers.outcome import outcome_of
from overnight_server.dispatch.celery_settings import EXECUTE
from overnight_server.domain.claims import Claim, Run
from overnight_server.domain.execution import Execution
from overnight_server.domain.ids import show_task
from overnight_server.domain.results import Result, WaitingForTasks
from overnight_server.fault_points import fault
from overnight_server.outcome.start import start_all
from overnight_server.store.db import DATABASE_ERRORS
from overnight_server.telemetry import LogEvent, emit
from overnight_worker.bundle import Bundle
from overnight_worker.celery_app import app
from overnight_worker.claim_registry import CLAIM_REGISTRY
from overnight_worker.collect import collect, push
from overnight_worker.force_stop import ActiveRun
from overnight_worker.full_log import FullLog, store_full_log
from overnight_worker.identity import WORKER_ID
from overnight_worker.lease import Lease
from overnight_worker.message import read_claims
from overnight_worker.output_validation import OutputRejected, OutputValidation
from overnight_worker.pool_guard import POOL_GUARD
from overnight_worker.prepare import prepared
from overnight_worker.record_results import UNANSWERED_SECONDS, hand_back_by
from overnight_worker.resources import WorkerResources, worker_resources
from overnight_worker.result_mapping import missing_handler_result, result_of, stopped_result
from overnight_worker.run_context import RunContext
from overnight_worker.run_log import RunLog
from overnight_worker.run_output import RUN_OUTPUT
from overnight_worker.run_traces import RunTraces
from overnight_worker.runners.choose import runner_for
from overnight_worker.runners.run_connection import RunConnection
from overnight_worker.runners.runner import PreparedRun, Runner
from overnight_worker.shutdown import SHUTDOWN_FLAG, ignore_sigterm_while_running
from overnight_worker.slot_loop import SlotLoop
from overnight_worker.stop_policy import StopPolicy, StopReason, TimeLimits
from overnight_worker.task_graph import RunGraph


@app.task(name=EXECUTE)
def execute(*arguments: object) -> None:
    """Carry out the claims of one message; malformed arguments are dropped.

    A message without arguments requests that the slot becomes an idle listener.
    """
    claims = read_claims(arguments)
    if claims:
        fault("execute.on_message")
    if claims or not arguments:
        ignore_sigterm_while_running()
        carry_out(worker_resources(), claims)


def carry_out(resources: WorkerResources, claims: Sequence[Claim]) -> None:
    """Start the claims, carry out their runs one after the other, and record the results.

    For a limited time the slot then goes on with the next tasks that the gate gives it, and with
    those that arrive while it listens. Without claims it listens at once.
    """
    slot_loop = SlotLoop(resources)
    start_requested_at = time.monotonic()
    if claims:
        runs = start(resources, claims)
    else:
        runs = report_started(slot_loop.wait_for_runs())
        start_requested_at = slot_loop.start_requested_at
    any_recorded = False
    with Lease(
        resources.db,
        interval=resources.settings.heartbeat_interval,
        lease=_lease(resources),
        on_settled=resources.waker.wake,
        cancel_listener=resources.cancel_listener,
    ) as lease:
        while runs:
            any_recorded |= run_bundle(resources, runs, start_requested_at, lease, slot_loop)
            resources.durations.report(resources.db)
            runs = slot_loop.take_next_runs()
            if not runs:
                lease.go_idle()
                if any_recorded:
                    resources.waker.wake()
                    any_recorded = False
                runs = slot_loop.wait_for_runs()
            start_requested_at = slot_loop.start_requested_at
            report_started(runs)


def start(resources: WorkerResources, claims: Sequence[Claim]) -> list[Run]:
    """Start the claims; return the runs that won.

    A message that is late, duplicated or forged starts nothing. If Postgres does not answer, the
    claims are handed back.
    """
    try:
        runs = start_all(resources.db, claims, holder=WORKER_ID, lease=_lease(resources))
    except DATABASE_ERRORS as error:
        emit(LogEvent.DATABASE_UNREACHABLE, error=error)
        hand_back_by(resources.db, claims, deadline=time.monotonic() + UNANSWERED_SECONDS)
        return []
    started = {run.claim.task_id for run in runs}
    for claim in claims:
        if claim.task_id not in started:
            emit(LogEvent.STALE_MESSAGE, **_log_fields(claim), worker=WORKER_ID)
    return report_started(runs)


def report_started(runs: list[Run]) -> list[Run]:
    """Log the start of each run, and return the runs."""
    for run in runs:
        emit(
            LogEvent.TASK_STARTED,
            **_log_fields(run.claim),
            worker=WORKER_ID,
            user_id=run.user_id,
            type=run.type,
        )
    return runs


def run_bundle(
    resources: WorkerResources,
    runs: Sequence[Run],
    start_requested_at: float,
    lease: Lease,
    slot_loop: SlotLoop,
) -> bool:
    """Carry out the runs one after the other, then record them; True if any was recorded."""
    bundle = Bundle(resources.db, runs, flush_logs=resources.log_writer.flush)
    traces = RunTraces(resources.traces, resources.db)
    CLAIM_REGISTRY.set_claims([run.claim for run in runs])
    for number, run in enumerate(iter(bundle.next_run, None)):
        active = _activate(resources, run, bundle, start_requested_at, lease)
        CLAIM_REGISTRY.run_begins(number)
        lease.begin_run(active)
        with traces.run(run) as note_result:
            result = run_one(resources, active)
            note_result(result)
        bundle.add_result(run, result)
        if result is not None and len(runs) > 1 and not CLAIM_REGISTRY.keep_result(number, result):
            # Another run may end this process, and must not make this one run again.
            lease.end_run()
            bundle.record(deadline=active.stop_policy.trusted_until)
    lease.end_run()
    next_claim = slot_loop.continue_after(active.run)
    with traces.settle():
        return bundle.record(deadline=active.stop_policy.trusted_until, next_claim=next_claim)


def run_one(resources: WorkerResources, active: ActiveRun) -> Result | None:
    """Take one run through all its stages; return its result, None if nothing is to be recorded."""
    run = active.run
    if SHUTDOWN_FLAG.is_set:
        return stopped_result(run, StopReason.SHUTDOWN)
    runner = runner_for(run)
    if runner is None:
        emit(LogEvent.HANDLER_MISSING, type=run.type, queue_id=show_task(run.claim.task_id))
        return missing_handler_result()
    started_at = time.monotonic()
    fault("execute.before_handler")
    output, raised = None, None
    RUN_OUTPUT.begin(active.log)
    try:
        output = carry_through(resources, active, runner)
    except BaseException as error:  # noqa: BLE001 - sys.exit() in a handler must not end the worker
        raised = error
    RUN_OUTPUT.end()
    active.log.close()
    if active.full_log is not None:
        store_full_log(resources, run.claim, active.full_log)
    fault("execute.after_handler")
    ran_seconds = time.monotonic() - started_at
    reason = active.stop_policy.reason
    if reason in {None, StopReason.TIMEOUT}:
        # A run that was stopped for another reason does not show how long its type takes.
        resources.durations.add(run.type, ran_seconds)
    result = result_of(outcome_of(output, raised, reason), run, active.context)
    if result is not None and isinstance(raised, OutputRejected):
        result = raised.with_output(result)
    if isinstance(result, WaitingForTasks):
        fault("wait.before_suspend")
    return None if result is None else replace(result, ran_seconds=ran_seconds)


def carry_through(resources: WorkerResources, active: ActiveRun, runner: Runner) -> object:
    """Prepare a run, run it to its end, collect what it left and validate; return its output.

    What this raises is how the run failed. The workspace is collected before it is validated,
    because the tests of a task may write to it. Only a branch that passed is pushed.
    """
    validation = OutputValidation.of(active.run, resources.settings.sandbox)
    connection = RunConnection(resources.db, active.run.claim, active.context, active.stop_policy)
    repositories = resources.settings.allowed_repositories
    with prepared(active.run, active.context, repositories) as prepared_run:
        try:
            run_until_end(runner, prepared_run, connection)
        finally:
            # Before the result is recorded: that frees the task's locks and lets others start.
            POOL_GUARD.end_programs_of_run()
        reported = connection.output()
        collected = collect(prepared_run, reported)
        validation.check(prepared_run, connection, reported, collected.output)
        return push(prepared_run, collected)


def run_until_end(runner: Runner, prepared_run: PreparedRun, connection: RunConnection) -> None:
    """Begin a run and wait for its end; a run that is requested to stop is ended."""
    external_id = runner.spawn(prepared_run, connection)
    while not connection.wait_for_end():
        runner.terminate(external_id, connection.grace(prepared_run.grace_seconds))


def _activate(
    resources: WorkerResources, run: Run, bundle: Bundle, start_requested_at: float, lease: Lease
) -> ActiveRun:
    own_grace = 0.0 if run.execution is None else Execution.of(run.execution).limits.grace_seconds
    limits = TimeLimits.of(resources.settings, granted=run.granted_seconds, own_grace=own_grace)
    policy = StopPolicy(
        limits, start_requested_at=start_requested_at, run_started_at=time.monotonic()
    )
    full_log = FullLog.of(resources, run.claim) if run.spec.get("keep_log") is True else None
    copy = None if full_log is None else full_log.write
    log = RunLog(run.claim, resources.log_writer, copy=copy)
    context = RunContext(
        run,
        deadline=policy.deadline,
        graph=RunGraph(resources, run),
        send_soon=lease.send_soon,
        send_cost=lease.send_cost,
        run_log=log,
    )
    return ActiveRun(run, context, policy, bundle, log, full_log)


def _log_fields(claim: Claim) -> dict[str, object]:
    return {"queue_id": show_task(claim.task_id), "epoch": claim.epoch}


def _lease(resources: WorkerResources) -> timedelta:
    return timedelta(seconds=resources.settings.lease_seconds)
