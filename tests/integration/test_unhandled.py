"""A task whose type no worker handles ends after the time that the operator set, and not before."""

from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest

from overnight_server.control.cancel import cancel
from overnight_server.domain.ids import UserId, show_task
from overnight_server.insight.dead_letters import get_dead_letter
from overnight_server.maintenance import no_handler
from overnight_server.maintenance.sweeps import run_sweep
from overnight_server.settings import Settings, load
from overnight_server.store.db import Db
from tests.support.deployment import Deployment
from tests.support.graphs import assert_invariants
from tests.support.rivals import Rival, meet_at_lane

HOUR = 3600.0
STEP = timedelta(minutes=29)
SETTINGS = {
    "OVERNIGHT_NO_HANDLER_TIMEOUT": str(HOUR),
    "OVERNIGHT_WORKER_LIVENESS": "300",
}


@pytest.fixture
def settings() -> Settings:
    return load(SETTINGS)


@pytest.fixture
def user(deployment: Deployment) -> UserId:
    return deployment.user()


def sweep(db: Db, settings: Settings) -> int:
    return run_sweep(db, settings, "unhandled", force=True) or 0


def pass_time(
    deployment: Deployment, settings: Settings, steps: int, types: Sequence[str] = ("other",)
) -> int:
    """Let time pass with a sweep and a live worker in every step; return how many tasks ended."""
    ended = 0
    for _ in range(steps):
        deployment.move_clock(STEP)
        deployment.agent(types=types)
        ended += sweep(deployment.dispatcher, settings)
    return ended


def test_a_task_that_nobody_handles_is_dead_lettered_after_the_timeout(
    deployment: Deployment, user: UserId, settings: Settings
) -> None:
    misspelled = deployment.task(user, type="ehco")
    handled = deployment.task(user, type="other")

    early = pass_time(deployment, settings, 3)
    late = pass_time(deployment, settings, 1)

    assert (early, late) == (0, 1)
    task = deployment.row(misspelled)
    assert (task["state"], task["failure_reason"]) == ("dead_lettered", "no_handler")
    assert task["error"] == "no worker handled the type ehco for 01:00:00"
    assert (task["attempts"], deployment.state(handled)) == (0, "ready")
    assert get_dead_letter(deployment.app, misspelled).task_id == show_task(misspelled)
    assert sweep(deployment.dispatcher, settings) == 0
    assert_invariants(deployment)


def test_without_the_setting_such_a_task_waits(deployment: Deployment, user: UserId) -> None:
    task_id = deployment.task(user, type="ehco")

    pass_time(deployment, load({}), 10)

    assert deployment.state(task_id) == "ready"


def test_time_in_which_a_worker_had_the_handler_does_not_count(
    deployment: Deployment, user: UserId, settings: Settings
) -> None:
    task_id = deployment.task(user, type="ehco")
    pass_time(deployment, settings, 5, ["ehco"])

    early = pass_time(deployment, settings, 2)
    late = pass_time(deployment, settings, 1)

    assert (early, late) == (0, 1)
    assert deployment.state(task_id) == "dead_lettered"


def test_workers_that_restarted_without_handlers_end_tasks_only_after_the_timeout(
    deployment: Deployment, user: UserId, settings: Settings
) -> None:
    deployment.task(user, type="other")

    assert pass_time(deployment, settings, 3, []) == 0
    assert pass_time(deployment, settings, 1, []) == 1


def test_an_outage_of_all_workers_ends_nothing(
    deployment: Deployment, user: UserId, settings: Settings
) -> None:
    task_id = deployment.task(user, type="ehco")
    for _ in range(10):
        deployment.move_clock(STEP)
        sweep(deployment.dispatcher, settings)

    assert pass_time(deployment, settings, 1) == 0
    assert deployment.state(task_id) == "ready"


def test_an_outage_of_the_sweep_ends_nothing(
    deployment: Deployment, user: UserId, settings: Settings
) -> None:
    task_id = deployment.task(user, type="ehco")
    pass_time(deployment, settings, 1)
    deployment.move_clock(timedelta(days=2))

    assert pass_time(deployment, settings, 2) == 0
    assert deployment.state(task_id) == "ready"


def test_a_pass_continues_where_the_last_one_stopped(
    deployment: Deployment, user: UserId, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(no_handler, "PAGE", 2)
    monkeypatch.setattr("overnight_server.store.pass_limit.PASS_SECONDS", 0.0)
    users = [user, deployment.user()]
    for number in range(7):
        deployment.task(users[number % 2], type="other")
    last = deployment.task(max(users), type="ehco", priority=100)
    pass_time(deployment, settings, 3)
    deployment.move_clock(STEP)
    deployment.agent(types=["other"])

    passes = [read_one_page(deployment, settings) for _ in range(5)]

    assert passes == [0, 0, 0, 1, 0]
    assert deployment.state(last) == "dead_lettered"


def read_one_page(deployment: Deployment, settings: Settings) -> int:
    return no_handler.dead_letter_unhandled(
        deployment.dispatcher,
        timeout=timedelta(seconds=HOUR),
        liveness=timedelta(seconds=settings.worker_liveness),
    )


def test_a_cancel_that_comes_first_wins(
    deployment: Deployment, user: UserId, settings: Settings, connect: Callable[..., Db]
) -> None:
    task_id = deployment.task(user, type="ehco")
    pass_time(deployment, settings, 3)
    deployment.move_clock(STEP)
    deployment.agent(types=["other"])

    answers = meet_at_lane(
        connect,
        user,
        Rival(connect, "canceller", cancel, user, task_id, actor="human:test"),
        Rival(connect, "sweep", sweep, settings),
    )

    assert answers[1] == 0
    assert deployment.state(task_id) == "cancelled"
    assert_invariants(deployment)
