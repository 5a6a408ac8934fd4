"""Locks of a claim: held exactly while a task is active, by one task at a time."""

from collections.abc import Callable
from datetime import timedelta
from itertools import combinations, product
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from overnight_server.control.cancel import cancel
from overnight_server.domain.lock_keys import are_in_conflict, normalised
from overnight_server.domain.results import Interrupted, Raised, Returned
from overnight_server.gate.claim import ClaimSettings, claim
from overnight_server.maintenance.reap import reap
from overnight_server.store.db import Db
from tests.support.deployment import CLAIM_TTL, LEASE, LIVENESS, POOL, Deployment
from tests.support.invariants import violations
from tests.support.rivals import Rival, held_pool, queue_up

CLAIM_SETTINGS = ClaimSettings(CLAIM_TTL, LIVENESS)
NAMES = ("a", "b", "a-", "a0")
PATHS = [
    "path:.",
    *(f"path:{a}" for a in NAMES),
    *(f"path:{a}/{b}" for a, b in product("ab", NAMES)),
]


def held(deployment: Deployment) -> set[tuple[Any, str]]:
    """Return the holder of each key."""
    return {(row["task_id"], row["key"]) for row in deployment.rows("SELECT * FROM held_locks")}


def claimed(deployment: Deployment) -> set[Any]:
    """Claim everything that one pass may claim."""
    return {one.claim.task_id for one in deployment.claim().claims}


def test_a_task_holds_all_its_keys_while_it_is_active(deployment: Deployment) -> None:
    deployment.agent()
    keys = ("path:src", "repo:site")

    run = deployment.running(deployment.user(), locks=keys)

    assert held(deployment) == {(run.claim.task_id, key) for key in keys}
    assert deployment.settle(run, Returned())
    assert held(deployment) == set()


