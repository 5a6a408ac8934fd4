"""A load that mixes every kind of operation, for tests of deadlocks, limits and lost tasks.

`Caller` performs one random operation after the other on connections of its own, as the processes
of a deployment would: producers, dispatchers, worker slots, pull agents, operators and sweeps. Few
users and short leases make the callers meet often. A refusal is an ordinary answer; any other error
is a finding.
"""

import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, text

from overnight.errors import Refused
from overnight.models.bulk import TaskFilter
from overnight.models.enums import PlanTier
from overnight_server.control import agents, budgets, bulk, dead_letters, keys
from overnight_server.control.adjust_hours import adjust_hours
from overnight_server.control.agents import PullAgentDescription
from overnight_server.control.cancel import cancel, cancel_dag
from overnight_server.control.drain import drain, undrain
from overnight_server.control.edit import ANY, TaskEdit, edit
from overnight_server.control.fork import fork
from overnight_server.control.pauses import EVERYTHING, PauseSubject, pause, resume
from overnight_server.control.retry import retry, retry_dag
from overnight_server.control.users import Overrides, change_plan, override_limits, restore_template
from overnight_server.domain.bulk import Action
from overnight_server.domain.claims import Claimed, Run
from overnight_server.domain.graphs import TriggerCondition
from overnight_server.domain.ids import DagId, TaskId, UserId
from overnight_server.domain.results import (
    Deferred,
    Interrupted,
    Raised,
    Result,
    Returned,
    StoppedByCancel,
    WaitingForTasks,
)
from overnight_server.domain.retry import RetryRules, Strategy
from overnight_server.gate.claim import (
    BundleLimits,
    ClaimSettings,
    claim,
    claim_for_agent,
    claim_for_idle_slot,
    claim_next_for_slot,
    claim_one,
    prepare_idle_claim,
)
from overnight_server.intake.add_edges import NewEdge, add_edges
from overnight_server.intake.join_graph import join_graph
from overnight_server.intake.new_graph import Edge, NewGraph, NewTask
from overnight_server.intake.spawn import NewChild, SpawnCaps, spawn
from overnight_server.intake.submit import submit, submit_dag, submit_graph
from overnight_server.intake.triggers import add_trigger
from overnight_server.maintenance.audit import audit_all
from overnight_server.maintenance.bulk import run_bulks
from overnight_server.maintenance.deadlines import dead_letter_passed, raise_deadline_priority
from overnight_server.maintenance.locks import release_lock
from overnight_server.maintenance.promote import promote
from overnight_server.maintenance.reap import end_overdue, reap, retire_agents
from overnight_server.maintenance.reset import reset_cycles
from overnight_server.maintenance.triggers import fire_due
from overnight_server.outcome.artifacts import ArtifactCaps, NewArtifact, store_artifact
from overnight_server.outcome.heartbeat import CostSoFar, heartbeat
from overnight_server.outcome.presence import WorkerDescription, join, leave
from overnight_server.outcome.settle import settle, settle_all
from overnight_server.outcome.start import start_all
from overnight_server.store.db import ADMIN, DISPATCHER, Db
from tests.support.deployment import LOOSE, Deployment

ACTOR = "human:olga"
POOLS = ("left", "right")
# Workers that stay, so that every task can run somewhere; others come and go.
LASTING = {pool: f"{pool}-host:1:boot" for pool in POOLS}
PASSING = {pool: f"{pool}-host:2:boot" for pool in POOLS}
CAPABILITIES = ("gpu",)
SLOTS = 8
# Fewer than all workers have together, so that claims also wait for the slot cap.
SLOTS_MAX = 12
LEASE = timedelta(seconds=2)
LIVENESS = timedelta(hours=1)
LOCKS = ((), (), (), ("repo:a",), ("repo:a", "repo:b"), ("path:src",), ("path:src/a",))
TYPES = ("long", "quick")
RETRIES = RetryRules(Strategy.IMMEDIATE, jitter=False)
# A user with more waiting tasks gets no new ones, so that the end can run them all.
MAX_WAITING = 60
RECENT_TASKS = 300


@dataclass(frozen=True)
class KnownTask:
    """A task that some operation may change."""

    user_id: UserId
    task_id: TaskId
    dag_id: DagId


