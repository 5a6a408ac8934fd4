"""Locks on the one claim: held exactly while a task is active, and by one task at a time."""

from collections.abc import Callable
from datetime import timedelta
from itertools import combinations, product
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from overnight_server.control.cancel import cancel
from overnight_server.domain.locks import collide, normalised
from overnight_server.domain.results import Interrupted, Raised, Returned
from overnight_server.gate.claim import Terms, claim
from overnight_server.maintenance.reap import reap
from overnight_server.store.db import Db
from tests.support.house import CLAIM_TTL, LEASE, LIVENESS, POOL, House
from tests.support.invariants import violations
from tests.support.rivals import Rival, held_pool, queue_up

TERMS = Terms(CLAIM_TTL, LIVENESS)
NAMES = ("a", "b", "a-", "a0")
PATHS = [
    "path:.",
    *(f"path:{a}" for a in NAMES),
    *(f"path:{a}/{b}" for a, b in product("ab", NAMES)),
]


def held(house: House) -> set[tuple[Any, str]]:
    """Who holds which key."""
    return {(row["task_id"], row["key"]) for row in house.rows("SELECT * FROM held_locks")}


def claimed(house: House) -> set[Any]:
    """Take what may go in one pass."""
    return {one.claim.task_id for one in house.claim().claims}


def test_a_task_holds_all_its_keys_while_it_is_active(house: House) -> None:
    house.agent()
    keys = ("path:src", "repo:site")

    run = house.running(house.user(), locks=keys)

    assert held(house) == {(run.claim.task_id, key) for key in keys}
    assert house.settle(run, Returned())
    assert held(house) == set()


def test_every_way_out_of_a_claim_frees_its_locks(house: House) -> None:
    house.agent()
    user = house.user()

    def active(name: str) -> Any:
        return house.running(user, locks=[name], max_attempts=3)

    house.settle(active("failed"), Raised("error", "no luck"))
    house.settle(active("dead"), Raised("error", "no luck", retryable=False))
    handed_back = active("handed back")
    house.settle(handed_back, Interrupted())
    cancel(house.app, user, handed_back.claim.task_id, actor="user:test")
    claimed_only = house.task(user, locks=["cancelled"])
    house.claim()
    cancel(house.app, user, claimed_only, actor="user:test")
    active("lost")
    house.move_clock(LEASE * 2)
    reap(house.dispatcher)

    assert held(house) == set()
    assert violations(house.owner, codes={"H03", "H07"}) == {}


def test_in_one_pass_only_the_first_of_each_key_goes(house: House) -> None:
    house.agent()
    user = house.user()
    first, other, plain = (
        house.task(user, locks=["a"]),
        house.task(user, locks=["b"]),
        house.task(user),
    )
    house.task(user, locks=["a"])

    assert claimed(house) == {first, other, plain}
    assert claimed(house) == set()


def test_a_task_of_several_keys_waits_for_all_of_them(house: House) -> None:
    house.agent()
    user = house.user()
    run = house.running(user, locks=["b"])
    wide = house.task(user, locks=["a", "b"])
    alone = house.task(user, locks=["a"])

    assert claimed(house) == {alone}
    house.settle(run, Returned())
    assert claimed(house) == set()
    cancel(house.app, user, alone, actor="user:test")
    assert claimed(house) == {wide}


def test_overlapping_sets_of_keys_never_go_in_one_pass(house: House) -> None:
    house.agent()
    user = house.user()
    first = house.task(user, locks=["a", "b"])
    house.task(user, locks=["b"])
    plain = house.task(user)
    house.task(user, locks=["b", "c"])

    assert claimed(house) == {first, plain}
    assert claimed(house) == set()


def test_a_task_of_several_keys_behind_another_takes_the_next_pass(house: House) -> None:
    house.agent()
    user = house.user()
    first = house.task(user, locks=["a"])
    second = house.task(user, locks=["b", "c"])
    third = house.task(user, locks=["d"])

    assert claimed(house) == {first}
    assert claimed(house) == {second}
    assert claimed(house) == {third}


def test_a_path_is_in_the_way_of_all_below_and_above_it(house: House) -> None:
    house.agent()
    user = house.user()
    run = house.running(user, locks=["path:src/app"])
    for path in ("path:src", "path:src/app/overnight_server/models", "path:src/app", "path:."):
        house.task(user, locks=[path])
    beside = [house.task(user, locks=[path]) for path in ("path:src/application", "path:docs")]

    assert {*claimed(house), *claimed(house)} == set(beside)
    house.settle(run, Returned())
    assert len(claimed(house)) == 1


def test_another_users_locks_are_none_of_ours(house: House) -> None:
    house.agent()
    users = [house.user() for _ in range(3)]
    tasks = {house.task(user, locks=["repo:a", "path:src"]) for user in users}

    assert claimed(house) == tasks


