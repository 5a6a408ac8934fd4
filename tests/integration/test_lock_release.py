"""Locks seen, taken by force and taken back when stale."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from overnight.errors import LockNotHeld, TaskNotFound
from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import show_task
from overnight_server.domain.results import Returned
from overnight_server.insight.locks import list_lock_waits, list_locks
from overnight_server.maintenance.locks import LeaseTimes, cleanup_stale, release_lock
from overnight_server.outcome.heartbeat import HeartbeatAnswer, heartbeat
from overnight_server.store.db import Db
from tests.support.deployment import AGENT, CLAIM_TTL, LEASE, Deployment
from tests.support.invariants import violations
from tests.support.rivals import Rival, meet_at_lane, meet_at_task

OPERATOR = "human:olga"
CLOCKS = LeaseTimes(CLAIM_TTL, LEASE)


class Killed(list[Claim]):
    """Runs that were to be killed."""

    def __call__(self, claim: Claim) -> None:
        self.append(claim)


def test_a_held_lock_names_its_holder_and_the_waiting_tasks(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user(name="alice")
    run = deployment.running(user, title="first", project_id="site")
    second = deployment.task(user, project_id="site")
    deployment.task(user)
    deployment.task(deployment.user(name="bob"), project_id="site")

    [lock] = list_locks(deployment.app)

    row = deployment.row(run.claim.task_id)
    assert (lock.user, lock.key, lock.title) == ("alice", "project:site", "first")
    assert lock.lock_id == f"{lock.task_id}_{int(row['claimed_at'].timestamp())}"
    assert (lock.acquired_at, lock.expires_at) == (row["claimed_at"], row["expires_at"])
    assert (lock.holder, lock.acquired_by_pid) == (AGENT, 1)
    assert (lock.waiting, lock.waiting_tasks) == (1, [show_task(second)])


def test_a_lock_expires_with_its_lease(deployment: Deployment) -> None:
    deployment.agent()
    run = deployment.running(deployment.user(), project_id="site")
    deployment.move_clock(timedelta(seconds=20))

    assert heartbeat(deployment.dispatcher, run.claim, lease=LEASE) is HeartbeatAnswer.CONTINUE

    [lock] = list_locks(deployment.app)
    assert lock.expires_at - lock.acquired_at >= timedelta(seconds=50)


def test_locks_can_be_filtered_by_user_and_by_project(deployment: Deployment) -> None:
    deployment.agent()
    alice, bob = deployment.user(name="alice"), deployment.user(name="bob")
    deployment.task(alice, project_id="site")
    deployment.task(alice, locks=["project:app"])
    deployment.task(bob, project_id="site", locks=["repo:b"])
    deployment.claim()

    assert {lock.key for lock in list_locks(deployment.app, user_id=bob)} == {"repo:b"}
    by_project = {lock.key for lock in list_locks(deployment.app, project="site")}
    assert by_project == {"project:site", "repo:b"}
    assert [lock.key for lock in list_locks(deployment.app, project="app")] == ["project:app"]


def test_a_released_lock_ends_the_claim_and_spends_no_attempt(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user()
    run = deployment.running(user, locks=["path:src", "repo:a"])
    waiter = deployment.task(user, priority=5, locks=["path:src/a"])
    killed = Killed()

    released = release_lock(
        deployment.dispatcher, user, run.claim.task_id, actor=OPERATOR, kill=killed
    )

    row = deployment.row(run.claim.task_id)
    assert released.keys == ["path:src", "repo:a"]
    assert killed == [run.claim]
    assert (row["state"], row["attempts"]) == ("ready", 0)
    assert heartbeat(deployment.dispatcher, run.claim, lease=LEASE) is HeartbeatAnswer.LOST
    assert deployment.settle(run, Returned()) is False
    assert deployment.lane(user)["used_seconds"] == 0
    assert [claimed.claim.task_id for claimed in deployment.claim().claims] == [waiter]
    events = deployment.rows(
        "SELECT * FROM events WHERE to_state = 'ready' AND from_state = 'running'"
    )
    assert [event["actor"] for event in events] == [OPERATOR]
    assert violations(deployment.owner) == {}


def test_the_lock_of_an_unstarted_claim_can_be_released(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user()
    task_id = deployment.task(user, locks=["a"])
    [claimed] = deployment.claim().claims

    release_lock(deployment.dispatcher, user, task_id, actor=OPERATOR, kill=Killed())

    assert deployment.state(task_id) == "ready"
    assert deployment.start(claimed) is None
    assert violations(deployment.owner) == {}


def test_a_lock_that_is_not_held_cannot_be_released(deployment: Deployment) -> None:
    deployment.agent()
    user, other = deployment.user(), deployment.user()
    waiting = deployment.task(user, locks=["a"], required_capabilities=["nobody has it"])
    unlocked = deployment.running(user)
    held = deployment.running(user, locks=["b"])
    killed = Killed()

    for task_id in (waiting, unlocked.claim.task_id):
        with pytest.raises(LockNotHeld):
            release_lock(deployment.dispatcher, user, task_id, actor=OPERATOR, kill=killed)
    with pytest.raises(TaskNotFound):
        release_lock(deployment.dispatcher, other, held.claim.task_id, actor=OPERATOR, kill=killed)

    assert killed == []
    assert deployment.state(held.claim.task_id) == "running"


def test_a_release_after_the_end_of_the_run_changes_nothing(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    deployment.agent()
    user = deployment.user()
    run = deployment.running(user, locks=["a"])
    killed = Killed()

    def take(db: Db) -> str:
        try:
            release_lock(db, user, run.claim.task_id, actor=OPERATOR, kill=killed)
        except LockNotHeld as refusal:
            return str(refusal.details["state"])
        return "released"

    def settle_as(db: Db) -> bool:
        return Deployment(deployment.owner, db, deployment.app).settle(run, Returned())

    ended, released = meet_at_lane(
        connect, user, Rival(connect, "worker", settle_as), Rival(connect, "operator", take)
    )

    assert (ended, released, killed) == (True, "completed", [])
    assert violations(deployment.owner) == {}


def test_a_stale_lock_is_released_and_a_renewed_one_is_not(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user()
    silent, lively = deployment.running(user, locks=["a"]), deployment.running(user, locks=["b"])
    unlocked = deployment.running(user)
    deployment.move_clock(timedelta(seconds=20))
    heartbeat(deployment.dispatcher, lively.claim, lease=LEASE)
    killed = Killed()

    freed = cleanup_stale(
        deployment.dispatcher,
        max_age=timedelta(seconds=15),
        times=CLOCKS,
        actor=OPERATOR,
        kill=killed,
    )

    assert (freed, killed) == (1, [silent.claim])
    assert deployment.state(silent.claim.task_id) == "ready"
    assert (
        deployment.state(lively.claim.task_id)
        == deployment.state(unlocked.claim.task_id)
        == "running"
    )
    assert deployment.row(silent.claim.task_id)["attempts"] == 0
    assert violations(deployment.owner) == {}


def test_a_lock_whose_lease_expired_is_settled_by_the_reaper(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user()
    run = deployment.running(user, locks=["a"], project_id="site")
    deployment.move_clock(LEASE * 2)
    killed = Killed()

    def clean(project: str) -> int:
        return cleanup_stale(
            deployment.dispatcher,
            max_age=timedelta(hours=1),
            times=CLOCKS,
            actor=OPERATOR,
            kill=killed,
            project=project,
        )

    assert clean("another") == 0
    assert clean("site") == 1
    assert clean("site") == 0
    assert killed == []
    assert deployment.row(run.claim.task_id)["attempts"] == 1
    assert list_locks(deployment.app) == []


def test_a_heartbeat_before_the_cleanup_keeps_the_lock(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    deployment.agent()
    user = deployment.user()
    run = deployment.running(user, locks=["a"])
    deployment.move_clock(timedelta(seconds=20))
    killed = Killed()

    def beat(db: Db) -> HeartbeatAnswer:
        return heartbeat(db, run.claim, lease=LEASE)

    def clean(db: Db) -> int:
        return cleanup_stale(
            db, max_age=timedelta(seconds=15), times=CLOCKS, actor=OPERATOR, kill=killed
        )

    answers = meet_at_task(
        connect,
        run.claim.task_id,
        Rival(connect, "worker", beat),
        Rival(connect, "operator", clean),
    )

    assert answers == [HeartbeatAnswer.CONTINUE, 0]
    assert killed == []
    assert deployment.state(run.claim.task_id) == "running"


def test_recent_waits_for_locks_can_be_read(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user(name="alice")
    run = deployment.running(user, locks=["a"])
    waiter = deployment.task(user, locks=["a"])
    deployment.move_clock(timedelta(minutes=1))
    deployment.settle(run, Returned())

    [wait] = list_lock_waits(deployment.app)

    assert (wait.user, wait.key, wait.waiting) == ("alice", "a", 1)
    assert wait.holder_task_id == show_task(run.claim.task_id)
    assert wait.waiting_task_id == show_task(waiter)
    assert 60 <= wait.waited_seconds < 65
    assert list_lock_waits(deployment.app, user_id=deployment.user()) == []