def test_every_way_out_of_a_claim_frees_its_locks(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user()

    def active(name: str) -> Any:
        return deployment.running(user, locks=[name], max_attempts=3)

    deployment.settle(active("failed"), Raised("error", "no luck"))
    deployment.settle(active("dead"), Raised("error", "no luck", retryable=False))
    handed_back = active("handed back")
    deployment.settle(handed_back, Interrupted())
    cancel(deployment.app, user, handed_back.claim.task_id, actor="user:test")
    claimed_only = deployment.task(user, locks=["cancelled"])
    deployment.claim()
    cancel(deployment.app, user, claimed_only, actor="user:test")
    active("lost")
    deployment.move_clock(LEASE * 2)
    reap(deployment.dispatcher)

    assert held(deployment) == set()
    assert violations(deployment.owner, codes={"H03", "leaked_locks", "missing_locks"}) == {}


def test_one_pass_claims_only_the_first_task_of_each_key(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user()
    first, other, plain = (
        deployment.task(user, locks=["a"]),
        deployment.task(user, locks=["b"]),
        deployment.task(user),
    )
    deployment.task(user, locks=["a"])

    assert claimed(deployment) == {first, other, plain}
    assert claimed(deployment) == set()


def test_a_task_of_several_keys_waits_for_all_of_them(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user()
    run = deployment.running(user, locks=["b"])
    wide = deployment.task(user, locks=["a", "b"])
    alone = deployment.task(user, locks=["a"])

    assert claimed(deployment) == {alone}
    deployment.settle(run, Returned())
    assert claimed(deployment) == set()
    cancel(deployment.app, user, alone, actor="user:test")
    assert claimed(deployment) == {wide}


def test_tasks_with_overlapping_keys_are_never_claimed_in_one_pass(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user()
    first = deployment.task(user, locks=["a", "b"])
    deployment.task(user, locks=["b"])
    plain = deployment.task(user)
    deployment.task(user, locks=["b", "c"])

    assert claimed(deployment) == {first, plain}
    assert claimed(deployment) == set()


def test_a_task_of_several_keys_behind_another_is_claimed_in_the_next_pass(
    deployment: Deployment,
) -> None:
    deployment.agent()
    user = deployment.user()
    first = deployment.task(user, locks=["a"])
    second = deployment.task(user, locks=["b", "c"])
    third = deployment.task(user, locks=["d"])

    assert claimed(deployment) == {first}
    assert claimed(deployment) == {second}
    assert claimed(deployment) == {third}


def test_a_path_lock_blocks_all_paths_below_and_above_it(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user()
    run = deployment.running(user, locks=["path:src/app"])
    for path in ("path:src", "path:src/app/overnight_server/models", "path:src/app", "path:."):
        deployment.task(user, locks=[path])
    beside = [deployment.task(user, locks=[path]) for path in ("path:src/application", "path:docs")]

    assert {*claimed(deployment), *claimed(deployment)} == set(beside)
    deployment.settle(run, Returned())
    assert len(claimed(deployment)) == 1


def test_locks_of_another_user_block_nothing(deployment: Deployment) -> None:
    deployment.agent()
    users = [deployment.user() for _ in range(3)]
    tasks = {deployment.task(user, locks=["repo:a", "path:src"]) for user in users}

    assert claimed(deployment) == tasks


def test_the_database_itself_refuses_a_second_holder(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user()
    deployment.running(user, locks=["repo:a", "path:src"])
    waiting = {
        key: deployment.task(user, locks=[key]) for key in ("repo:a", "path:src/a", "path:.")
    }
    take = (
        "UPDATE tasks SET state = 'claimed', epoch = 1, token = gen_random_uuid(),"
        " claimed_by = 'x', pool = 'x', claimed_at = clock(), expires_at = clock(),"
        " reserved_seconds = 1 WHERE id = :id"
    )

    for task_id in waiting.values():
        with pytest.raises(IntegrityError, match="held_locks"):
            deployment.run(take, id=task_id)


def test_postgres_and_python_agree_on_which_paths_conflict(deployment: Deployment) -> None:
    user = deployment.user()
    sql = text("SELECT lock_path_range(:user, :one) && lock_path_range(:user, :two)")

    with deployment.owner.engine.begin() as tx:
        for first, second in combinations(PATHS, 2):
            assert normalised([first]) == (first,)
            meet = tx.execute(sql, {"user": user, "one": first, "two": second}).scalar_one()
            assert meet is are_in_conflict([first], [second]), (first, second)


def test_two_dispatchers_claim_one_task_of_a_lock(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    deployment.agent()
    user = deployment.user()
    for _ in range(4):
        deployment.task(user, locks=["path:src", "repo:a"])

    def take(db: Db) -> int:
        taken = claim(db, POOL, holder="d", claim_settings=CLAIM_SETTINGS)
        return len(taken.claims)

    rivals = [Rival(connect, f"claimer-{number}", take) for number in range(3)]
    with held_pool(connect, POOL):
        queue_up(connect, rivals)

    assert sorted(rival.answer() for rival in rivals) == [0, 0, 1]
    assert violations(deployment.owner) == {}


def test_each_wait_for_a_lock_is_stored_with_its_duration(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user()
    run = deployment.running(user, locks=["path:src"])
    deployment.move_clock(timedelta(seconds=10))
    next_one = deployment.task(user, locks=["path:src/a"])
    deployment.task(user, locks=["path:src/b"])
    deployment.task(user)
    deployment.move_clock(timedelta(seconds=30))

    deployment.settle(run, Returned())

    wait = deployment.one("SELECT *, until - since AS waited FROM lock_waits")
    assert (wait["key"], wait["holder_id"]) == ("path:src", run.claim.task_id)
    assert (wait["waiter_id"], wait["waiting"]) == (next_one, 2)
    assert timedelta(seconds=30) <= wait["waited"] < timedelta(seconds=35)


def test_a_lock_without_waiting_tasks_stores_no_wait(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user()
    run = deployment.running(user, locks=["a"])
    deployment.task(user, locks=["b"])
    deployment.task(deployment.user(), locks=["a"])

    deployment.settle(run, Returned())

    assert deployment.rows("SELECT * FROM lock_waits") == []


def test_only_the_last_waits_of_a_user_are_kept(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user()
    deployment.run(
        "INSERT INTO lock_waits (user_id, key, holder_id, waiter_id, waiting, since)"
        " SELECT :user, 'old', :user, :user, 1, clock() FROM generate_series(1, 250)",
        user=user,
    )
    run = deployment.running(user, locks=["a"])
    deployment.task(user, locks=["a"])

    deployment.settle(run, Returned())

    kept = deployment.one(
        "SELECT count(*) AS n, count(*) FILTER (WHERE key = 'a') AS fresh FROM lock_waits"
    )
    assert kept == {"n": 200, "fresh": 1}


def test_two_hundred_lanes_blocked_by_locks_do_not_delay_the_rest(deployment: Deployment) -> None:
    deployment.agent(slots=300)
    blocked = [deployment.user() for _ in range(200)]
    for user in blocked:
        deployment.task(user, project_id="site")
    while claimed(deployment):
        pass
    for user in blocked:
        deployment.task(user, project_id="site")
    lucky = deployment.user()
    deployment.task(lucky)
    deployment.claim()
    next_one = deployment.task(lucky)

    passes = 0
    while next_one not in claimed(deployment):
        passes += 1

    assert passes <= 200 / 10
    assert deployment.one("SELECT count(*) AS n FROM lanes WHERE skipped_by_pools = '{}'")["n"] <= 1
    assert len(held(deployment)) == 200


def test_many_blocked_tasks_do_not_block_other_tasks_of_the_user(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user()
    deployment.running(user, locks=["path:src"])
    for number in range(300):
        deployment.task(user, locks=[f"path:src/{number}"], priority=20)
    plain, elsewhere = (
        deployment.task(user, priority=90),
        deployment.task(user, locks=["path:docs"]),
    )

    assert claimed(deployment) == {plain, elsewhere}


def test_a_long_queue_behind_a_lock_is_passed_over_in_order(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user(max_concurrent_agents=6)
    holder = deployment.running(user, locks=["k"])
    deployment.run(LONG_QUEUE, user=user)
    free = [deployment.task(user, priority=90, locks=keys) for keys in ([], ["m"], ["n", "k"])]
    free += [deployment.task(user, priority=95, locks=keys) for keys in (["m"], [], ["p"])]

    # The tasks of priority 90 come first; one task of each lock, none of those that need `k`.
    first_pass = [one.claim.task_id for one in deployment.claim(limit=2).claims]
    assert set(first_pass) == {free[0], free[1]}
    assert claimed(deployment) == {free[4], free[5]}
    assert claimed(deployment) == set()

    deployment.settle(holder, Returned())
    [head] = claimed(deployment)
    assert deployment.one("SELECT sort_key FROM tasks WHERE id = :id", id=head)["sort_key"] == 1
    assert violations(deployment.owner) == {}


LONG_QUEUE = """
    INSERT INTO tasks (id, user_id, dag_id, type, title, created_by, state, sort_key, locks)
    SELECT id, :user, id, 'echo', 't', 'test', 'ready', n, '{k}'
      FROM (SELECT gen_random_uuid() AS id, n FROM generate_series(1, 300) n) new
"""