def test_the_database_itself_refuses_a_second_holder(house: House) -> None:
    house.agent()
    user = house.user()
    house.running(user, locks=["repo:a", "path:src"])
    waiting = {key: house.task(user, locks=[key]) for key in ("repo:a", "path:src/a", "path:.")}
    take = (
        "UPDATE tasks SET state = 'claimed', epoch = 1, token = gen_random_uuid(),"
        " claimed_by = 'x', pool = 'x', claimed_at = clock(), expires_at = clock(),"
        " reserved_seconds = 1 WHERE id = :id"
    )

    for task_id in waiting.values():
        with pytest.raises(IntegrityError, match="held_locks"):
            house.run(take, id=task_id)


def test_postgres_and_python_agree_on_which_paths_meet(house: House) -> None:
    user = house.user()
    sql = text("SELECT lock_span(:user, :one) && lock_span(:user, :two)")

    with house.owner.engine.begin() as tx:
        for one, two in combinations(PATHS, 2):
            assert normalised([one]) == (one,)
            meet = tx.execute(sql, {"user": user, "one": one, "two": two}).scalar_one()
            assert meet is collide([one], [two]), (one, two)


def test_two_dispatchers_at_one_lock_let_one_task_go(
    house: House, connect: Callable[..., Db]
) -> None:
    house.agent()
    user = house.user()
    for _ in range(4):
        house.task(user, locks=["path:src", "repo:a"])

    def take(db: Db) -> int:
        taken = claim(db, POOL, holder="d", terms=TERMS)
        return len(taken.claims)

    rivals = [Rival(connect, f"claimer-{number}", take) for number in range(3)]
    with held_pool(connect, POOL):
        queue_up(connect, rivals)

    assert sorted(rival.answer() for rival in rivals) == [0, 0, 1]
    assert violations(house.owner) == {}


def test_who_waited_for_a_lock_and_how_long_is_remembered(house: House) -> None:
    house.agent()
    user = house.user()
    run = house.running(user, locks=["path:src"])
    house.move_clock(timedelta(seconds=10))
    next_one = house.task(user, locks=["path:src/a"])
    house.task(user, locks=["path:src/b"])
    house.task(user)
    house.move_clock(timedelta(seconds=30))

    house.settle(run, Returned())

    wait = house.one("SELECT *, until - since AS waited FROM lock_waits")
    assert (wait["key"], wait["holder_id"]) == ("path:src", run.claim.task_id)
    assert (wait["waiter_id"], wait["waiting"]) == (next_one, 2)
    assert timedelta(seconds=30) <= wait["waited"] < timedelta(seconds=35)


def test_a_lock_nobody_waited_for_leaves_no_trace(house: House) -> None:
    house.agent()
    user = house.user()
    run = house.running(user, locks=["a"])
    house.task(user, locks=["b"])
    house.task(house.user(), locks=["a"])

    house.settle(run, Returned())

    assert house.rows("SELECT * FROM lock_waits") == []


def test_only_the_last_waits_of_a_user_are_kept(house: House) -> None:
    house.agent()
    user = house.user()
    house.run(
        "INSERT INTO lock_waits (user_id, key, holder_id, waiter_id, waiting, since)"
        " SELECT :user, 'old', :user, :user, 1, clock() FROM generate_series(1, 250)",
        user=user,
    )
    run = house.running(user, locks=["a"])
    house.task(user, locks=["a"])

    house.settle(run, Returned())

    kept = house.one(
        "SELECT count(*) AS n, count(*) FILTER (WHERE key = 'a') AS fresh FROM lock_waits"
    )
    assert kept == {"n": 200, "fresh": 1}


def test_two_hundred_lanes_blocked_by_locks_do_not_hold_up_the_rest(house: House) -> None:
    house.agent(slots=300)
    blocked = [house.user() for _ in range(200)]
    for user in blocked:
        house.task(user, project_id="site")
    while claimed(house):
        pass
    for user in blocked:
        house.task(user, project_id="site")
    lucky = house.user()
    house.task(lucky)
    house.claim()
    next_one = house.task(lucky)

    passes = 0
    while next_one not in claimed(house):
        passes += 1

    assert passes <= 200 / 10
    assert house.one("SELECT count(*) AS n FROM lanes WHERE parked_for = '{}'")["n"] <= 1
    assert len(held(house)) == 200


def test_many_blocked_tasks_let_the_users_others_pass(house: House) -> None:
    house.agent()
    user = house.user()
    house.running(user, locks=["path:src"])
    for number in range(300):
        house.task(user, locks=[f"path:src/{number}"], priority=20)
    plain, elsewhere = house.task(user, priority=90), house.task(user, locks=["path:docs"])

    assert claimed(house) == {plain, elsewhere}
