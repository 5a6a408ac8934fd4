"""Every named point of fault struck once on a running deployment, and then the usual questions."""

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
from tests.chaos.load import Load, users
from tests.chaos.report import Report
from tests.chaos.stack import SERVICES, ChaosStack, chaos_stack
from tests.support.invariants import watch_plans
from tests.support.workers import ROOT

# Two for the sweeps, whose many points would else be struck one after the other.
DEPLOYMENT: Final = {**SERVICES, "maintenance-2": {}}
PER_SECOND: Final = 8.0
PAUSE_SECONDS: Final = 1.5
# Passed by runs; while they are to be struck, no worker is sent home.
IN_RUNS: Final = {
    point for point in POINTS if point.startswith(("execute", "start", "settle", "heartbeat"))
}


def strike(
    mode: str,
    logs: Path,
    *,
    points: Collection[str] = tuple(POINTS),
    strike_seconds: float = 150.0,
    drain_seconds: float = 60.0,
    seed: int = 1,
) -> Report:
    """Arm every point with one mode, work until all were passed, drain and check."""
    report = Report(seed, strike_seconds)
    marks = logs / "struck"
    marks.mkdir()
    armed = ",".join(f"{point}={mode}@{marks / point}" for point in points)
    with chaos_stack(logs, services=DEPLOYMENT, audit_interval=1, cycle_check_interval=1) as stack:
        watch_plans(stack.deployment.owner)
        stack.faults = dict.fromkeys(stack.services, armed)
        stack.start()
        stack.start_restarter()
        load = _work(stack, set(points), marks, strike_seconds, seed)
        report.notes.append(f"struck {len(list(marks.iterdir()))} of {len(points)} points")
        unpassed = sorted(set(points) - {mark.name for mark in marks.iterdir()})
        if unpassed:
            report.add({"points that nobody passed": unpassed})
        _settle_down(stack, load, mode, drain_seconds, report)
    return report


def _work(stack: ChaosStack, points: set[str], marks: Path, seconds: float, seed: int) -> Load:
    """Keep the deployment busy in all the ways that lead past its points, until each is struck."""
    random = Random(seed)
    load = Load(stack, users(stack.deployment, stack.api_url, random, 20), seed, PER_SECOND)
    load.start()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        unstruck = points - {mark.name for mark in marks.iterdir()}
        if not unstruck:
            break
        may_leave = "presence.before_leave" in unstruck and not unstruck & IN_RUNS
        if may_leave and _has_joined(stack, "worker-3"):
            stack.signal("worker-3", signal.SIGTERM)
        if "timeouts.before_kill" in unstruck:
            _forget_a_stop(stack)
        if unstruck & {"dead_letter.before_commit", "dead_letter.after_commit"}:
            _revive_one(stack)
        if unstruck & {"edges.before_commit", "edges.after_commit"}:
            _join_two(stack)
        if unstruck & {"bulk.before_commit", "bulk.after_commit"}:
            _move_up(stack)
        time.sleep(PAUSE_SECONDS)
    return load


def _has_joined(stack: ChaosStack, name: str) -> bool:
    """Tell whether a worker is in: sent home any sooner, it would have nothing to leave."""
    process = stack.services[name].process
    return process is not None and bool(
        stack.deployment.rows(
            "SELECT 1 FROM agents WHERE status = 'active' AND split_part(id, ':', 2) = :pid",
            pid=str(process.pid),
        )
    )


def _forget_a_stop(stack: ChaosStack) -> None:
    """Let a run look as if it had been told to stop long ago."""
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


def _join_two(stack: ChaosStack) -> None:
    """Let in a graph that takes a while to begin, and one of its last tasks wait for the other."""
    user = stack.deployment.user()
    tasks = [
        NewTask("slow root", "agent", payload={"seconds": 4}, max_attempts=8),
        *(NewTask(f"leaf {n}", "agent", max_attempts=8) for n in range(2)),
    ]
    _, parent, child = submit_graph(
        stack.deployment.app, user, tasks, Caps(), edges=[Edge(0, 1), Edge(0, 2)]
    )
    _operate(stack, show_task(child.task_id), show_task(parent.task_id), str(user))


def _move_up(stack: ChaosStack) -> None:
    """Let in a few tasks, and have all of them go earlier."""
    user = stack.deployment.user()
    tasks = [NewTask(f"late {n}", "agent", max_attempts=8) for n in range(3)]
    submit_graph(stack.deployment.app, user, tasks, Caps())
    order = BulkOrder(Action.REPRIORITISE, TaskFilter(title="late"), priority=20)
    start(stack.deployment.app, user, order, actor=f"user:{user}")


def _operate(stack: ChaosStack, *words: str) -> None:
    subprocess.run(
        [*(sys.executable, "-m", "tests.chaos.operator"), stack.postgres.url(), *words],
        env={"OVERNIGHT_FAULT": stack.faults["api"], "PYTHONPATH": str(ROOT)},
        cwd=stack.logs,
        check=False,
        capture_output=True,
    )


def _settle_down(stack: ChaosStack, load: Load, mode: str, seconds: float, report: Report) -> None:
    began = time.monotonic()
    if not load.finish(seconds):
        report.add({"producers": ["some submissions were never answered"]})
    while stack.open_tasks() and time.monotonic() - began < seconds:
        time.sleep(0.2)
    drained = not stack.open_tasks()
    report.notes.append(f"drained in {time.monotonic() - began:.1f} s")
    if not drained:
        rows = stack.deployment.rows("SELECT state, count(*) AS n FROM tasks GROUP BY state")
        report.add({f"not drained within {seconds:g} s": [str(row) for row in rows]})
    report.work["submissions acknowledged"] = len(load.record.acks)
    report.faults |= {f"restarts of {name}": n for name, n in sorted(stack.restarts.items())}
    report.add(checks.invariants(stack, load.record, drained=drained))
    if mode == "raise":
        # A bug we planted is a bug to the API too.
        load.record.faults.clear()
    report.add(checks.promises(stack, load.record))
    record, killed = HandlerRecord.read(stack.handler_record), _killed_children(stack)
    report.add(checks.handler_runs(stack, record, killed))
    report.add(checks.falsely_blamed(stack, record, killed))
    if drained:
        report.add(leaks.at_rest(stack))
    report.add(leaks.after_shutdown(stack, stack.shut_down()))
    findings, _ = logs.of_postgres(stack)
    report.add(findings)
    report.add(logs.drift(stack))
    if mode == "kill":
        # Other modes let errors loose anywhere; whoever meets one may say so and may give up.
        report.add(leaks.exits(stack.exits, leaks.KILLED))
        findings, _ = logs.of_deployment(stack)
        report.add(findings)


def _killed_children(stack: ChaosStack) -> set[int]:
    """Return the children whose death their worker saw: at a point, for nobody else kills any."""
    killed = re.compile(r"pid:(\d+) exited with 'signal 9 ")
    return {int(pid) for name in stack.services for pid in killed.findall(stack.log_text(name))}
