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
from tests.chaos.load import Load, users
from tests.chaos.report import Report
from tests.chaos.stage import POSTS, Stage, stage
from tests.chaos.truth import Truth
from tests.support.invariants import watch_plans
from tests.support.workers import ROOT

# Two for the sweeps, whose many points would else be struck one after the other.
DEPLOYMENT: Final = {**POSTS, "maintenance-2": {}}
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
    with stage(logs, posts=DEPLOYMENT, audit_interval=1, cycle_check_interval=1) as deployment:
        watch_plans(deployment.deployment.owner)
        deployment.faults = dict.fromkeys(deployment.posts, armed)
        deployment.start()
        deployment.keep()
        load = _work(deployment, set(points), marks, strike_seconds, seed)
        report.notes.append(f"struck {len(list(marks.iterdir()))} of {len(points)} points")
        unpassed = sorted(set(points) - {mark.name for mark in marks.iterdir()})
        if unpassed:
            report.add({"points that nobody passed": unpassed})
        _settle_down(deployment, load, mode, drain_seconds, report)
    return report


def _work(deployment: Stage, points: set[str], marks: Path, seconds: float, seed: int) -> Load:
    """Keep the deployment busy in all the ways that lead past its points, until each is struck."""
    random = Random(seed)
    load = Load(
        deployment, users(deployment.deployment, deployment.api_url, random, 20), seed, PER_SECOND
    )
    load.start()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        unstruck = points - {mark.name for mark in marks.iterdir()}
        if not unstruck:
            break
        may_leave = "presence.before_leave" in unstruck and not unstruck & IN_RUNS
        if may_leave and _has_joined(deployment, "worker-3"):
            deployment.signal("worker-3", signal.SIGTERM)
        if "timeouts.before_kill" in unstruck:
            _forget_a_stop(deployment)
        if unstruck & {"dead_letter.before_commit", "dead_letter.after_commit"}:
            _revive_one(deployment)
        if unstruck & {"edges.before_commit", "edges.after_commit"}:
            _join_two(deployment)
        if unstruck & {"bulk.before_commit", "bulk.after_commit"}:
            _move_up(deployment)
        time.sleep(PAUSE_SECONDS)
    return load


def _has_joined(deployment: Stage, name: str) -> bool:
    """Tell whether a worker is in: sent home any sooner, it would have nothing to leave."""
    process = deployment.posts[name].process
    return process is not None and bool(
        deployment.deployment.rows(
            "SELECT 1 FROM agents WHERE status = 'active' AND split_part(id, ':', 2) = :pid",
            pid=str(process.pid),
        )
    )


def _forget_a_stop(deployment: Stage) -> None:
    """Let a run look as if it had been told to stop long ago."""
    deployment.deployment.run(
        "UPDATE tasks SET cancel_requested_at = clock() - interval '1 minute'"
        " WHERE id = (SELECT id FROM tasks WHERE state = 'running' LIMIT 1)"
    )


def _revive_one(deployment: Stage) -> None:
    dead = deployment.deployment.rows(
        "SELECT task_id FROM dead_letters WHERE resolution IS NULL LIMIT 1"
    )
    for row in dead:
        _operate(deployment, show_task(row["task_id"]))


def _join_two(deployment: Stage) -> None:
    """Let in a graph that takes a while to begin, and one of its last tasks wait for the other."""
    user = deployment.deployment.user()
    tasks = [
        NewTask("slow root", "agent", payload={"seconds": 4}, max_attempts=8),
        *(NewTask(f"leaf {n}", "agent", max_attempts=8) for n in range(2)),
    ]
    _, parent, child = submit_graph(
        deployment.deployment.app, user, tasks, Caps(), edges=[Edge(0, 1), Edge(0, 2)]
    )
    _operate(deployment, show_task(child.task_id), show_task(parent.task_id), str(user))


def _move_up(deployment: Stage) -> None:
    """Let in a few tasks, and have all of them go earlier."""
    user = deployment.deployment.user()
    tasks = [NewTask(f"late {n}", "agent", max_attempts=8) for n in range(3)]
    submit_graph(deployment.deployment.app, user, tasks, Caps())
    order = BulkOrder(Action.REPRIORITISE, TaskFilter(title="late"), priority=20)
    start(deployment.deployment.app, user, order, actor=f"user:{user}")


def _operate(deployment: Stage, *words: str) -> None:
    subprocess.run(
        [*(sys.executable, "-m", "tests.chaos.operator"), deployment.postgres.url(), *words],
        env={"OVERNIGHT_FAULT": deployment.faults["api"], "PYTHONPATH": str(ROOT)},
        cwd=deployment.logs,
        check=False,
        capture_output=True,
    )


def _settle_down(deployment: Stage, load: Load, mode: str, seconds: float, report: Report) -> None:
    began = time.monotonic()
    if not load.finish(seconds):
        report.add({"producers": ["some submissions were never answered"]})
    while deployment.open_tasks() and time.monotonic() - began < seconds:
        time.sleep(0.2)
    drained = not deployment.open_tasks()
    report.notes.append(f"drained in {time.monotonic() - began:.1f} s")
    if not drained:
        rows = deployment.deployment.rows("SELECT state, count(*) AS n FROM tasks GROUP BY state")
        report.add({f"not drained within {seconds:g} s": [str(row) for row in rows]})
    report.work["submissions acknowledged"] = len(load.record.acks)
    report.faults |= {f"restarts of {name}": n for name, n in sorted(deployment.restarts.items())}
    report.add(checks.invariants(deployment, load.record, drained=drained))
    if mode == "raise":
        # A bug we planted is a bug to the API too.
        load.record.faults.clear()
    report.add(checks.promises(deployment, load.record))
    truth, killed = Truth.read(deployment.truth), _killed_children(deployment)
    report.add(checks.ground_truth(deployment, truth, killed))
    report.add(checks.falsely_blamed(deployment, truth, killed))
    if drained:
        report.add(leaks.at_rest(deployment))
    report.add(leaks.departure(deployment, deployment.retire()))
    findings, _ = logs.of_postgres(deployment)
    report.add(findings)
    report.add(logs.drift(deployment))
    if mode == "kill":
        # Other modes let errors loose anywhere; whoever meets one may say so and may give up.
        report.add(leaks.exits(deployment.exits, leaks.KILLED))
        findings, _ = logs.of_deployment(deployment)
        report.add(findings)


def _killed_children(deployment: Stage) -> set[int]:
    """Return the children whose death their worker saw: at a point, for nobody else kills any."""
    killed = re.compile(r"pid:(\d+) exited with 'signal 9 ")
    return {int(pid) for name in deployment.posts for pid in killed.findall(deployment.said(name))}
