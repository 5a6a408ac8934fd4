"""Counters compared with the rows they count: true under load, and put right if they ever drift."""

import logging
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from uuid import uuid4

import pytest
from sqlalchemy import text

from overnight.errors import TaskAlreadyCompleted
from overnight.models.enums import PlanTier
from overnight_server.control.cancel import cancel
from overnight_server.control.users import change_plan
from overnight_server.domain.ids import UserId
from overnight_server.domain.plans import PlanLimits
from overnight_server.domain.results import Died, Interrupted, Lost, Raised, Returned
from overnight_server.domain.retry import RetryRules, Strategy
from overnight_server.gate.claim import claim
from overnight_server.intake.new_graph import Edge, NewTask
from overnight_server.intake.submit import submit_graph
from overnight_server.maintenance.audit import PassBounds, audit, audit_all
from overnight_server.maintenance.promote import promote
from overnight_server.outcome.presence import WorkerDescription, join
from overnight_server.outcome.settle import release, settle
from overnight_server.outcome.start import start
from overnight_server.store.db import Db
from tests.support.deployment import AGENT, CLAIM_SETTINGS, LEASE, LOOSE, POOL, Deployment
from tests.support.rivals import Rival


@pytest.mark.parametrize(
    "drift",
    [
        "active = active + 1",
        "active = active - 1",
        "ready = ready - 1",
        "waiting = waiting + 5",
        "reserved_seconds = reserved_seconds + 60",
        "used_seconds = used_seconds + 1",
    ],
)
def test_a_lane_with_wrong_counters_is_repaired_and_reported(
    deployment: Deployment, drift: str, caplog: pytest.LogCaptureFixture
) -> None:
    user, bystander = _busy_user(deployment), _busy_user(deployment)
    before = deployment.lane(user)
    deployment.run(f"UPDATE lanes SET {drift} WHERE user_id = :id", id=user)

    with caplog.at_level(logging.ERROR):
        repaired = audit(deployment.dispatcher)

    assert repaired == 1
    assert deployment.lane(user) == before
    assert "audit_finding rule=lane_counters" in caplog.text
    assert "repaired=true" in caplog.text
    assert str(user) in caplog.text
    assert str(bystander) not in caplog.text


def test_lanes_with_correct_counters_are_not_reported(deployment: Deployment) -> None:
    user = _busy_user(deployment)
    before = deployment.lane(user)

    assert audit(deployment.dispatcher) == 0
    assert deployment.lane(user) == before


