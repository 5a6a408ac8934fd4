"""Urgent sweeps do not wait for the work that users can make long."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from overnight import inbox
from overnight_server.control.keys import issue
from overnight_server.domain.results import Raised
from overnight_server.domain.retry import RetryRules, Strategy
from overnight_server.intake.inbox import BATCH, process_inbox
from overnight_server.maintenance.promote import promote
from overnight_server.settings import load
from overnight_server.store import pass_limit
from overnight_server.store.db import Db
from overnight_worker import sweep_tasks
from overnight_worker.sweep_tasks import SweepRunner
from tests.support.bulk import begin, dead, get_operation, order
from tests.support.deployment import LEASE, Deployment
from tests.support.rivals import held_lane, wait_until_blocked
from tests.support.wait import wait_until

SWEEPER = "sweeper"


@pytest.fixture
def tick(connect: Callable[..., Db]) -> Callable[[str], None]:
    """Run a tick as the maintenance process does."""
    return SweepRunner(connect(SWEEPER), load({})).tick


def test_a_lost_run_is_reaped_while_an_inbox_and_a_bulk_retry_are_busy(
    deployment: Deployment, connect: Callable[..., Db], tick: Callable[[str], None]
) -> None:
    deployment.agent()
    busy, other = deployment.user(), deployment.user()
    retried = [dead(deployment, busy) for _ in range(3)]
    bulk_id = begin(deployment, busy, order("retry", status="dead_lettered"))
    key = issue(deployment.app, busy, name="shop")
    with deployment.owner.engine.begin() as tx:
        for n in range(BATCH):
            inbox.submit(tx, f"order {n}", api_key=key)
    lost = deployment.running(other).claim.task_id
    deployment.move_clock(LEASE + timedelta(seconds=1))

    with held_lane(connect, busy):
        tick("inbox")
        wait_until_blocked(connect("watcher", role=None), SWEEPER)
        tick("bulk")
        tick("reap")

        assert deployment.state(lost) == "retrying"
        assert get_operation(deployment, busy, bulk_id).done == 0
        assert deployment.rows("SELECT 1 FROM inbox WHERE outcome IS NOT NULL") == []

    wait_until(
        lambda: get_operation(deployment, busy, bulk_id).finished_at, what="the bulk retry to end"
    )
    assert [deployment.state(task) for task in retried] == ["ready"] * 3
    assert len(deployment.rows("SELECT 1 FROM inbox WHERE outcome = 'accepted'")) == BATCH


def test_a_tick_of_a_sweep_that_waits_already_is_dropped(
    deployment: Deployment,
    connect: Callable[..., Db],
    tick: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    user = deployment.user()
    key = issue(deployment.app, user, name="shop")
    with deployment.owner.engine.begin() as tx:
        inbox.submit(tx, "one", api_key=key)
    passes: list[str] = []
    run_sweep = sweep_tasks.run_sweep

    def record(db: Db, settings: Any, name: str) -> int | None:
        changed = run_sweep(db, settings, name)
        passes.append(name)
        return changed

    monkeypatch.setattr(sweep_tasks, "run_sweep", record)
    with held_lane(connect, user):
        tick("inbox")
        wait_until_blocked(connect("watcher", role=None), SWEEPER)
        for name in ("bulk", "bulk", "bulk", "triggers"):
            tick(name)

    wait_until(lambda: passes == ["inbox", "bulk", "triggers"], what="each to run once")


def test_a_pass_that_takes_long_is_continued_by_the_next(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pass_limit, "PASS_SECONDS", 0)
    monkeypatch.setattr("overnight_server.maintenance.promote.BATCH", 2)
    deployment.agent()
    user = deployment.user()
    at_once = RetryRules(Strategy.IMMEDIATE)
    for _ in range(3):
        run = deployment.running(user, retry=at_once)
        deployment.settle(run, Raised("error", "no luck"))
    deployment.move_clock(timedelta(seconds=1))
    key = issue(deployment.app, user, name="shop")
    with deployment.owner.engine.begin() as tx:
        for n in range(BATCH + 1):
            inbox.submit(tx, f"order {n}", api_key=key)

    db, settings = deployment.dispatcher, load({})
    assert [promote(db), promote(db)] == [2, 1]
    assert [process_inbox(db, settings), process_inbox(db, settings)] == [BATCH, 1]