@dataclass
class SharedState:
    """What all callers know: users, recent tasks and the runs that nobody has ended yet."""

    users: Sequence[UserId]
    slots_max: int | None
    tasks: deque[KnownTask] = field(default_factory=lambda: deque(maxlen=RECENT_TASKS))
    runs: deque[tuple[Run, str]] = field(default_factory=deque)
    pull_agents: deque[tuple[UserId, str]] = field(default_factory=lambda: deque(maxlen=8))
    done: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)


def lasting_worker(pool: str, slots: int = SLOTS) -> WorkerDescription:
    """Return the worker of a pool that stays."""
    return WorkerDescription(LASTING[pool], pool, CAPABILITIES, slots)


def prepare(deployment: Deployment, slots_max: int | None) -> SharedState:
    """Create users and the workers that stay; return what the callers share."""
    for pool in POOLS:
        join(deployment.dispatcher, lasting_worker(pool))
    deployment.run("INSERT INTO type_durations (type, seconds) VALUES ('quick', 0.05)")
    plans = (PlanTier.FREE, PlanTier.PRO, PlanTier.PRO, PlanTier.TEAM, PlanTier.ENTERPRISE)
    limits = {"on_exhausted": "hold", "max_pending": MAX_WAITING}
    return SharedState([deployment.user(plan, **limits) for plan in plans], slots_max)


