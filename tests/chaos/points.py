"""Trigger every fault point once on a running stack, then run the checks of a chaos run."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path
from random import Random
from typing import Final

from overnight.models.bulk import TaskFilter
from overnight_server.control.bulk import BulkOrder, start
from overnight_server.domain.bulk import Action
from overnight_server.domain.ids import show_task
from overnight_server.fault_points import POINTS
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import Edge, NewTask
from overnight_server.intake.submit import submit_graph
from tests.chaos import checks, leaks, logs
from tests.chaos.handler_record import HandlerRecord
from tests.chaos.http_agents import add_agents
from tests.chaos.load import Load, users
from tests.chaos.report import Report
from tests.chaos.schedules import schedule_past_times
from tests.chaos.stack import SERVICES, ChaosStack, chaos_stack
from tests.support.invariants import record_plan_history
from tests.support.workers import SOURCES

# Two maintenance processes, so that the many fault points of sweeps are triggered in parallel.
DEPLOYMENT: Final = {**SERVICES, "maintenance-2": {}}
PER_SECOND: Final = 8.0
PAUSE_SECONDS: Final = 1.5
# Limits for a machine that other programs slow down; neither is waited for on a fast one.
STRIKE_SECONDS: Final = 300.0
DRAIN_SECONDS: Final = 180.0
# Starting the stack, the checks, and the end of every process.
CHECK_SECONDS: Final = 120.0
# Fault points that runs pass; until they are triggered, no worker is requested to stop.
IN_RUNS: Final = {
    point
    for point in POINTS
    if point.startswith(("execute", "start", "settle", "heartbeat", "sandbox"))
}


def strike(
    mode: str,
    logs: Path,
    *,
    points: Collection[str] = tuple(POINTS),
    seed: int = 1,
) -> Report:
    """Arm every fault point with one mode, work until all were triggered, drain and check."""
    report = Report(seed, STRIKE_SECONDS)
    marks = logs / "struck"
    marks.mkdir()
    armed = ",".join(f"{point}={mode}@{marks / point}" for point in points)
    with chaos_stack(logs, services=DEPLOYMENT, audit_interval=1, cycle_check_interval=1) as stack:
        record_plan_history(stack.deployment.owner)
        stack.faults = dict.fromkeys(stack.services, armed)
        stack.start()
        stack.start_restarter()
        load = _work(stack, set(points), marks, seed)
        report.notes.append(f"triggered {len(list(marks.iterdir()))} of {len(points)} points")
        not_reached = sorted(set(points) - {mark.name for mark in marks.iterdir()})
        if not_reached:
            report.add({"fault points that were never reached": not_reached})
        _drain_and_check(stack, load, mode, report)
    return report


def _work(stack: ChaosStack, points: set[str], marks: Path, seed: int) -> Load:
    """Cause the work that reaches each fault point, until all were triggered."""
    random = Random(seed)
    producers = users(stack.deployment, stack.api_url, random, 20)
    add_agents(stack, producers)
    load = Load(stack, producers, seed, PER_SECOND)
    load.start()
    deadline = time.monotonic() + STRIKE_SECONDS
    while time.monotonic() < deadline:
        remaining = points - {mark.name for mark in marks.iterdir()}
        if not remaining:
            break
        may_leave = "presence.before_leave" in remaining and not remaining & IN_RUNS
        if may_leave and _has_joined(stack, "worker-3"):
            stack.signal("worker-3", signal.SIGTERM)
        if "timeouts.before_kill" in remaining:
            _backdate_cancel(stack)
        if remaining & {"dead_letter.before_commit", "dead_letter.after_commit"}:
            _revive_one(stack)
        if remaining & {"edges.before_commit", "edges.after_commit"}:
            _add_edge(stack)
        if remaining & {"bulk.before_commit", "bulk.after_commit"}:
            _reprioritise(stack)
        if any(point.startswith("schedules.") for point in remaining):
            schedule_past_times(stack, stack.deployment.user(), name="past", count=1)
        time.sleep(PAUSE_SECONDS)
    return load


def _has_joined(stack: ChaosStack, name: str) -> bool:
    """Return whether a worker has joined; before that it has no row to update at its end."""
    process = stack.services[name].process
    return process is not None and bool(
        stack.deployment.rows(
            "SELECT 1 FROM agents WHERE status = 'active' AND split_part(id, ':', 2) = :pid",
            pid=str(process.pid),
        )
    )


def _backdate_cancel(stack: ChaosStack) -> None:
    """Backdate the cancel request of a running task by a minute."""
    stack.deployment.run(
        "UPDATE tasks SET cancel_requested_at = clock() - interval '1 minute'"
        " WHERE id = (SELECT id FROM tasks WHERE state = 'running' LIMIT 1)"
    )


def _revive_one(stack: ChaosStack) -> None:
    dead = stack.deployment.rows(
        "SELECT task_id FROM dead_letters WHERE resolution IS NULL LIMIT 1"
    )
    for row in dead:
        _operate(stack, show_task(row["task_id"]))


def _add_edge(stack: ChaosStack) -> None:
    """Submit a graph with a slow root, and add an edge between its two leaves."""
    user = stack.deployment.user()
    tasks = [
        NewTask("slow root", "agent", payload={"seconds": 4}, max_attempts=8),
        *(NewTask(f"leaf {n}", "agent", max_attempts=8) for n in range(2)),
    ]
    _, parent, child = submit_graph(
        stack.deployment.app, user, tasks, Caps(), edges=[Edge(0, 1), Edge(0, 2)]
    )
    _operate(stack, show_task(child.task_id), show_task(parent.task_id), str(user))


def _reprioritise(stack: ChaosStack) -> None:
    """Submit a few tasks and raise their priority with a bulk operation."""
    user = stack.deployment.user()
    tasks = [NewTask(f"late {n}", "agent", max_attempts=8) for n in range(3)]
    submit_graph(stack.deployment.app, user, tasks, Caps())
    order = BulkOrder(Action.REPRIORITISE, TaskFilter(title="late"), priority=20)
    start(stack.deployment.app, user, order, actor=f"user:{user}")


def _operate(stack: ChaosStack, *words: str) -> None:
    subprocess.run(
        [*(sys.executable, "-m", "tests.chaos.operator"), stack.postgres.url(), *words],
        env={"OVERNIGHT_FAULT": stack.faults["api"], "PYTHONPATH": SOURCES},
        cwd=stack.logs,
        check=False,
        capture_output=True,
    )


def _drain_and_check(stack: ChaosStack, load: Load, mode: str, report: Report) -> None:
    began = time.monotonic()
    if not load.finish(DRAIN_SECONDS):
        report.add({"producers": ["some submissions got no response"]})
    while stack.open_tasks() and time.monotonic() - began < DRAIN_SECONDS:
        time.sleep(0.2)
    drained = not stack.open_tasks()
    report.notes.append(f"drained in {time.monotonic() - began:.1f} s")
    if not drained:
        rows = stack.deployment.rows("SELECT state, count(*) AS n FROM tasks GROUP BY state")
        report.add({f"not drained within {DRAIN_SECONDS:g} s": [str(row) for row in rows]})
    report.work["submissions acknowledged"] = len(load.record.acks)
    report.faults |= {f"restarts of {name}": n for name, n in sorted(stack.restarts.items())}
    report.add(checks.invariants(stack, load.record, drained=drained))
    if mode == "raise":
        # The injected error makes the API respond with 500.
        load.record.faults.clear()
    report.add(checks.promises(stack, load.record))
    record, killed = HandlerRecord.read(stack.handler_record), _killed_children(stack)
    report.add(checks.handler_runs(stack, record, killed))
    report.add(checks.artifacts(stack))
    report.add(checks.falsely_blamed(stack, record, killed))
    if drained:
        report.add(leaks.at_rest(stack))
    report.add(leaks.after_shutdown(stack, stack.shut_down()))
    findings, _ = logs.of_postgres(stack)
    report.add(findings)
    report.add(logs.of_audit(stack))
    if mode == "kill":
        # Other modes raise errors anywhere; a process that meets one may log it and may end.
        report.add(leaks.exits(stack.exits, leaks.KILLED))
        findings, _ = logs.of_deployment(stack)
        report.add(findings)


def _killed_children(stack: ChaosStack) -> set[int]:
    """Return the pids of children whose death their worker logged; only fault points kill them."""
    killed = re.compile(r"pid:(\d+) exited with 'signal 9 ")
    return {int(pid) for name in stack.services for pid in killed.findall(stack.log_text(name))}
