"""The locks' services by the names of their design: manager, cleanup and controller."""

import os
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from overnight.errors import TaskNotFound, UserNotFound
from overnight.models.enums import PlanTier
from overnight_server.domain.ids import parse_task, show_task
from overnight_server.domain.results import Returned
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.services import ConductorLockCleanup, PerUserQueueManager, QueueControllerV2
from overnight_server.settings import Settings, load
from overnight_server.store.db import Db
from tests.support.deployment import Deployment
from tests.support.invariants import violations
from tests.support.rivals import Rival


def make_settings(**values: str) -> Settings:
    return load({f"OVERNIGHT_{name.upper()}": value for name, value in values.items()})


@pytest.fixture
def settings() -> Settings:
    return make_settings()


@pytest.fixture
def manager(deployment: Deployment, settings: Settings) -> PerUserQueueManager:
    return PerUserQueueManager(deployment.dispatcher, settings)


@pytest.fixture(autouse=True)
def no_violations_at_the_end(deployment: Deployment) -> Iterator[None]:
    yield
    assert violations(deployment.owner) == {}


# -- PerUserQueueManager: acquire and release, contention, stale cleanup, independence -------------


def test_a_lock_is_acquired_and_released(
    deployment: Deployment, manager: PerUserQueueManager
) -> None:
    user = deployment.user(name="alice")
    task = show_task(deployment.task(user, project_id="site"))

    acquired, lock_id = manager.acquire_lock("alice", task, timeout=0)
    [lock] = manager.check("alice")
    assert lock_id is not None
    released = manager.release_lock("alice", lock_id, Returned())

    assert acquired
    assert (lock.lock_id, lock.task_id, lock.key) == (lock_id, task, "project:site")
    assert lock.acquired_by_pid == os.getpid()
    assert lock.expires_at - lock.acquired_at >= timedelta(hours=1)
    assert released
    assert manager.list_locks() == []
    assert deployment.state(parse_task(task)) == "completed"
    assert manager.release_lock("alice", lock_id) is False


def test_a_lock_released_without_a_result_releases_the_task(
    deployment: Deployment, manager: PerUserQueueManager
) -> None:
    task_id = deployment.task(deployment.user(name="alice"), project_id="site")
    _, lock_id = manager.acquire_lock("alice", show_task(task_id), timeout=0)
    assert lock_id is not None

    manager.release_lock("alice", lock_id)

    assert deployment.state(task_id) == "ready"
    assert deployment.row(task_id)["attempts"] == 0


def test_a_second_task_of_the_lock_waits_for_the_first(
    deployment: Deployment,
    manager: PerUserQueueManager,
    connect: Callable[..., Db],
    settings: Settings,
) -> None:
    user = deployment.user(name="alice")
    first, second = (show_task(deployment.task(user, project_id="site")) for _ in range(2))
    _, lock_id = manager.acquire_lock("alice", first, timeout=0)
    assert lock_id is not None
    assert manager.acquire_lock("alice", second, timeout=0) == (False, None)

    def wait(db: Db) -> tuple[bool, str | None]:
        return PerUserQueueManager(db, settings).acquire_lock("alice", second, timeout=20)

    waiting = Rival(connect, "second", wait)
    waiting.start()
    manager.release_lock("alice", lock_id, Returned())

    acquired, other = waiting.answer()
    assert acquired
    assert other is not None
    assert other.startswith(f"{second}_")


def test_one_of_many_concurrent_callers_gets_the_lock(
    deployment: Deployment, connect: Callable[..., Db], settings: Settings
) -> None:
    user = deployment.user(name="alice")
    tasks = [show_task(deployment.task(user, project_id="site")) for _ in range(6)]

    def grab(db: Db, task: str) -> bool:
        return PerUserQueueManager(db, settings).acquire_lock("alice", task, timeout=0)[0]

    rivals = [Rival(connect, f"rival-{number}", grab, task) for number, task in enumerate(tasks)]
    for rival in rivals:
        rival.start()

    assert [rival.answer() for rival in rivals].count(True) == 1


def test_locks_of_different_users_do_not_conflict(
    deployment: Deployment, manager: PerUserQueueManager
) -> None:
    names = ("alice", "bob", "carol")
    tasks = {
        name: show_task(deployment.task(deployment.user(name=name), project_id="site"))
        for name in names
    }

    acquired = [manager.acquire_lock(name, task, timeout=0)[0] for name, task in tasks.items()]

    assert acquired == [True, True, True]
    assert {lock.user for lock in manager.list_locks()} == set(names)
    with pytest.raises(TaskNotFound):
        manager.acquire_lock("alice", tasks["bob"], timeout=0)
    with pytest.raises(UserNotFound):
        manager.acquire_lock("dave", tasks["bob"], timeout=0)


