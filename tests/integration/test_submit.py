"""Letting work in: caps that hold exactly, keys that answer once, graphs whole or not at all."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from overnight.errors import (
    InvalidRequest,
    MonthlyLimitReached,
    QueueFull,
    TooManyPending,
    UserNotFound,
)
from overnight_server.domain.ids import UserId
from overnight_server.domain.lock_keys import LockScope
from overnight_server.domain.retry import RetryRules, Strategy
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import Edge, NewTask
from overnight_server.intake.submit import Submitted, submit, submit_graph
from overnight_server.settings import load
from overnight_server.store.db import ADMIN, Db
from tests.support.deployment import LOOSE, Deployment
from tests.support.rivals import Rival, held_lane, queue_up

PLAIN = NewTask("a task", "echo")
HOUR = 3600


def test_a_submit_beyond_the_last_free_place_is_refused(deployment: Deployment) -> None:
    user = deployment.user()
    caps = Caps(max_pending_per_user=3)
    for _ in range(3):
        deployment.task(user, caps)

    with pytest.raises(TooManyPending) as refused:
        deployment.task(user, caps)

    assert refused.value.details == {"pending": 3, "limit": 3}
    assert deployment.lane(user)["waiting"] == 3


def test_a_claimed_task_no_longer_counts_as_waiting(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent(slots=1)
    caps = Caps(max_pending_per_user=1)
    deployment.task(user, caps)
    deployment.claim()

    deployment.task(user, caps)

    assert deployment.lane(user)["waiting"] == 1


def test_a_user_may_have_a_cap_of_their_own(deployment: Deployment) -> None:
    user = deployment.user(max_pending=1)
    deployment.task(user)

    with pytest.raises(TooManyPending) as refused:
        deployment.task(user, LOOSE)

    assert refused.value.details["limit"] == 1


def test_eight_submits_at_once_get_only_the_five_places_there_are(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    user = deployment.user()
    rivals = [
        Rival(connect, f"submit-{n}", _try_submit, user, Caps(max_pending_per_user=5))
        for n in range(8)
    ]

    with held_lane(connect, user):
        queue_up(connect, rivals)
    insert_graph = [rival.answer() for rival in rivals]

    assert sum(insert_graph) == 5
    assert deployment.lane(user)["waiting"] == 5
    assert deployment.one("SELECT count(*) AS n FROM tasks")["n"] == 5


def _try_submit(db: Db, user: UserId, caps: Caps) -> bool:
    try:
        submit(db, user, PLAIN, caps)
    except TooManyPending:
        return False
    return True


def test_a_full_deployment_refuses_every_user(deployment: Deployment) -> None:
    caps = Caps(queue_max_size=2)
    deployment.task(deployment.user(), caps)
    deployment.task(deployment.user(), caps)

    with pytest.raises(QueueFull) as refused:
        deployment.task(deployment.user(), caps)

    assert refused.value.details == {"depth": 2, "limit": 2}
    assert deployment.one("SELECT count(*) AS n FROM tasks")["n"] == 2


def test_used_up_hours_refuse_new_tasks_until_the_next_month(deployment: Deployment) -> None:
    user = deployment.user(monthly_agent_hours_limit=2)
    _use(deployment, user, 2 * HOUR)

    with pytest.raises(MonthlyLimitReached) as refused:
        deployment.task(user)

    assert refused.value.details["used_hours"] == 2
    assert refused.value.details["limit_hours"] == 2
    resets_at = datetime.fromisoformat(str(refused.value.details["resets_at"]))
    assert resets_at == deployment.lane(user)["resets_at"]


def test_one_second_left_in_the_month_still_allows_a_submit(deployment: Deployment) -> None:
    user = deployment.user(monthly_agent_hours_limit=2)
    _use(deployment, user, 2 * HOUR - 1)

    deployment.task(user)

    assert deployment.lane(user)["waiting"] == 1


def test_with_the_rule_wait_a_task_is_accepted_but_not_started(deployment: Deployment) -> None:
    user = deployment.user(monthly_agent_hours_limit=2, on_exhausted="hold")
    deployment.agent()
    _use(deployment, user, 2 * HOUR)

    task_id = deployment.task(user, timeout_seconds=60)

    assert deployment.claim().claims == []
    assert deployment.state(task_id) == "ready"


def _use(deployment: Deployment, user: UserId, seconds: int) -> None:
    deployment.run(
        "INSERT INTO usage_ledger (user_id, period_started_at, kind, seconds)"
        " SELECT user_id, cycle_started_at, 'adjustment', :seconds FROM lanes WHERE user_id = :id",
        id=user,
        seconds=seconds,
    )


def test_the_same_key_again_returns_the_first_task(deployment: Deployment) -> None:
    user = deployment.user()
    keyed = replace(PLAIN, idempotency_key="night-1")
    first = submit(deployment.app, user, keyed, LOOSE)

    again = submit(deployment.app, user, replace(keyed, title="another title"), LOOSE)

    assert (first.created, again.created) == (True, False)
    assert (again.task_id, again.dag_id) == (first.task_id, first.dag_id)
    assert deployment.row(first.task_id)["title"] == "a task"


def test_a_repeated_key_returns_its_task_although_the_cap_is_reached(
    deployment: Deployment,
) -> None:
    user = deployment.user()
    keyed = replace(PLAIN, idempotency_key="night-1")
    caps = Caps(max_pending_per_user=1)
    first = submit(deployment.app, user, keyed, caps)

    again = submit(deployment.app, user, keyed, caps)

    assert again.task_id == first.task_id


def test_users_may_use_the_same_key_independently(deployment: Deployment) -> None:
    keyed = replace(PLAIN, idempotency_key="night-1")

    mine = submit(deployment.app, deployment.user(), keyed, LOOSE)
    theirs = submit(deployment.app, deployment.user(), keyed, LOOSE)

    assert theirs.created is True
    assert mine.task_id != theirs.task_id


def test_two_submits_with_one_key_at_once_make_one_task(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    user = deployment.user()
    keyed = replace(PLAIN, idempotency_key="night-1")
    rivals = [Rival(connect, f"submit-{n}", submit, user, keyed, LOOSE) for n in range(2)]

    with held_lane(connect, user):
        queue_up(connect, rivals)
    answers: list[Submitted] = [rival.answer() for rival in rivals]

    assert sorted(submitted.created for submitted in answers) == [False, True]
    assert len({submitted.task_id for submitted in answers}) == 1
    assert deployment.one("SELECT count(*) AS n FROM tasks")["n"] == 1


def test_two_tasks_of_one_request_may_not_share_a_key(deployment: Deployment) -> None:
    user = deployment.user()
    keyed = replace(PLAIN, idempotency_key="night-1")

    with pytest.raises(InvalidRequest, match="share a key"):
        submit_graph(deployment.app, user, [keyed, keyed], LOOSE)

    _assert_empty(deployment, user)


def test_a_graph_submitted_again_returns_the_first(deployment: Deployment) -> None:
    user = deployment.user()
    tasks = [replace(PLAIN, idempotency_key=f"step-{n}") for n in range(3)]
    edges = [Edge(0, 1), Edge(1, 2)]
    first = submit_graph(deployment.app, user, tasks, LOOSE, edges=edges)

    again = submit_graph(deployment.app, user, tasks, LOOSE, edges=edges)

    assert [submitted.task_id for submitted in again] == [submitted.task_id for submitted in first]
    assert {submitted.created for submitted in again} == {False}
    assert deployment.one("SELECT count(*) AS n FROM task_edges")["n"] == 2


def test_a_graph_that_repeats_only_some_keys_is_refused_whole(deployment: Deployment) -> None:
    user = deployment.user()
    repeated, new = (replace(PLAIN, idempotency_key=f"step-{n}") for n in range(2))
    submit(deployment.app, user, repeated, LOOSE)

    with pytest.raises(InvalidRequest, match="idempotency_key"):
        submit_graph(deployment.app, user, [repeated, new], LOOSE, edges=[Edge(0, 1)])

    assert deployment.lane(user)["waiting"] == 1


def test_a_graph_is_inserted_whole_with_its_children_waiting(deployment: Deployment) -> None:
    user = deployment.user()

    root, left, right, last = _diamond(deployment, user)

    states = [deployment.row(submitted.task_id)["state"] for submitted in (root, left, right, last)]
    unmet = [deployment.row(submitted.task_id)["unmet"] for submitted in (root, left, right, last)]
    dag = deployment.one("SELECT * FROM dags")
    assert states == ["ready", "pending", "pending", "pending"]
    assert unmet == [0, 1, 1, 2]
    assert {submitted.dag_id for submitted in (root, left, right, last)} == {dag["id"]}
    assert (dag["total"], dag["open"], dag["finished_at"]) == (4, 4, None)
    lane = deployment.lane(user)
    assert (lane["ready"], lane["waiting"]) == (1, 4)


def _diamond(deployment: Deployment, user: UserId) -> list[Submitted]:
    edges = [Edge(0, 1), Edge(0, 2), Edge(1, 3), Edge(2, 3)]
    return submit_graph(deployment.app, user, [PLAIN] * 4, LOOSE, edges=edges, title="a diamond")


def test_a_graph_with_one_invalid_edge_is_not_inserted(deployment: Deployment) -> None:
    user = deployment.user()

    with pytest.raises(InvalidRequest, match="circular dependency"):
        submit_graph(deployment.app, user, [PLAIN] * 3, LOOSE, edges=[Edge(0, 1), Edge(2, 2)])

    _assert_empty(deployment, user)


def test_a_graph_too_large_for_the_cap_is_not_inserted(deployment: Deployment) -> None:
    user = deployment.user()

    with pytest.raises(TooManyPending):
        submit_graph(deployment.app, user, [PLAIN] * 3, Caps(max_pending_per_user=2))

    _assert_empty(deployment, user)


def _assert_empty(deployment: Deployment, user: UserId) -> None:
    for table in ("dags", "tasks", "task_edges", "events"):
        assert deployment.one(f"SELECT count(*) AS n FROM {table}")["n"] == 0, table
    assert deployment.lane(user)["waiting"] == 0


def test_tasks_without_edges_are_graphs_of_their_own(deployment: Deployment) -> None:
    made = submit_graph(deployment.app, deployment.user(), [PLAIN] * 3, LOOSE)

    assert len({submitted.dag_id for submitted in made}) == 3
    assert deployment.one("SELECT count(*) AS n FROM graphs WHERE total = 1")["n"] == 3


LOCKS: Sequence[tuple[LockScope, dict[str, Any], list[str] | None]] = (
    ("project", {"project_id": "site"}, ["project:site"]),
    ("project", {}, None),
    ("user", {"project_id": "site"}, ["user"]),
    ("user", {}, ["user"]),
    ("none", {"project_id": "site"}, None),
    ("none", {"locks": ["repo:x"]}, ["repo:x"]),
    ("project", {"project_id": "site", "locks": ["path:a/", "path:a/b"]}, ["path:a"]),
    ("user", {"locks": ["repo:x"]}, ["repo:x", "user"]),
)


def test_the_lock_keys_of_a_task_follow_from_the_scope(deployment: Deployment) -> None:
    user = deployment.user()

    made = [deployment.task(user, Caps(lock_scope=scope), **fields) for scope, fields, _ in LOCKS]

    locked = [deployment.row(task_id)["locks"] for task_id in made]
    assert locked == [lock for _, _, lock in LOCKS]


def test_the_caps_come_from_the_settings() -> None:
    settings = load(
        {
            "OVERNIGHT_MAX_PENDING_PER_USER": "77",
            "OVERNIGHT_QUEUE_MAX_SIZE": "88",
            "OVERNIGHT_PER_USER_SERIALIZATION_SCOPE": "user",
        }
    )

    caps = Caps.of(settings)

    assert (caps.max_pending_per_user, caps.queue_max_size, caps.lock_scope) == (77, 88, "user")


def test_without_serialization_nothing_is_locked() -> None:
    settings = load({"OVERNIGHT_PER_USER_SERIALIZATION_ENABLED": "false"})

    assert Caps.of(settings).lock_scope == "none"


def test_the_stored_order_is_priority_then_age(deployment: Deployment) -> None:
    user = deployment.user()
    low, first, second, high, critical = (
        deployment.task(user, priority=priority) for priority in (80, 50, 50, 20, 9)
    )

    order = _ordered(deployment)

    assert order == [critical, high, first, second, low]


def test_a_task_that_does_not_age_falls_behind_one_that_does(deployment: Deployment) -> None:
    user = deployment.user()
    still = deployment.task(user, priority=50, priority_boost_per_minute=0)
    ageing = deployment.task(user, priority=50, priority_boost_per_minute=0.1)
    eager = deployment.task(user, priority=50, priority_boost_per_minute=0.2)

    assert _ordered(deployment) == [eager, ageing, still]


def test_a_task_that_waited_goes_before_a_more_urgent_one_that_did_not(
    deployment: Deployment,
) -> None:
    user = deployment.user()
    old = deployment.task(user, priority=50)
    deployment.move_clock(timedelta(minutes=20))
    fresh = deployment.task(user, priority=49)

    assert _ordered(deployment) == [old, fresh]


def _ordered(deployment: Deployment) -> Sequence[object]:
    return [row["id"] for row in deployment.rows("SELECT id FROM tasks ORDER BY sort_key, id")]


def test_a_run_gets_every_field_of_its_submit(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    policy = RetryRules(Strategy.FIXED, 7.0, max_delay_sec=9.0, jitter=False, retry_on=("x", "y"))

    run = deployment.running(user, retry=policy, payload={"n": [1, None, "ü"]}, spec={"a": 1})

    assert (run.retry, run.payload, run.spec) == (policy, {"n": [1, None, "ü"]}, {"a": 1})
    assert (run.attempt, run.max_attempts, run.type) == (1, 3, "echo")


def test_a_submit_for_an_unknown_user_is_refused(deployment: Deployment) -> None:
    with pytest.raises(UserNotFound):
        deployment.task(UserId(deployment.one("SELECT gen_random_uuid() AS id")["id"]))


def test_a_new_task_has_one_event(deployment: Deployment, connect: Callable[..., Db]) -> None:
    user = deployment.user()

    made = submit(connect("front-api_user", role=ADMIN), user, PLAIN, LOOSE)

    event = deployment.one("SELECT * FROM events WHERE task_id = :id", id=made.task_id)
    assert (event["seq"], event["kind"], event["actor"]) == (1, "task.ready", "front-api_user")
    assert (event["from_state"], event["to_state"]) == (None, "ready")
