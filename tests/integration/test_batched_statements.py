"""Batched statements: sent together, executed one after the other."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DataError

from overnight_server.domain.ids import TaskId, UserId
from overnight_server.domain.results import Returned
from overnight_server.insight.tasks import get_task, view_task
from overnight_server.store import lanes
from overnight_server.store.batched_statements import StatementCall, execute_batch
from overnight_server.store.db import DatabaseUnreachable, Db
from tests.support.deployment import Deployment
from tests.support.rivals import Rival, held_lane, queue_up

NOBODY = {"user_id": "nobody", "with_depth": False}


def _lane(db: Db, user: UserId) -> Any:
    read = StatementCall("read_lane", {"user_id": user, "with_depth": False})
    [row] = db.atomically(lambda tx: execute_batch(tx, lanes.lock_call([user]), read))
    return row


def test_the_last_statement_gives_the_answer(deployment: Deployment) -> None:
    user = deployment.user()

    assert _lane(deployment.dispatcher, user).waiting == 0


def test_a_statement_sees_rows_that_the_previous_one_waited_for(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    user = deployment.user()
    reader = Rival(connect, "reader", _lane, user)

    with held_lane(connect, user):
        queue_up(connect, [reader])
        # Not through the lane: the row that the second statement joins to it.
        deployment.run("UPDATE users SET max_pending = 7 WHERE id = :id", id=user)

    assert reader.answer().max_pending == 7


def test_writes_are_rolled_back_with_the_transaction(deployment: Deployment) -> None:
    user = deployment.user()

    def work(tx: Connection) -> None:
        execute_batch(
            tx,
            StatementCall("pause_lane", {"user_id": user, "paused": True}),
            StatementCall("depth"),
        )
        raise KeyError

    with pytest.raises(KeyError):
        deployment.owner.atomically(work)

    assert not deployment.one("SELECT paused FROM lanes WHERE user_id = :id", id=user)["paused"]


def test_an_error_is_raised_as_the_matching_sqlalchemy_error(deployment: Deployment) -> None:
    with pytest.raises(DataError) as caught:
        deployment.dispatcher.atomically(
            lambda tx: execute_batch(tx, StatementCall("read_lane", NOBODY))
        )

    assert caught.value.orig is not None


def test_a_connection_that_broke_is_replaced(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    user = deployment.user()
    db = connect("broken", pool_size=1)
    end = text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'broken'"
    )

    def work(tx: Connection) -> None:
        execute_batch(tx, lanes.lock_call([user]))
        with connect("axe", role=None).engine.begin() as other:
            other.execute(end)
        execute_batch(tx, lanes.lock_call([user]))

    with pytest.raises(DatabaseUnreachable):
        db.atomically(work)

    assert _lane(db, user).waiting == 0


def test_statements_are_prepared_again_when_a_migration_added_a_column(
    deployment: Deployment, app_db: Db
) -> None:
    deployment.agent()
    user = deployment.user()

    def work() -> TaskId:
        """Pass through statements that return whole rows, on two of the ways to send them."""
        assert deployment.settle(deployment.running(user), Returned("done"))
        task_id = deployment.task(user)
        assert get_task(app_db, user, task_id).title == "a task"
        return task_id

    task_id = work()
    for table in ("tasks", "lanes", "attempts", "agents", "users", "pools"):
        deployment.run(f"ALTER TABLE {table} ADD COLUMN added_later text DEFAULT 'new'")
    work()

    with app_db.reserve_connection() as reserved:
        deployment.run("ALTER TABLE tasks ADD COLUMN added_last text")
        [row] = reserved.send(reserved.pack(view_task(user, task_id)))
        assert row.title == "a task"
