"""The outbox of notifications: each event writes its deliveries in its own transaction, once."""

from datetime import timedelta

import pytest
from sqlalchemy import Connection, text

from overnight_server.control.adjust_hours import adjust_hours
from overnight_server.domain.ids import UserId
from overnight_server.domain.notifications import NotificationKind
from overnight_server.domain.results import Raised, Returned, StoppedByBudget
from overnight_server.domain.retry import RetryRules, Strategy
from overnight_server.maintenance.promote import promote
from overnight_server.maintenance.reap import retire_agents
from overnight_server.outcome.settle import settle_all
from overnight_server.store.db import Db
from overnight_server.store.notifications import record_notification
from tests.support.deployment import AGENT, Deployment
from tests.support.graphs import end, linked
from tests.support.notifications import EVERYTHING, add_channel, outbox


def fail(deployment: Deployment, user: UserId) -> object:
    """Let a task of this user end in a dead letter; return it."""
    run = deployment.running(user, max_attempts=1, title="resize images")
    deployment.settle(run, Raised("error", "no space left"))
    return run.claim.task_id


def test_a_dead_letter_is_told_to_the_subscribed_channels_of_its_owner(
    deployment: Deployment,
) -> None:
    deployment.agent()
    user, other = deployment.user(), deployment.user()
    channels = {add_channel(deployment, user), add_channel(deployment, user, "task.dead_lettered")}
    add_channel(deployment, user, "dag.finished")
    add_channel(deployment, user, removed_at="2026-01-01", secret=None)
    add_channel(deployment, other)

    task = fail(deployment, user)

    rows = outbox(deployment)
    assert {row["channel_id"] for row in rows} == channels
    assert {row["id"] for row in rows} == {rows[0]["id"]}
    assert (rows[0]["user_id"], rows[0]["kind"]) == (user, "task.dead_lettered")
    assert rows[0]["task_id"] == rows[0]["thread"] == task
    assert rows[0]["detail"] == {
        "title": "resize images",
        "type": "echo",
        "reason": "error",
        "error": "no space left",
        "attempts": 1,
        "cost_usd": 0,
    }


def test_nothing_is_written_when_nobody_is_subscribed(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user()
    add_channel(deployment, user, "usage.50")

    fail(deployment, user)

    assert outbox(deployment) == []


def test_an_event_that_is_rolled_back_tells_nobody(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user()
    add_channel(deployment, user)
    run = deployment.running(user, max_attempts=1)

    def then(tx: Connection) -> None:
        assert tx.execute(text("SELECT count(*) FROM notification_deliveries")).scalar_one() == 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        settle_all(deployment.dispatcher, [(run, Raised("error", "no"))], agent=AGENT, then=then)

    assert outbox(deployment) == []


def test_an_event_that_is_recorded_twice_is_told_once(deployment: Deployment, db: Db) -> None:
    user = deployment.user()
    add_channel(deployment, user)

    def record() -> int:
        return db.atomically(
            lambda tx: record_notification(
                tx,
                NotificationKind.SCHEDULE_SKIPPED,
                user_id=user,
                subject="nightly:2026-03-29",
                detail={"title": "nightly", "reason": "skipped_overlap"},
            )
        )

    assert [record(), record()] == [1, 0]
    assert [row["kind"] for row in outbox(deployment)] == ["schedule.skipped"]


def test_a_poison_task_is_told_once_also_to_those_who_asked_for_dead_letters(
    deployment: Deployment,
) -> None:
    deployment.agent()
    user = deployment.user()
    both = add_channel(deployment, user, "task.poisoned", "task.dead_lettered")
    letters = add_channel(deployment, user, "task.dead_lettered")
    task = deployment.task(user)

    deployment.run(
        "INSERT INTO dead_letters"
        " (task_id, dag_id, user_id, fingerprint, failure_history, total_cost_usd, poison_pill)"
        " SELECT id, dag_id, user_id, 'boom', '[]', 0, true FROM tasks WHERE id = :id",
        id=task,
    )

    told = {(row["kind"], row["channel_id"]) for row in outbox(deployment)}
    assert told == {
        ("task.poisoned", both),
        ("task.poisoned", letters),
    }


def test_a_graph_that_finishes_is_told_with_its_counts(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user()
    add_channel(deployment, user, "dag.finished")
    first, second = linked(deployment, user, 2)

    end(deployment, first, Returned("a"))
    assert outbox(deployment) == []
    end(deployment, second, Returned("b"))

    [row] = outbox(deployment)
    assert (row["task_id"], row["thread"]) == (None, row["dag_id"])
    assert {key: row["detail"][key] for key in ("title", "status", "total", "completed")} == {
        "title": "a graph",
        "status": "completed",
        "total": 2,
        "completed": 2,
    }


def test_usage_of_hours_is_told_at_50_80_and_100_percent(deployment: Deployment) -> None:
    user = deployment.user(monthly_agent_hours_limit=10)
    add_channel(deployment, user)

    for hours in (4, 2, 3, 2):
        adjust_hours(deployment.app, user, hours, note="test")

    assert [row["kind"] for row in outbox(deployment)] == ["usage.50", "usage.80", "usage.100"]


def test_a_task_that_keeps_failing_is_told(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user()
    add_channel(deployment, user, "task.escalated")
    rules = RetryRules(escalate_after=1, strategy=Strategy.IMMEDIATE, jitter=False)
    run = deployment.running(user, retry=rules, max_attempts=5)

    deployment.settle(run, Raised("error", "no luck"))
    promote(deployment.dispatcher)

    [row] = outbox(deployment)
    assert (row["kind"], row["task_id"]) == ("task.escalated", run.claim.task_id)


def test_a_task_that_its_budget_stops_needs_its_owner(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user()
    add_channel(deployment, user, "needs_you.budget")
    run = deployment.running(user, max_cost_usd=1.0)

    deployment.settle(run, StoppedByBudget(cost_usd=1.5))

    [row] = outbox(deployment)
    assert (row["task_id"], row["detail"]["budget"]) == (run.claim.task_id, "task")


def test_tasks_that_wait_for_one_budget_are_told_as_one_event(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user()
    add_channel(deployment, user, "needs_you.budget")
    linked(deployment, user, 3)
    deployment.run("UPDATE dags SET budget_ceiling_usd = 1")
    runs = [deployment.start(claimed) for claimed in deployment.claim().claims]

    for run in runs:
        assert run is not None
        deployment.settle(run, StoppedByBudget(cost_usd=2))

    [row] = outbox(deployment)
    assert row["detail"]["budget"] == "dag"


def test_a_lost_worker_is_told_to_admins_only(deployment: Deployment) -> None:
    admin, former = deployment.user(is_admin=True), deployment.user(is_admin=True)
    told = add_channel(deployment, admin)
    add_channel(deployment, former)
    add_channel(deployment, deployment.user())
    deployment.run("UPDATE users SET is_admin = false WHERE id = :id", id=former)
    deployment.agent()
    deployment.run("UPDATE agents SET last_heartbeat_at = clock() - interval '1 hour'")

    retire_agents(deployment.dispatcher, silence=timedelta(minutes=1))

    [row] = outbox(deployment)
    assert (row["user_id"], row["channel_id"]) == (admin, told)
    assert row["detail"]["title"] == AGENT


def test_every_kind_can_be_subscribed_to() -> None:
    assert sorted(EVERYTHING) == sorted(NotificationKind)
