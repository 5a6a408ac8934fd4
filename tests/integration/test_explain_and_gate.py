"""Explain compared with the gate: no reason exactly if the next pass claims the task."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from typing import Any, TypeVar
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection

from overnight.models.enums import AtClosing, PlanTier
from overnight.models.explain import Explanation, Reason
from overnight_server.control.pauses import EVERYTHING, PauseSubject, pause
from overnight_server.control.windows import set_window
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.domain.lifecycle import WAITING
from overnight_server.domain.windows import NightWindow
from overnight_server.explain.explain import explain
from overnight_server.gate.claim import (
    CLAIMS_PER_PASS,
    NO_BUNDLES,
    BundleLimits,
    ClaimSettings,
    StartedRuns,
    claim,
    claim_next_for_slot,
    claim_one,
)
from overnight_server.intake.new_graph import Edge, NewTask
from overnight_server.intake.submit import submit_graph
from overnight_server.store.batched_statements import ResultRow, StatementCall, execute_batch
from overnight_server.store.db import Db
from tests.support.deployment import CLAIM_TTL, LOOSE, POOL, Deployment
from tests.support.profiles import examples

T = TypeVar("T")

# Deleting is much quicker than truncating tables that hold a few rows.
DELETE_ALL = "; ".join(
    f"DELETE FROM {table}"
    for table in (
        *("events", "usage_ledger", "attempts", "task_edges", "held_locks", "lock_waits", "tasks"),
        *(
            "dags",
            "dag_events",
            "spending",
            "notices",
            "lanes",
            "users",
            "agents",
            "pools",
            "pauses",
            "type_durations",
        ),
    )
)
LIVENESS = timedelta(seconds=15)
EVENING = datetime(2026, 11, 16, 20, 0, tzinfo=UTC)
LATER = EVENING + timedelta(hours=2)
GPU_POOL = "gpu"
QUICK = "quick"
FOR_A_SLOT = {"no_worker", "no_capable_agent", "handler", "slots", "slots_max", "behind"}


class Undone(Db):
    """The same database, in which nothing lasts."""

    def atomically(self, work: Callable[[Connection], T], *, one_instant: bool = False) -> T:
        assert not one_instant
        with self.engine.connect() as connection, connection.begin() as transaction:
            answer = work(connection)
            transaction.rollback()
            return answer


@dataclass(frozen=True)
class Job:
    """A task of a small deployment and its state."""

    type: str
    priority: int
    locks: Sequence[str]
    timeout: int
    needs: Sequence[str]
    after: bool
    deadline: timedelta | None
    late: bool
    state: str
    usd: Decimal | None = None

    def new(self) -> NewTask:
        return NewTask(
            title="job",
            type=self.type,
            priority=self.priority,
            locks=self.locks,
            timeout_seconds=self.timeout * 60,
            required_capabilities=self.needs,
            deadline_at=None if self.deadline is None else EVENING + self.deadline,
            max_cost_usd=None if self.usd is None else float(self.usd),
        )


@dataclass(frozen=True)
class Person:
    """A user of a small deployment; each job marked `after` waits for the one before it."""

    plan: PlanTier
    at_once: int
    hours: int | None
    window: NightWindow | None
    paused: bool
    jobs: Sequence[Job]
    night_usd: Decimal | None = None
    graph_usd: Decimal | None = None


@dataclass(frozen=True)
class Worker:
    """A worker, and how it is doing."""

    pool: str
    slots: int
    capabilities: Sequence[str]
    status: str
    usd: Decimal | None = None
    types: Sequence[str] = ()


@dataclass(frozen=True)
class Place:
    """The workers and the rules of a small deployment, and how much of it is busy."""

    workers: Sequence[Worker]
    paused: str | None
    slots_max: int | None
    bundle_limits: BundleLimits
    busy: int


LOCKS = [
    *[(), ("project:red",), ("project:red", "project:blue")],
    *[("path:src",), ("path:src/a",), ("path:src/b", "path:docs"), ("path:.",)],
]


def _jobs(**odd: st.SearchStrategy[Any]) -> st.SearchStrategy[Job]:
    plain: dict[str, st.SearchStrategy[Any]] = {
        "type": st.sampled_from(["slow", QUICK]),
        "priority": st.sampled_from([50, 70, 20, 5]),
        "locks": st.one_of(st.just(()), st.sampled_from(LOCKS)),
        "timeout": st.sampled_from([20, 40, 60, 240]),
        "needs": st.just(()),
        "after": st.just(value=False),
        "deadline": st.none(),
        "late": st.booleans(),
        "state": st.just("ready"),
        "usd": st.none(),
    }
    return st.builds(Job, **plain | odd)


def _people(**odd: st.SearchStrategy[Any]) -> st.SearchStrategy[Person]:
    plain: dict[str, st.SearchStrategy[Any]] = {
        "plan": st.sampled_from(PlanTier),
        "at_once": st.sampled_from([2, 3, 5, 1]),
        "hours": st.sampled_from([None, None, 2, 1]),
        "window": st.none(),
        "paused": st.just(value=False),
        "jobs": st.lists(jobs, min_size=1, max_size=6),
        "night_usd": st.none(),
        "graph_usd": st.none(),
    }
    return st.builds(Person, **plain | odd)


dollars = st.sampled_from([None, Decimal(0), Decimal(1), Decimal(2), Decimal(4)])
# Most tasks differ only in their locks; each special case appears alone.
jobs = st.one_of(
    *[_jobs()] * 4,
    _jobs(needs=st.sampled_from([("gpu",), ("gpu", "big")])),
    _jobs(after=st.just(value=True)),
    *[_jobs(usd=dollars)] * 2,
    # A submit refuses a past deadline, so these tasks are submitted before their deadline.
    _jobs(
        deadline=st.sampled_from([timedelta(hours=1), timedelta(hours=3)]),
        late=st.just(value=False),
    ),
    _jobs(state=st.sampled_from(["retrying", "cancelled"])),
)
windows = st.builds(
    NightWindow,
    zone=st.just("UTC"),
    opens=st.sampled_from([time(18), time(21), time(23)]),
    closes=st.sampled_from([time(20, 30), time(22), time(6)]),
    at_closing=st.sampled_from([AtClosing.CONTINUE, AtClosing.FINISH, AtClosing.STOP]),
)
people = st.one_of(
    *[_people()] * 3,
    *[_people(window=windows)] * 2,
    *[_people(night_usd=dollars, graph_usd=dollars)] * 2,
    _people(paused=st.just(value=True)),
    _people(at_once=st.just(0)),
)
known_types = st.sampled_from([*[("slow", QUICK)] * 3, ("slow",), (QUICK,), ()])
hands = st.builds(
    Worker,
    pool=st.sampled_from([POOL, GPU_POOL]),
    slots=st.integers(1, 5),
    capabilities=st.sampled_from([(), ("gpu",), ("gpu", "big")]),
    status=st.just("alive"),
    usd=st.one_of(*[st.none()] * 3, st.sampled_from([Decimal(0), Decimal(1)])),
    types=known_types,
)
odd_hands = st.builds(
    Worker,
    pool=st.sampled_from([POOL, GPU_POOL]),
    slots=st.integers(0, 3),
    capabilities=st.sampled_from([(), ("gpu",)]),
    status=st.sampled_from(["alive", "draining", "silent", "offline"]),
    types=known_types,
)
places = st.builds(
    Place,
    workers=st.one_of(
        *[st.lists(hands, min_size=1, max_size=3)] * 6, st.lists(odd_hands, max_size=3)
    ),
    paused=st.one_of(*[st.none()] * 3, st.sampled_from([POOL, GPU_POOL, "all"])),
    slots_max=st.one_of(*[st.none()] * 3, st.integers(1, 4)),
    bundle_limits=st.sampled_from([NO_BUNDLES, BundleLimits(0.25, 3)]),
    busy=st.integers(0, 3),
)


PLAIN = Job("slow", 50, (), 20, (), after=False, deadline=None, late=False, state="ready")
CLOSED = NightWindow("UTC", time(18), time(20, 30), AtClosing.CONTINUE)
# Rare in random data: a task that waited at closing, and one created after it.
CARRIES = Person(
    PlanTier.PRO, 3, None, CLOSED, paused=False, jobs=[PLAIN, replace(PLAIN, late=True)]
)
WORKING = Place([Worker(POOL, 3, (), "alive")], None, None, NO_BUNDLES, busy=0)


@example(crowd=[CARRIES], place=WORKING)
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(crowd=st.lists(people, min_size=1, max_size=3), place=places)
def test_explain_has_no_reason_exactly_if_the_gate_would_claim(
    deployment: Deployment, crowd: list[Person], place: Place
) -> None:
    _compare(deployment, crowd, place)


@pytest.mark.proof
@pytest.mark.timeout(1800)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(crowd=st.lists(people, min_size=1, max_size=6), place=places)
def test_explain_agrees_with_the_gate_in_many_more_deployments(
    deployment: Deployment, crowd: list[Person], place: Place
) -> None:
    _compare(deployment, crowd, place)


def _compare(deployment: Deployment, crowd: list[Person], place: Place) -> None:
    claim_settings = ClaimSettings(CLAIM_TTL, LIVENESS, place.slots_max, place.bundle_limits)
    owners = _build(deployment, crowd, place, claim_settings)

    taken = _next_pass(deployment, claim_settings)
    explanations = {
        task: explain(deployment.app, user, task, claim_settings) for task, user in owners.items()
    }

    free = {task for task, view in explanations.items() if view.starts_next}
    assert free == taken, _describe(explanations, free ^ taken)
    alone = {task for task, view in explanations.items() if not _own_reasons(view)}
    would_run = {
        task for task, user in owners.items() if _is_claimed_directly(deployment, user, task)
    }
    assert alone == would_run, _describe(explanations, alone ^ would_run)
    for view in explanations.values():
        _check_words(view)
    assert _firsts(deployment, claim_settings) == _firsts(deployment, claim_settings, by="claim")


def _own_reasons(view: Explanation) -> list[Reason]:
    """Return the reasons that would remain if a slot were reserved for this task."""
    return [
        reason
        for reason in view.reasons
        if reason.code not in FOR_A_SLOT
        and reason.details.get("scope") != "pool"
        and reason.details.get("budget") != "agent"
    ]


def _is_claimed_directly(deployment: Deployment, user: UserId, task: TaskId) -> bool:
    """Whether the gate gives the task to a direct claim with every capability."""
    claimed = claim_one(
        Undone(deployment.dispatcher.engine),
        holder="nobody",
        claim_settings=ClaimSettings(CLAIM_TTL, LIVENESS),
        user_id=user,
        task_id=task,
        capabilities=["gpu", "big"],
    )
    return claimed is not None


def _next_pass(deployment: Deployment, claim_settings: ClaimSettings) -> set[UUID]:
    """Return the tasks that the next pass of each pool would claim if it came first."""
    undone = Undone(deployment.dispatcher.engine)
    pools = [row["name"] for row in deployment.rows("SELECT name FROM pools")]
    passes = [
        claim(undone, pool, holder="nobody", claim_settings=claim_settings, limit=CLAIMS_PER_PASS)
        for pool in pools
    ]
    return {claimed.claim.task_id for taken in passes for claimed in taken.claims}


def _firsts(
    deployment: Deployment, claim_settings: ClaimSettings, *, by: str = "claim_single"
) -> list[Sequence[UUID]]:
    """What each pool would give to one slot, and to a worker's own that goes on by itself.

    One task is chosen by a shorter statement; by that for many it must be the same one.
    """

    def reworded(tx: Connection, *calls: StatementCall) -> Sequence[ResultRow]:
        return execute_batch(
            tx, *(call._replace(name=by) if "claim" in call.name else call for call in calls)
        )

    def go_on(tx: Connection) -> StartedRuns:
        one = replace(claim_settings, bundle_limits=replace(claim_settings.bundle_limits, tasks=1))
        return claim_next_for_slot(
            tx, pool, agent="host-0", bundle=uuid4(), claim_settings=one, lease=LIVENESS
        )

    undone = Undone(deployment.dispatcher.engine)
    claimed_ids: list[Sequence[UUID]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("overnight_server.gate.claim.execute_batch", reworded)
        for pool in (POOL, GPU_POOL):
            taken = claim(undone, pool, holder="nobody", claim_settings=claim_settings, limit=1)
            claimed_ids.append([claimed.claim.task_id for claimed in taken.claims])
            claimed_ids.append([run.claim.task_id for run in undone.atomically(go_on).runs])
    event(f"{sum(map(len, claimed_ids))} firsts")
    return claimed_ids


def _describe(explanations: dict[TaskId, Explanation], wrong: set[UUID]) -> str:
    return "\n".join(f"{task}: {view}" for task, view in explanations.items() if task in wrong)


def _check_words(view: Explanation) -> None:
    assert view.starts_next == (view.state in WAITING and not view.reasons)
    assert all(reason.message and reason.details for reason in view.reasons)
    codes = [reason.code for reason in view.reasons]
    assert "behind" not in codes or codes == ["behind"]
    for reason in view.reasons:
        event(f"{reason.code} {reason.details.get('for', '')}")
    event("starts next" if view.starts_next else view.state)


def _build(
    deployment: Deployment, crowd: list[Person], place: Place, claim_settings: ClaimSettings
) -> dict[TaskId, UserId]:
    """A deployment at a late hour: some run since the evening, some came only now."""
    deployment.run(DELETE_ALL)
    deployment.set_clock(EVENING)
    deployment.run(f"INSERT INTO type_durations (type, seconds) VALUES ('{QUICK}', 0.1)")
    for number, worker in enumerate(place.workers):
        deployment.agent(
            worker.slots,
            agent_id=f"host-{number}",
            pool=worker.pool,
            capabilities=worker.capabilities,
            types=worker.types,
        )
        deployment.run(
            "UPDATE agents SET budget_remaining_usd = :usd WHERE id = :id",
            usd=worker.usd,
            id=f"host-{number}",
        )
    users = [_move_in(deployment, person) for person in crowd]
    owners: dict[TaskId, UserId] = {}
    for user, person in zip(users, crowd, strict=True):
        owners |= _submit(deployment, user, [job for job in person.jobs if not job.late])
    for pool in (POOL, GPU_POOL) if place.busy else ():
        claim(
            deployment.dispatcher,
            pool,
            holder="host-0",
            claim_settings=claim_settings,
            limit=place.busy,
        )
    deployment.set_clock(LATER)
    for user, person in zip(users, crowd, strict=True):
        owners |= _submit(deployment, user, [job for job in person.jobs if job.late])
        deployment.run(
            "UPDATE dags SET budget_ceiling_usd = :usd WHERE user_id = :id",
            usd=person.graph_usd,
            id=user,
        )
        if person.paused:
            pause(deployment.app, PauseSubject(user_id=user), actor="human:operator")
    _change_workers(deployment, place)
    return owners


def _move_in(deployment: Deployment, person: Person) -> UserId:
    user = deployment.user(
        person.plan,
        max_concurrent_agents=person.at_once,
        max_task_duration_minutes=90,
        monthly_agent_hours_limit=person.hours,
        night_budget_usd=person.night_usd,
    )
    if person.window is not None:
        set_window(deployment.app, user, person.window)
    return user


def _submit(deployment: Deployment, user: UserId, jobs: Sequence[Job]) -> dict[TaskId, UserId]:
    edges = [Edge(place - 1, place) for place, job in enumerate(jobs) if job.after and place > 0]
    made = submit_graph(deployment.app, user, [job.new() for job in jobs], LOOSE, edges=edges)
    for job, item in zip(jobs, made, strict=True):
        if job.state == "retrying" and not job.late:
            deployment.run(
                "UPDATE tasks SET state = 'claimed', token = gen_random_uuid(), claimed_by = 'x',"
                " pool = 'x', claimed_at = clock(), expires_at = clock(), reserved_seconds = 1,"
                " epoch = epoch + 1 WHERE id = :id AND state = 'ready'",
                id=item.task_id,
            )
            deployment.run(
                "UPDATE tasks SET state = 'running' WHERE id = :id AND state = 'claimed'",
                id=item.task_id,
            )
            deployment.run(
                "UPDATE tasks SET state = 'retrying', token = NULL, claimed_by = NULL, pool = NULL,"
                " claimed_at = NULL, expires_at = NULL, reserved_seconds = NULL,"
                " retry_at = clock() + interval '10 minutes' WHERE id = :id AND state = 'running'",
                id=item.task_id,
            )
        elif job.state == "cancelled":
            deployment.run(
                "UPDATE tasks SET state = 'cancelled', finished_at = clock()"
                " WHERE id = :id AND state = 'ready'",
                id=item.task_id,
            )
    return {submitted.task_id: user for submitted in made}


def _change_workers(deployment: Deployment, place: Place) -> None:
    silent = [f"host-{n}" for n, worker in enumerate(place.workers) if worker.status == "silent"]
    deployment.run(
        "UPDATE agents SET last_heartbeat_at = clock() WHERE id <> ALL (:ids)", ids=silent
    )
    for status in ("draining", "offline"):
        ids = [f"host-{n}" for n, worker in enumerate(place.workers) if worker.status == status]
        deployment.run("UPDATE agents SET status = :s WHERE id = ANY (:ids)", s=status, ids=ids)
    pool_names = {row["name"] for row in deployment.rows("SELECT name FROM pools")}
    if place.paused == "all":
        pause(deployment.app, EVERYTHING, actor="human:operator")
    elif place.paused in pool_names:
        pause(deployment.app, PauseSubject(pool=place.paused), actor="human:operator")