def test_a_change_in_progress_is_not_reported_as_drift(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    user = _busy_user(deployment)
    with connect("half-way").engine.begin() as tx:
        tx.execute(
            text(
                "UPDATE tasks SET state = 'cancelled', finished_at = clock() WHERE state = 'ready'"
            )
        )

        assert audit(deployment.dispatcher) == 0

    assert audit(deployment.dispatcher) == 0
    assert deployment.lane(user)["ready"] == 0


def test_a_skipped_lane_with_wrong_counters_is_repaired(deployment: Deployment) -> None:
    user = _busy_user(deployment)
    deployment.run("UPDATE lanes SET skipped_by_pools = '{default}', ready = 0")

    audit(deployment.dispatcher)

    assert deployment.lane(user)["skipped_by_pools"] == []


def test_a_pass_checks_a_part_of_the_lanes_and_the_next_one_continues(
    deployment: Deployment,
) -> None:
    users = sorted(deployment.user() for _ in range(3))
    deployment.run("UPDATE lanes SET waiting = 5")

    def checked() -> list[UserId]:
        return [user for user in users if deployment.lane(user)["waiting"] == 0]

    for count in (1, 2, 3):
        assert audit(deployment.dispatcher, PassBounds(0, rows=1)) == 1
        assert checked() == users[:count]
    assert audit(deployment.dispatcher, PassBounds(0, rows=1)) == 0

    deployment.run("UPDATE lanes SET waiting = 5")
    assert audit(deployment.dispatcher, PassBounds(0, rows=1)) == 1
    assert checked() == users[:1]


def test_a_full_audit_checks_all_lanes_wherever_the_last_pass_stopped(
    deployment: Deployment,
) -> None:
    for _ in range(3):
        deployment.user()
    audit(deployment.dispatcher, PassBounds(0, rows=1))
    deployment.run("UPDATE lanes SET waiting = 5")

    assert audit_all(deployment.dispatcher) == 3


def test_the_depth_of_the_queue_outlives_the_connections_that_counted_it(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    user = deployment.user()
    producer = connect("producer")
    submit_graph(producer, user, [NewTask("t", "echo")] * 3, LOOSE, title="three")
    producer.close()
    deployment.task(user)

    assert deployment.one("SELECT total_depth() AS n")["n"] == 4
    audit(deployment.dispatcher)

    backends = {row["backend"] for row in deployment.rows("SELECT backend FROM depth_counters")}
    assert 0 in backends
    assert len(backends) <= 2
    assert deployment.one("SELECT total_depth() AS n")["n"] == 4


def test_a_wrong_depth_of_the_queue_is_repaired_and_reported(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    _busy_user(deployment)
    deployment.run("UPDATE depth_counters SET waiting = waiting + 7")
    wrong = deployment.one("SELECT total_depth() AS n")["n"] - 1

    with caplog.at_level(logging.ERROR):
        audit(deployment.dispatcher)

    assert "audit_finding rule=queue_depth" in caplog.text
    [finding] = deployment.rows("SELECT * FROM audit_findings WHERE check_name = 'queue_depth'")
    assert (finding["detail"], finding["status"]) == ({"correction": -wrong}, "repaired")
    assert deployment.rows(WRONG_DEPTH) == []


def test_submits_of_two_users_do_not_wait_for_each_other(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    one, other = deployment.user(), deployment.user()
    insert = text(
        "INSERT INTO tasks (id, user_id, dag_id, type, title, created_by, state, sort_key)"
        " VALUES (:id, :user, :id, 'echo', 't', 'test', 'ready', 0)"
    )
    with connect("slow").engine.begin() as tx:
        tx.execute(insert, {"id": uuid4(), "user": one})

        deployment.task(other)

        assert deployment.one("SELECT total_depth() AS n")["n"] == 1
    assert deployment.one("SELECT total_depth() AS n")["n"] == 2


def _busy_user(deployment: Deployment) -> UserId:
    """Make a user with a running, a completed and a waiting task, so that every counter is used."""
    deployment.agent()
    user = deployment.user(max_concurrent_agents=1)
    deployment.settle(deployment.running(user), Returned())
    deployment.running(user)
    deployment.task(user)
    return user


ACTS = 12
THREADS = 8
BRIEF = RetryRules(Strategy.IMMEDIATE)
ENDINGS = (
    Returned(cost_usd=0.01),
    Raised("error", "no luck"),
    Interrupted(),
    Died(),
    Lost(),
)
# Rows that only a wrong counter or a lost dependency can leave behind.
UNTRUE_DAGS = """
    SELECT g.id FROM dags g JOIN tasks t ON t.dag_id = g.id GROUP BY g.id
    HAVING g.total <> count(*)
        OR g.open <> count(*) FILTER (WHERE is_active(t.state) OR is_waiting(t.state))
        OR g.completed <> count(*) FILTER (WHERE t.state = 'completed')
        OR g.dead <> count(*) FILTER (WHERE t.state = 'dead_lettered')
"""
UNTRUE_COUNTS = """
    SELECT t.id FROM tasks t
     WHERE t.unmet <> (SELECT count(*) FROM task_edges e
                        WHERE e.child_id = t.id AND e.satisfied_at IS NULL)
        OR t.revision <> (SELECT count(*) FROM events e WHERE e.task_id = t.id)
"""
WRONG_DEPTH = """
    SELECT 1 WHERE total_depth() <> (SELECT count(*) FROM tasks WHERE is_waiting(state))
"""
BILLED_WRONGLY = """
    SELECT a.task_id FROM attempts a
      LEFT JOIN usage_ledger l ON l.task_id = a.task_id AND l.epoch = a.epoch AND l.kind = 'usage'
     WHERE (a.started_at IS NOT NULL AND a.ended_at IS NOT NULL) <> (l.id IS NOT NULL)
"""


def test_eight_threads_of_mixed_acts_cause_no_deadlock_and_no_drift(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    users = [deployment.user(max_concurrent_agents=4) for _ in range(3)]
    deployment.agent(slots=20)
    anybody = partial(connect, role=None)  # has the rights of every role
    crowd = [
        Rival(anybody, f"crowd-{n}", _do_random_acts, users, random.Random(n))
        for n in range(THREADS)
    ]

    for rival in crowd:
        rival.start()
    for rival in crowd:
        rival.answer()

    assert _deadlocks(deployment) == 0
    assert audit_all(deployment.dispatcher) == 0
    assert deployment.rows(WRONG_DEPTH) == []
    assert deployment.rows(UNTRUE_DAGS) == []
    assert deployment.rows(UNTRUE_COUNTS) == []
    assert deployment.rows(BILLED_WRONGLY) == []


def _do_random_acts(db: Db, users: list[UserId], chance: random.Random) -> None:
    """Do random acts one after another."""
    for _ in range(ACTS):
        user = chance.choice(users)
        chance.choice(
            [_submit_some, _submit_some, _serve, _serve, _serve, _cancel_one, _change_plan, _sweep]
        )(db, user, chance)
    # a session publishes its statistics when it ends
    db.close()


def _submit_some(db: Db, user: UserId, chance: random.Random) -> None:
    tasks = [
        NewTask("t", "echo", timeout_seconds=60, max_attempts=2, retry=BRIEF) for _ in range(4)
    ]
    submit_graph(db, user, tasks, LOOSE, edges=[Edge(0, 2), Edge(1, 2), Edge(2, 3)])


def _serve(db: Db, _: UserId, chance: random.Random) -> None:
    taken = claim(db, POOL, holder="d", claim_settings=CLAIM_SETTINGS, limit=6)
    for claimed in taken.claims:
        if chance.random() < 0.1:
            release(db, [claimed], reason="test")
            continue
        run = start(db, claimed.claim, holder=AGENT, lease=LEASE)
        if run is not None:
            settle(db, run, chance.choice(ENDINGS), agent=AGENT)


def _cancel_one(db: Db, user: UserId, chance: random.Random) -> None:
    question = text("SELECT id FROM tasks WHERE user_id = :user ORDER BY random() LIMIT 1")
    with db.engine.begin() as tx:
        task_id = tx.execute(question, {"user": user}).scalar()
    if task_id is not None:
        with suppress(TaskAlreadyCompleted):
            cancel(db, user, task_id, actor="human:me")


def _change_plan(db: Db, user: UserId, chance: random.Random) -> None:
    change_plan(db, user, PlanTier.PRO, limits=PlanLimits(chance.randint(1, 6), 60, None))


def _sweep(db: Db, _: UserId, chance: random.Random) -> None:
    promote(db)
    join(db, WorkerDescription(AGENT, POOL, (), 20))


def _deadlocks(deployment: Deployment) -> int:
    sql = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    return int(deployment.one(sql)["deadlocks"])