def test_a_lock_that_is_not_renewed_is_cleaned_up(
    deployment: Deployment, manager: PerUserQueueManager, settings: Settings
) -> None:
    user = deployment.user(name="alice")
    kept, stale = (show_task(deployment.task(user, project_id=name)) for name in "ab")
    _, kept_id = manager.acquire_lock("alice", kept, timeout=0)
    _, stale_id = manager.acquire_lock("alice", stale, timeout=0)
    assert kept_id is not None
    assert stale_id is not None
    deployment.move_clock(timedelta(minutes=50))
    assert manager.renew_lock(kept_id) is True
    early = manager.cleanup_all_stale_locks()
    deployment.move_clock(timedelta(minutes=20))

    cleaned = manager.cleanup_all_stale_locks()

    assert (early, cleaned) == (0, 1)
    assert [lock.task_id for lock in manager.list_locks()] == [kept]
    assert manager.renew_lock(stale_id) is False
    assert manager.release_lock("alice", stale_id) is False
    assert manager.renew_lock("task_unknown_1") is False
    assert settings.per_user_serialization_lock_timeout_seconds == 3600


def test_locks_can_be_cleaned_up_by_hand(
    deployment: Deployment, manager: PerUserQueueManager, settings: Settings
) -> None:
    user = deployment.user(name="alice")
    task = show_task(deployment.task(user, project_id="site"))
    other = show_task(deployment.task(user, project_id="app"))
    manager.acquire_lock("alice", task, timeout=0)
    manager.acquire_lock("alice", other, timeout=0)
    cleanup = ConductorLockCleanup(deployment.dispatcher, settings, actor="human:olga")

    assert list(cleanup.release_task_lock("alice", task)) == ["project:site"]
    assert cleanup.cleanup_stale_task_locks(3600) == 0
    deployment.move_clock(timedelta(hours=2))
    assert cleanup.check_and_cleanup_conductor_locks("site") == 0
    assert cleanup.check_and_cleanup_conductor_locks("app") == 1


# -- QueueControllerV2 -----------------------------------------------------------------------------


def test_the_controller_reports_the_state_of_the_deployment(deployment: Deployment) -> None:
    deployment.agent(slots=4)
    deployment.user(name="alice", plan=PlanTier.TEAM)
    controller = QueueControllerV2(
        deployment.dispatcher, make_settings(worker_liveness="300"), user="alice"
    )

    places = [controller.enqueue("site", f"Fix bug {number}", priority=5) for number in range(3)]
    controller.enqueue("app", "Urgent", priority=1)
    selected = controller.select_next_task(controller.read_capacity())

    assert [place for _, place in places] == [1, 2, 3]
    assert selected is not None
    status = controller.get_queue_status()
    assert status["pending"] == {"high": 0, "normal": 3, "total": 3}
    assert status["active"] == {
        "slots_used": 1,
        "slots_max": 4,
        "by_project": {"app": 1},
        "by_user": {"alice": 1},
    }
    assert status["user_locks"]["active"] == 1
    [detail] = status["user_locks"]["details"]
    assert detail["user"] == "alice"
    assert detail["task_id"] == show_task(selected.claim.task_id)
    assert controller.read_capacity() == {
        "slots": {"max": 4, "used": 1, "available": 3},
        "by_project": {"app": 1},
        "by_user": {"alice": 1},
    }


def test_the_controller_skips_users_whose_lock_is_held(deployment: Deployment) -> None:
    deployment.agent(slots=4)
    for name in ("alice", "bob"):
        deployment.user(name=name, plan=PlanTier.TEAM)
    settings = make_settings(worker_liveness="300", per_user_serialization_scope="user")
    alice, bob = (
        QueueControllerV2(deployment.dispatcher, settings, user=n) for n in ("alice", "bob")
    )
    for _ in range(3):
        alice.enqueue("site", "one of many")
    bob.enqueue("app", "the only one")

    selected = [alice.select_next_task(alice.read_capacity()) for _ in range(3)]

    owners = {item.user_id for item in selected if item}
    assert [item is None for item in selected] == [False, False, True]
    assert len(owners) == 2


def test_without_a_free_slot_the_controller_selects_nothing(deployment: Deployment) -> None:
    deployment.user(name="alice")
    controller = QueueControllerV2(deployment.dispatcher, make_settings(), user="alice")
    controller.enqueue("site", "one")
    capacity = controller.read_capacity()

    assert controller.has_capacity(capacity) is False
    assert controller.select_next_task(capacity) is None


def test_a_task_that_cannot_be_dispatched_is_released(
    deployment: Deployment, redis: EmbeddedRedis
) -> None:
    deployment.agent(slots=4)
    deployment.user(name="alice")
    reached = make_settings(worker_liveness="300", redis_url=redis.url)
    lost = make_settings(worker_liveness="300", redis_url="redis://127.0.0.1:1/0")
    controllers = [
        QueueControllerV2(deployment.dispatcher, item, user="alice") for item in (lost, reached)
    ]
    controllers[0].enqueue("site", "one")

    outcomes = []
    for controller in controllers:
        task = controller.select_next_task(controller.read_capacity())
        assert task is not None
        outcomes.append(controller.dispatch(task))

    assert outcomes == [False, True]
