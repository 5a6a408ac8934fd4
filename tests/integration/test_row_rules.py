"""Check constraints of tasks and lanes: each refuses wrong rows and is named in the error."""

import re
from uuid import uuid4

import pytest
from sqlalchemy.exc import IntegrityError

from overnight_server.domain.budgets import Budget
from overnight_server.store.schema_fingerprint import VERSIONS
from tests.support.deployment import Deployment

RULES = re.compile(r"THEN '((?:tasks|lanes)_\w+)'")
BREAKING_TASKS = {
    "tasks_state_known": "state = 'failed'",
    "tasks_claim_exactly_while_active": "token = id",
    "tasks_bundle_and_money_only_while_active": "bundle = id",
    "tasks_finished_exactly_when_final": "finished_at = clock()",
    "tasks_retry_at_while_retrying": "retry_at = clock()",
    "tasks_unmet_not_negative": "unmet = -1",
    "tasks_blocked_until_met": "unmet = 1",
    "tasks_awaits_budget_while_pending": "awaits_budget = 'task'",
    "tasks_attempts_in_budget": "attempts = max_attempts + 1",
    "tasks_priority_in_range": "priority = 101",
    "tasks_timeout_positive": "timeout_seconds = 0",
    "tasks_locks_or_null": "locks = '{}'",
    "tasks_taken_over_completed": "copied_from = id",
    "tasks_role_known": "role = 'king'",
    "tasks_spawned_under_a_key": "spawn_key = 'one'",
}
BREAKING_LANES = {
    "lanes_active_not_negative": "active = -1",
    "lanes_ready_not_negative": "ready = -1, waiting = 0",
    "lanes_waiting_covers_ready": "waiting = ready - 1",
    "lanes_reserved_not_negative": "reserved_seconds = -1",
}


def test_every_check_constraint_has_a_test_case() -> None:
    rules = {rule for file in VERSIONS.rglob("*.sql") for rule in RULES.findall(file.read_text())}

    assert rules == {*BREAKING_TASKS, *BREAKING_LANES}


@pytest.mark.parametrize("rule", BREAKING_TASKS)
def test_a_task_that_breaks_a_rule_is_refused(deployment: Deployment, rule: str) -> None:
    task = deployment.task(deployment.user())
    before = deployment.row(task)

    with pytest.raises(IntegrityError, match=rule) as refused:
        deployment.run(f"UPDATE tasks SET {BREAKING_TASKS[rule]} WHERE id = :id", id=task)

    assert getattr(refused.value.orig, "pgcode", None) == "23514"
    assert deployment.row(task) == before


@pytest.mark.parametrize("rule", BREAKING_LANES)
def test_a_lane_that_breaks_a_rule_is_refused(deployment: Deployment, rule: str) -> None:
    user = deployment.user()
    deployment.task(user)
    before = deployment.lane(user)

    with pytest.raises(IntegrityError, match=rule):
        deployment.run(f"UPDATE lanes SET {BREAKING_LANES[rule]} WHERE user_id = :id", id=user)

    assert deployment.lane(user) == before


def test_an_inserted_task_is_checked_by_the_same_rules(deployment: Deployment) -> None:
    user = deployment.user()

    with pytest.raises(IntegrityError, match="tasks_retry_at_while_retrying"):
        deployment.run(
            "INSERT INTO tasks (id, user_id, dag_id, type, title, created_by, state, sort_key)"
            " VALUES (:id, :id, :id, 'echo', 'a task', 'human:local', 'retrying', 1)",
            id=user,
        )


def test_a_task_needs_its_user(deployment: Deployment) -> None:
    existing, stranger = deployment.user(), uuid4()

    with pytest.raises(IntegrityError, match="no such user"):
        deployment.run(
            "INSERT INTO tasks (id, user_id, dag_id, type, title, created_by, state, sort_key)"
            " SELECT id, id, id, 'echo', 'a task', 'human:local', 'ready', 1"
            "   FROM unnest(CAST(:ids AS uuid[])) id",
            ids=[existing, stranger],
        )

    assert deployment.lane(existing)["waiting"] == 0


def test_a_task_can_wait_only_for_an_existing_budget(deployment: Deployment) -> None:
    blocked = deployment.task(deployment.user())
    moved = "UPDATE tasks SET state = 'pending', awaits_budget = :budget WHERE id = :id"

    with pytest.raises(IntegrityError, match="tasks_awaits_budget_while_pending"):
        deployment.run(moved, id=blocked, budget="pocket")

    for budget in Budget:
        deployment.run(moved, id=blocked, budget=budget)
        deployment.run("UPDATE tasks SET state = 'ready' WHERE id = :id", id=blocked)


def test_values_written_to_derived_lane_columns_are_ignored(deployment: Deployment) -> None:
    user = deployment.user()

    deployment.run(
        "UPDATE lanes SET eligible = true, due_at = 'epoch' WHERE user_id = :id", id=user
    )

    lane = deployment.lane(user)
    assert not lane["eligible"]
    assert lane["due_at"] == lane["resets_at"]


def test_an_update_without_a_state_change_is_not_a_move(deployment: Deployment) -> None:
    deployment.agent()
    run = deployment.running(deployment.user())
    task = run.claim.task_id
    assert deployment.row(task)["moved_from"] == "claimed"

    deployment.run("UPDATE tasks SET progress = '{}' WHERE id = :id", id=task)

    assert deployment.row(task)["moved_from"] is None
    moves = deployment.rows("SELECT to_state FROM events WHERE task_id = :id ORDER BY seq", id=task)
    assert [move["to_state"] for move in moves] == ["ready", "claimed", "running"]
