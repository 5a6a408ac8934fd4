"""Play a night: move the clock from event to event, and let the real gate and outcome decide.

The player is the outside world: it submits, it is the workers, and it moves the clock. Everything
else (who runs when, retries, hours, locks, dead letters, graphs) is done by the functions that the
service uses, in a database of its own.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, assert_never

from overnight_server.control.adjust_hours import adjust_hours
from overnight_server.control.budgets import set_night_budget
from overnight_server.control.cancel import cancel
from overnight_server.control.users import create_user
from overnight_server.control.windows import set_window
from overnight_server.demo.night import (
    LOST_WORKER,
    SIGNED_UP,
    SLOTS,
    WORKERS,
    DemoGraph,
    DemoRun,
    DemoTask,
    Night,
    at_minute,
)
from overnight_server.domain.claims import Claim, Claimed, Run
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.domain.results import (
    Deferred,
    Died,
    Raised,
    Result,
    Returned,
    StoppedByBudget,
    StoppedByCancel,
)
from overnight_server.domain.retry import RetryRules
from overnight_server.gate.claim import NO_BUNDLES, ClaimSettings
from overnight_server.gate.claim import claim as claim_tasks
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import Edge, NewTask
from overnight_server.intake.submit import submit, submit_dag
from overnight_server.maintenance.reap import reap
from overnight_server.maintenance.sweeps import run_sweep
from overnight_server.outcome.artifacts import ArtifactCaps, NewArtifact, store_artifact
from overnight_server.outcome.heartbeat import CostSoFar, HeartbeatAnswer, heartbeat
from overnight_server.outcome.presence import WorkerDescription, join, leave, record_heartbeat
from overnight_server.outcome.run_logs import LogWrite, NewLogChunk, write_logs
from overnight_server.outcome.settle import hand_back, settle
from overnight_server.outcome.start import start
from overnight_server.settings import Settings
from overnight_server.store.db import Db
from overnight_server.store.demo_clock import DemoClock

POOL: Final = "default"
LEASE: Final = timedelta(seconds=30)
#: The longest stretch without a look at the deployment; workers send a heartbeat in each.
STRIDE: Final = timedelta(minutes=5)
#: A run reports its cost this long before it ends.
REPORT: Final = timedelta(seconds=20)
#: When a retry may be due after a failure: the default policy waits for 10, 20, 40 seconds.
RETRIES: Final = tuple(timedelta(seconds=seconds) for seconds in (10, 20, 40))
#: The first event of the demo.
FIRST_MINUTE: Final = 0.0
#: How a task runs that the story does not know, such as one that a visitor adds.
ANY_RUN: Final = DemoRun(1.0, 0.05)
#: Sweeps that make tasks ready, or end them; they run after each move of the clock.
URGENT: Final = ("reset", "promote", "deadlines")
#: Sweeps that only matter while visitors use the demo.
OTHERS: Final = ("reap", "triggers", "inbox", "bulk", "urgency", "unhandled")


@dataclass
class RunInProgress:
    """A run in progress: who executes it, how it will end, and when."""

    run: Run
    plan: DemoRun
    task: DemoTask | None
    worker: str
    ends_at: datetime
    is_silent: bool = False
    has_reported: bool = False


@dataclass(frozen=True)
class DemoDatabases:
    """Connections to the database of the demo with two roles: of admins, and of the engine."""

    admin: Db
    engine: Db


@dataclass
class Player:
    """Plays one night in one database."""

    night: Night
    databases: DemoDatabases
    clock: DemoClock
    settings: Settings
    users: dict[str, UserId] = field(default_factory=dict)
    _tasks: dict[TaskId, DemoTask] = field(default_factory=dict)
    _ids: dict[str, TaskId] = field(default_factory=dict)
    _ended_runs: dict[TaskId, int] = field(default_factory=dict)
    _tried: dict[TaskId, set[str]] = field(default_factory=dict)
    _active: dict[TaskId, RunInProgress] = field(default_factory=dict)
    _workers: list[str] = field(default_factory=list)
    _due: list[datetime] = field(default_factory=list)
    _now: datetime = SIGNED_UP

    def begin(self) -> None:
        """Create the users, and the hours that earlier nights have used."""
        admin = self.databases.admin
        for user in self.night.users:
            user_id = self.users[user.name] = create_user(admin, name=user.name, plan=user.plan)
            set_window(admin, user_id, user.window)
            set_night_budget(admin, user_id, user.night_budget, actor="operator")
        self._move_to(at_minute(FIRST_MINUTE))
        self._sweep(URGENT)
        for user in self.night.users:
            if user.hours_used:
                note = "what earlier nights of this month have used"
                adjust_hours(admin, self.users[user.name], user.hours_used, note=note)
        for name in WORKERS:
            self._join(name)

    def play(self) -> Iterator[datetime]:
        """Play until the morning; yield the instant before each move of the clock."""
        submits = sorted(self.night.graphs, key=lambda graph: graph.minute)
        cancels = sorted(self.night.cancels, key=lambda act: act.minute)
        morning = at_minute(self.night.morning)
        while self._now < morning:
            planned = [at_minute(graph.minute) for graph in submits[:1]]
            planned += [at_minute(act.minute) for act in cancels[:1]]
            target = min([*planned, *self._next_events(), self._now + STRIDE, morning])
            yield target
            self._move_to(target)
            while submits and at_minute(submits[0].minute) <= target:
                self._submit(submits.pop(0))
            while cancels and at_minute(cancels[0].minute) <= target:
                self._cancel(cancels.pop(0).task)
            self.step()
        self.clock.go_on_from(morning)

    def go_on(self) -> None:
        """Take the clock as it is, and do what is due: called again and again after the night."""
        self._now = self.clock.read()
        self._sweep(OTHERS)
        self.step()

    def step(self) -> None:
        """Do what is due now: heartbeats, ends of runs, sweeps, and new claims."""
        self._heartbeats()
        self._due = [instant for instant in self._due if instant > self._now]
        for active in list(self._active.values()):
            if not active.is_silent and active.ends_at <= self._now:
                self._end(active)
        self._sweep(URGENT)
        # Not as the sweep, which grants a grace after a time without passes, such as a moved clock.
        reap(self.databases.engine)
        self._forget_lost_runs()
        while self._claim():
            pass

    def stop(self) -> None:
        """Hand back the runs in progress, and let the workers leave."""
        claims = [active.run.claim for active in self._active.values() if not active.is_silent]
        hand_back(self.databases.engine, claims, agent=WORKERS[0], reason="shutdown")
        for name in self._workers:
            leave(self.databases.engine, name)

    def _next_events(self) -> list[datetime]:
        """Return the instants at which something happens that the player knows of."""
        ends = [active.ends_at for active in self._active.values() if not active.is_silent]
        reports = [
            active.ends_at - REPORT
            for active in self._active.values()
            if not active.is_silent and not active.has_reported
        ]
        return [instant for instant in (*ends, *reports, *self._due) if instant > self._now]

    def _move_to(self, instant: datetime) -> None:
        """Move the clock; runs keep their leases, because their workers have sent heartbeats."""
        gap = max(instant - self._now, timedelta())
        for active in self._active.values():
            if not active.is_silent:
                self._beat(active, lease=gap + LEASE)
        self._now = instant
        self.clock.stop_at(instant)
        for name in self._workers:
            record_heartbeat(self.databases.engine, name)

    def _heartbeats(self) -> None:
        for name in self._workers:
            record_heartbeat(self.databases.engine, name)
        for active in list(self._active.values()):
            if active.is_silent:
                continue
            match self._beat(active, lease=LEASE):
                case HeartbeatAnswer.CONTINUE:
                    pass
                case HeartbeatAnswer.CANCEL:
                    self._settle(active, StoppedByCancel(cost_usd=self._cost_so_far(active)))
                case HeartbeatAnswer.BUDGET:
                    self._settle(
                        active,
                        StoppedByBudget(
                            active.plan.error or "a budget is used up",
                            cost_usd=self._cost_so_far(active),
                        ),
                    )
                case HeartbeatAnswer.HAND_BACK:
                    claims = [active.run.claim]
                    hand_back(
                        self.databases.engine, claims, agent=active.worker, reason="window_closed"
                    )
                    del self._active[active.run.claim.task_id]
                case HeartbeatAnswer.LOST:
                    del self._active[active.run.claim.task_id]
                case _ as never:
                    assert_never(never)

    def _beat(self, active: RunInProgress, *, lease: timedelta) -> HeartbeatAnswer:
        """Send a heartbeat with progress; the cost is reported shortly before the end."""
        reports = not active.has_reported and self._now >= active.ends_at - REPORT
        cost = CostSoFar(active.run.user_id, active.plan.cost) if reports else None
        active.has_reported = active.has_reported or reports
        progress = {"percent": round(100 * self._share_done(active)), "message": active.run.title}
        return heartbeat(
            self.databases.engine, active.run.claim, lease=lease, progress=progress, cost=cost
        )

    def _share_done(self, active: RunInProgress) -> float:
        length = timedelta(minutes=active.plan.minutes)
        return min(max(1 - (active.ends_at - self._now) / length, 0.0), 1.0)

    def _cost_so_far(self, active: RunInProgress) -> float:
        if active.has_reported:
            return active.plan.cost
        return round(active.plan.cost * self._share_done(active), 2)

    def _submit(self, graph: DemoGraph) -> None:
        user_id, caps = self.users[graph.user], Caps.of(self.settings)
        tasks = [self._new_task(graph.user, task) for task in graph.tasks]
        if graph.title is None:
            ids = [submit(self.databases.admin, user_id, task, caps).task_id for task in tasks]
        else:
            positions = {task.name: number for number, task in enumerate(graph.tasks)}
            edges = [
                Edge(positions[parent], positions[task.name], task.condition)
                for task in graph.tasks
                for parent in task.after
            ]
            submitted = submit_dag(
                self.databases.admin,
                user_id,
                tasks,
                caps,
                title=graph.title,
                edges=edges,
                budget_usd=graph.budget,
            )
            ids = list(submitted.tasks)
        for task_id, task in zip(ids, graph.tasks, strict=True):
            self._tasks[task_id] = task
            self._ids[task.name] = task_id

    def _new_task(self, user: str, task: DemoTask) -> NewTask:
        return NewTask(
            title=task.title,
            type=task.type,
            payload={"prompt": f"{task.title}."},
            project_id=task.project,
            priority=task.priority,
            timeout_seconds=task.timeout_minutes * 60,
            # Without jitter, so that every demo is the same night.
            # Only what kills its process is called poison here, not what a model refuses.
            retry=RetryRules(jitter=False, poison_attempts=4),
            locks=task.locks,
            tags=task.tags,
            created_by=task.created_by or f"human:{user}",
            source="cli",
            max_cost_usd=task.max_cost,
            estimated_cost_usd=0.0,
            name=task.name,
        )

    def _cancel(self, name: str) -> None:
        task_id = self._ids[name]
        owner = next(
            graph.user for graph in self.night.graphs if self.night.tasks[name] in graph.tasks
        )
        cancel(self.databases.admin, self.users[owner], task_id, actor=f"human:{owner}")

    def _claim(self) -> bool:
        """Run one pass of the gate and start what it claimed; return whether it claimed any."""
        # Workers send heartbeats whenever the clock moves, at most STRIDE apart.
        claim_settings = ClaimSettings(
            timedelta(seconds=self.settings.claim_ttl), 2 * STRIDE, bundle_limits=NO_BUNDLES
        )
        found = claim_tasks(
            self.databases.engine, POOL, holder="demo:dispatcher", claim_settings=claim_settings
        )
        for claimed in found.claims:
            self._start(claimed)
        return bool(found.claims)

    def _start(self, claimed: Claimed) -> None:
        task_id = claimed.claim.task_id
        worker = self._choose_worker(task_id)
        run = start(self.databases.engine, claimed.claim, holder=worker, lease=LEASE)
        if run is None:
            return
        task, number = self._tasks.get(task_id), self._ended_runs.get(task_id, 0)
        plan = task.runs[min(number, len(task.runs) - 1)] if task and task.runs else ANY_RUN
        ends_at = self._now + timedelta(minutes=plan.minutes)
        self._active[task_id] = RunInProgress(run, plan, task, worker, ends_at)
        self._tried.setdefault(task_id, set()).add(worker)
        if plan.lines:
            text = "".join(f"{line}\n" for line in plan.lines)
            chunk = NewLogChunk(1, "stdout", len(plan.lines), len(text.encode()), text)
            write_logs(self.databases.engine, [LogWrite(run.claim, [chunk])])

    def _choose_worker(self, task_id: TaskId) -> str:
        """Return the worker with the fewest runs, one that has not tried this task if possible."""
        busy = [active.worker for active in self._active.values()]
        tried = self._tried.get(task_id, set())
        planned = self._tasks.get(task_id)
        runs = planned.runs if planned else ()
        number = self._ended_runs.get(task_id, 0)
        is_lost = number < len(runs) and runs[number].outcome == "lost"
        if is_lost and LOST_WORKER in self._workers:
            return LOST_WORKER
        return min(self._workers, key=lambda name: (name in tried, busy.count(name)))

    def _end(self, active: RunInProgress) -> None:
        plan = active.plan
        if plan.outcome == "lost":
            self._lose(active.worker)
            return
        if plan.outcome == "completed" and active.task and active.task.artifact:
            self._store(active.run.claim, active.task)
        self._settle(active, _result(plan, active.task))

    def _settle(self, active: RunInProgress, result: Result) -> None:
        task_id = active.run.claim.task_id
        settle(self.databases.engine, active.run, result, agent=active.worker)
        self._count_end(task_id)
        wait = timedelta(minutes=active.plan.wait_minutes)
        self._due += [self._now + wait + after for after in RETRIES]

    def _count_end(self, task_id: TaskId) -> None:
        self._active.pop(task_id, None)
        self._ended_runs[task_id] = self._ended_runs.get(task_id, 0) + 1

    def _store(self, claim: Claim, task: DemoTask) -> None:
        content = f"# {task.title}\n\n{task.summary}\n".encode()
        artifact = NewArtifact(task.artifact or "", "text", content)
        store_artifact(self.databases.engine, claim, artifact, ArtifactCaps())

    def _lose(self, worker: str) -> None:
        """Let a worker fall silent with its runs: the reaper will take them back."""
        self._workers.remove(worker)
        for active in self._active.values():
            active.is_silent = active.is_silent or active.worker == worker
        self._due.append(self._now + LEASE + timedelta(seconds=1))

    def _forget_lost_runs(self) -> None:
        """Count silent runs as ended once their lease is over; then the lost worker starts anew."""
        silent = [active for active in self._active.values() if active.is_silent]
        if not silent or self._now < max(active.ends_at for active in silent) + LEASE:
            return
        for active in silent:
            self._count_end(active.run.claim.task_id)
        for name in {active.worker for active in silent}:
            self._join(f"{name.partition(':')[0]}:5512")

    def _join(self, name: str) -> None:
        join(self.databases.engine, WorkerDescription(name, POOL, (), SLOTS))
        self._workers.append(name)

    def _sweep(self, names: tuple[str, ...]) -> None:
        for name in names:
            run_sweep(self.databases.engine, self.settings, name, force=True)


def _result(plan: DemoRun, task: DemoTask | None) -> Result:
    """Return what the worker reports of a run that ends as planned."""
    match plan.outcome:
        case "completed":
            summary = task.summary if task else ""
            files = tuple(f"src/part_{number}.py" for number in range(task.files if task else 0))
            tokens = {"input": int(plan.cost * 180_000), "output": int(plan.cost * 9_000)}
            return Returned(
                {"summary": summary}, summary or None, files, cost_usd=plan.cost, tokens=tokens
            )
        case "failed":
            is_final = plan.error_class == "auth_failure"
            return Raised(
                plan.error_class,
                plan.error,
                retryable=not is_final,
                cost_usd=plan.cost,
                validator="test-pass" if plan.error_class == "invalid_output" else None,
            )
        case "killed" | "lost":
            return Died(cost_usd=plan.cost)
        case "rate_limited":
            return Deferred(plan.wait_minutes * 60, cost_usd=plan.cost)
        case "over_budget":
            return StoppedByBudget(plan.error, cost_usd=plan.cost)
        case _ as never:
            assert_never(never)


def play_at_once(player: Player, on_move: Callable[[datetime], None] | None = None) -> None:
    """Play the whole night as fast as the engine can."""
    player.begin()
    for instant in player.play():
        if on_move is not None:
            on_move(instant)