class Caller:
    """Performs random operations on connections of its own."""

    def __init__(self, database_url: str, shared: SharedState, seed: int) -> None:
        self.shared = shared
        self.chance = random.Random(seed)
        self.name = f"caller-{seed}"
        self.gate = self._connect(database_url, DISPATCHER)
        self.front = self._connect(database_url, ADMIN)
        self.agent_settings = ClaimSettings(LEASE, LIVENESS, shared.slots_max)
        self.settings = replace(self.agent_settings, bundle_limits=BundleLimits(tasks=4))
        self.operations: Sequence[Callable[[], object]] = (
            *([self.submit_task, self.claim_for_pool, self.refill_slot, self.settle_run] * 3),
            *([self.claim_for_pull_agent, self.claim_for_idle_slot, self.send_heartbeat] * 2),
            self.submit_batch,
            self.submit_dag,
            self.add_to_dag,
            self.add_edge,
            self.add_trigger,
            self.fork_dag,
            self.claim_directly,
            self.suspend_run,
            self.store_artifact,
            self.cancel_task,
            self.cancel_dag,
            self.retry_task,
            self.retry_dag,
            self.resolve_dead_letter,
            self.edit_task,
            self.pause_user,
            self.pause_pool,
            self.pause_everything,
            self.change_workers,
            self.drain_worker,
            self.register_pull_agent,
            self.remove_pull_agent,
            self.change_plan,
            self.set_budgets,
            self.approve_budget,
            self.adjust_hours,
            self.start_bulk,
            self.release_lock,
            self.sweep,
        )

    @staticmethod
    def _connect(database_url: str, role: str) -> Db:
        return Db.connect(database_url, role=role, application_name="mixed-load", pool_size=1)

    def perform_one(self) -> None:
        """Perform one operation and count it."""
        operation = self.chance.choice(self.operations)
        name = operation.__name__
        try:
            operation()
        except Refused as refusal:
            self.shared.refused[refusal.code] += 1
        self.shared.done[name] += 1

    def close(self) -> None:
        """Close the connections."""
        self.gate.close()
        self.front.close()

    # -- producers ------------------------------------------------------------------------------

    def submit_task(self) -> None:
        user = self._user()
        added = submit(self.front, user, self._new_task(), LOOSE)
        self.shared.tasks.append(KnownTask(user, added.task_id, added.dag_id))

    def submit_batch(self) -> None:
        user = self._user()
        for added in submit_graph(self.front, user, self._new_tasks(), LOOSE):
            self.shared.tasks.append(KnownTask(user, added.task_id, added.dag_id))

    def submit_dag(self) -> None:
        user = self._user()
        tasks = self._new_tasks()
        edges = [Edge(self.chance.randrange(child), child) for child in range(1, len(tasks))]
        budget = self.chance.choice([None, 2.0])
        added = submit_dag(
            self.front, user, tasks, LOOSE, title="a graph", edges=edges, budget_usd=budget
        )
        for task_id in added.tasks:
            self.shared.tasks.append(KnownTask(user, task_id, added.dag_id))

    def add_to_dag(self) -> None:
        for known in self._known_task():
            task = self._new_task()
            added = join_graph(self.front, known.user_id, known.dag_id, task, LOOSE)
            self.shared.tasks.append(KnownTask(known.user_id, added.task_id, added.dag_id))

    def add_edge(self) -> None:
        for parent, child in zip(self._known_task(), self._known_task(), strict=True):
            edge = NewEdge(parent.task_id, child.task_id)
            add_edges(self.front, child.user_id, [edge], actor=ACTOR)

    def add_trigger(self) -> None:
        for known in self._known_task():
            graph = NewGraph(self._new_tasks())
            add_trigger(
                self.front,
                known.user_id,
                known.dag_id,
                graph,
                LOOSE,
                actor=ACTOR,
                when=TriggerCondition.FINISHED,
            )

    def fork_dag(self) -> None:
        for known in self._known_task():
            fork(self.front, known.user_id, known.task_id, LOOSE, actor=ACTOR)

    def _new_tasks(self) -> list[NewTask]:
        return [self._new_task() for _ in range(self.chance.randint(2, 5))]

    def _new_task(self) -> NewTask:
        return NewTask(
            "a task",
            self.chance.choice(TYPES),
            priority=self.chance.randrange(100),
            timeout_seconds=60,
            max_attempts=self.chance.randint(1, 4),
            retry=RETRIES,
            required_capabilities=self.chance.choice([(), (), CAPABILITIES]),
            locks=self.chance.choice(LOCKS),
            max_cost_usd=self.chance.choice([None, None, 0.5]),
        )

    # -- claims ---------------------------------------------------------------------------------

    def claim_for_pool(self) -> None:
        pool = self.chance.choice(POOLS)
        taken = claim(self.gate, pool, holder=self.name, claim_settings=self.settings, limit=6)
        self._start(taken.claims, LASTING[pool])

    def claim_for_pull_agent(self) -> None:
        if not self.shared.pull_agents:
            return
        owner, agent_id = self.chance.choice(list(self.shared.pull_agents))
        place = agents.record_poll(self.gate, keys.Caller(owner, "", ()), agent_id)
        claimed = claim_for_agent(
            self.gate,
            place.pool,
            agent=agent_id,
            claim_settings=self.agent_settings,
            serves=place.serves,
            types=place.types,
        )
        self._start([claimed] if claimed else [], agent_id)

    def claim_directly(self) -> None:
        claimed = claim_one(
            self.gate,
            holder=self.name,
            claim_settings=self.settings,
            user_id=self.chance.choice([None, self._user()]),
        )
        self._start([claimed] if claimed else [], self.name)

    def claim_for_idle_slot(self) -> None:
        pool = self.chance.choice(POOLS)
        with self.gate.reserve_connection() as reserved:
            batch = prepare_idle_claim(
                reserved,
                pool,
                agent=LASTING[pool],
                token=uuid4(),
                claim_settings=self.settings,
                lease=LEASE,
            )
            run = claim_for_idle_slot(reserved, batch)
        if run is not None:
            self.shared.runs.append((run, LASTING[pool]))

    def _start(self, claims: Sequence[Claimed], agent: str) -> None:
        """Start claims; some messages are lost."""
        if claims and self.chance.random() < 0.9:
            started = start_all(
                self.gate, [claimed.claim for claimed in claims], holder=agent, lease=LEASE
            )
            self.shared.runs.extend((run, agent) for run in started)

    # -- runs -----------------------------------------------------------------------------------

    def refill_slot(self) -> None:
        """Settle a run and claim the next tasks for its slot in the same transaction."""
        ended = self._take_runs()
        if not ended:
            return
        pool = self.chance.choice(POOLS)
        started: list[Run] = []

        def refill(tx: Connection) -> None:
            started[:] = claim_next_for_slot(
                tx,
                pool,
                agent=LASTING[pool],
                bundle=uuid4(),
                claim_settings=self.settings,
                lease=LEASE,
            ).runs

        settle_all(
            self.gate,
            [(run, self._result(run)) for run, _ in ended],
            agent=ended[0][1],
            then=refill,
        )
        self.shared.runs.extend((run, LASTING[pool]) for run in started)

    def settle_run(self) -> None:
        for run, agent in self._take_runs()[:1]:
            settle(self.gate, run, self._result(run), agent=agent)

    def send_heartbeat(self) -> None:
        for run, agent in self._take_runs():
            cost = CostSoFar(run.user_id, self.chance.random() / 5)
            heartbeat(self.gate, run.claim, lease=LEASE, cost=self.chance.choice([None, cost]))
            self.shared.runs.append((run, agent))

    def suspend_run(self) -> None:
        for run, agent in self._take_runs()[:1]:
            child = spawn(
                self.gate,
                run.user_id,
                run.claim,
                NewChild(self._new_task(), key=uuid4().hex),
                SpawnCaps(LOOSE),
            )
            settle(self.gate, run, WaitingForTasks((child.task_id,)), agent=agent)

    def store_artifact(self) -> None:
        for run, agent in self._take_runs():
            self.shared.runs.append((run, agent))
            artifact = NewArtifact("note", "text", b"kept")
            store_artifact(self.gate, run.claim, artifact, ArtifactCaps())

    def _take_runs(self) -> list[tuple[Run, str]]:
        """Take up to three runs that no other caller will end; a few are lost with their worker."""
        taken = []
        for _ in range(self.chance.randint(1, 3)):
            try:
                taken.append(self.shared.runs.popleft())
            except IndexError:
                break
        return taken if self.chance.random() < 0.97 else []

    def _result(self, run: Run) -> Result:
        usd = self.chance.choice([0.0, 0.0, 0.1])
        return self.chance.choice(
            (
                Returned({"ok": True}, cost_usd=usd),
                Returned({"ok": True}, cost_usd=usd),
                Raised("error", "no luck", cost_usd=usd),
                Raised("auth_failure", "wrong key"),
                Deferred(wait_seconds=0.1),
                Interrupted(),
                StoppedByCancel(),
            )
            if run.attempts < 3
            else (Returned({"ok": True}),)
        )

    # -- people ---------------------------------------------------------------------------------

    def cancel_task(self) -> None:
        for known in self._known_task():
            cancel(self.front, known.user_id, known.task_id, actor=ACTOR)

    def cancel_dag(self) -> None:
        for known in self._known_task():
            cancel_dag(self.front, known.user_id, known.dag_id, actor=ACTOR)

    def retry_task(self) -> None:
        for known in self._known_task():
            retry(self.front, known.user_id, known.task_id, actor=ACTOR, caps=LOOSE)

    def retry_dag(self) -> None:
        for known in self._known_task():
            retry_dag(self.front, known.user_id, known.dag_id, actor=ACTOR, caps=LOOSE)

    def resolve_dead_letter(self) -> None:
        rows = self._rows("SELECT task_id FROM dead_letters WHERE resolution IS NULL LIMIT 20")
        for row in self._some(rows):
            act = self.chance.choice([dead_letters.retry, dead_letters.discard])
            act(self.front, row.task_id, actor=ACTOR)

    def edit_task(self) -> None:
        for known in self._known_task():
            changes = TaskEdit(priority=self.chance.randrange(100), tags=["edited"])
            edit(self.front, known.user_id, known.task_id, changes, editions=(ANY,), actor=ACTOR)

    def pause_user(self) -> None:
        self._pause(PauseSubject(user_id=self._user()))

    def pause_pool(self) -> None:
        self._pause(PauseSubject(pool=self.chance.choice(POOLS)))

    def pause_everything(self) -> None:
        self._pause(EVERYTHING)

    def _pause(self, subject: PauseSubject) -> None:
        pause(self.front, subject, actor=ACTOR)
        resume(self.front, subject, actor=ACTOR)

    def change_plan(self) -> None:
        user = self._user()
        changes: list[Callable[[], object]] = [
            lambda: change_plan(self.front, user, self.chance.choice(list(PlanTier))),
            lambda: override_limits(
                self.front, user, Overrides(concurrency=self.chance.randint(1, 5))
            ),
            lambda: restore_template(self.front, user),
        ]
        self.chance.choice(changes)()

    def set_budgets(self) -> None:
        usd = self.chance.choice([None, 1.0, 5.0])
        budgets.set_night_budget(self.front, self._user(), usd, actor=ACTOR)
        worker = LASTING[self.chance.choice(POOLS)]
        budgets.set_agent_budget(self.front, worker, self.chance.choice([None, 3.0]), actor=ACTOR)
        for known in self._known_task():
            budgets.set_dag_budget(self.front, known.dag_id, usd, actor=ACTOR)

    def approve_budget(self) -> None:
        rows = self._rows("SELECT id FROM tasks WHERE awaits_budget IS NOT NULL LIMIT 20")
        for row in self._some(rows):
            budgets.approve(self.front, TaskId(row.id), 1.0, actor=ACTOR)

    def adjust_hours(self) -> None:
        adjust_hours(self.front, self._user(), self.chance.choice([1, -1]), note="test")

    def start_bulk(self) -> None:
        action = self.chance.choice([Action.RETRY, Action.REPRIORITISE, Action.CANCEL])
        order = bulk.BulkOrder(
            action,
            TaskFilter(tag="edited"),
            priority=20 if action is Action.REPRIORITISE else None,
        )
        bulk.start(self.front, self._user(), order, actor=ACTOR)

    def release_lock(self) -> None:
        for row in self._some(self._rows("SELECT user_id, task_id FROM held_locks LIMIT 20")):
            release_lock(
                self.gate,
                UserId(row.user_id),
                TaskId(row.task_id),
                actor=ACTOR,
                kill=_kill_no_process,
            )

    # -- workers, agents and sweeps ---------------------------------------------------------------

    def change_workers(self) -> None:
        pool = self.chance.choice(POOLS)
        capabilities = self.chance.choice([(), CAPABILITIES])
        changes: list[Callable[[], object]] = [
            lambda: join(self.gate, WorkerDescription(PASSING[pool], pool, capabilities, 2)),
            lambda: leave(self.gate, PASSING[pool]),
            # A worker that was silent for too long is retired by a sweep and joins again.
            lambda: join(self.gate, lasting_worker(pool)),
        ]
        self.chance.choice(changes)()

    def drain_worker(self) -> None:
        worker = PASSING[self.chance.choice(POOLS)]
        self.chance.choice([drain, undrain])(self.gate, worker)

    def register_pull_agent(self) -> None:
        owner = self._user()
        description = PullAgentDescription(
            f"laptop-{self.chance.randrange(2)}",
            capabilities=CAPABILITIES,
            slots=2,
            budget_usd=self.chance.choice([None, 2.0]),
            serves_everyone=self.chance.random() < 0.3,
        )
        registered = agents.register(self.gate, keys.Caller(owner, "", ()), description)
        self.shared.pull_agents.append((owner, registered.agent_id))

    def remove_pull_agent(self) -> None:
        if self.shared.pull_agents:
            owner, agent_id = self.chance.choice(list(self.shared.pull_agents))
            self.chance.choice([agents.drain, agents.leave])(self.gate, owner, agent_id)

    def sweep(self) -> None:
        self.chance.choice(SWEEPS)(self.gate)

    # -- choices --------------------------------------------------------------------------------

    def _user(self) -> UserId:
        return self.chance.choice(self.shared.users)

    def _known_task(self) -> list[KnownTask]:
        return self._some(list(self.shared.tasks))

    def _some(self, items: Sequence[Any]) -> list[Any]:
        """Return one of the items, or none if there are none."""
        return [self.chance.choice(items)] if items else []

    def _rows(self, sql: str) -> Sequence[Any]:
        return self.gate.atomically(lambda tx: tx.execute(text(sql)).all())


def _end_overdue(db: Db) -> int:
    return end_overdue(db, grace=timedelta(seconds=1), kill=_kill_no_process)


def _kill_no_process(_claim: object) -> None:
    """Kill no process: the runs of a load have none."""


SWEEPS: tuple[Callable[[Db], object], ...] = (
    reap,
    promote,
    run_bulks,
    audit_all,
    reset_cycles,
    dead_letter_passed,
    raise_deadline_priority,
    _end_overdue,
    lambda db: fire_due(db, LOOSE),
    lambda db: retire_agents(db, silence=timedelta(seconds=5)),
)


@contextmanager
def callers(database_url: str, shared: SharedState, number: int) -> Iterator[threading.Event]:
    """Let callers work until the block ends; raise what one of them raised."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        caller = Caller(database_url, shared, seed)
        try:
            while not stop.is_set():
                caller.perform_one()
        except BaseException as error:  # noqa: BLE001 - raised again in the test's own thread
            failures.append(error)
            stop.set()
        finally:
            caller.close()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield stop
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
