"""Keys in the database: only hashes, and only their owner's."""

from datetime import timedelta

import pytest

from overnight_server.control.keys import (
    UnusableKey,
    authenticate,
    issue,
    key_id_of,
    new_key,
    revoke,
    seed_local_user,
)
from overnight_server.domain.plans import PlanTier
from tests.support.house import House


def test_an_issued_key_opens_the_door_for_its_user(house: House) -> None:
    user = house.user()

    key = issue(house.app, user, name="laptop", scopes=("tasks:read", "tasks:write"))

    caller = authenticate(house.app, key)
    assert caller is not None
    assert caller.user_id == user
    assert caller.key_id == key_id_of(key)
    assert caller.scopes == ("tasks:read", "tasks:write")
    assert not caller.is_admin


def test_the_database_holds_no_key(house: House) -> None:
    key = issue(house.app, house.user(), name="laptop")

    row = house.one("SELECT * FROM api_keys")
    secret = key.split("_")[3]
    assert secret not in repr(row)
    assert row["last4"] == secret[-4:]
    assert len(row["hash"]) == 64


def test_the_right_id_with_another_secret_opens_nothing(house: House) -> None:
    key = issue(house.app, house.user(), name="laptop")
    house.run("UPDATE api_keys SET hash = :hash", hash="0" * 64)

    assert authenticate(house.app, key) is None


def test_a_use_is_noted_at_most_once_a_minute(house: House) -> None:
    key = issue(house.app, house.user(), name="laptop")

    def used_at() -> object:
        authenticate(house.app, key)
        return house.one("SELECT last_used_at FROM api_keys")["last_used_at"]

    first = used_at()
    assert first is not None
    assert used_at() == first
    house.move_clock(timedelta(seconds=61))
    assert used_at() != first


def test_two_keys_of_one_user_live_side_by_side(house: House) -> None:
    user = house.user()
    old, new = (issue(house.app, user, name=name) for name in ("old", "new"))

    revoke(house.app, key_id_of(old))

    assert authenticate(house.app, old) is None
    assert authenticate(house.app, new) is not None


def test_an_admins_key_says_so(house: House) -> None:
    key = issue(house.app, house.user(is_admin=True), name="root")

    caller = authenticate(house.app, key)
    assert caller is not None
    assert caller.is_admin


def test_seeding_twice_changes_nothing(house: House) -> None:
    key = new_key()

    for _ in range(2):
        assert seed_local_user(house.app, name="local", plan=PlanTier.TEAM, key=key) == key

    assert house.one("SELECT name, plan_tier FROM users") == {"name": "local", "plan_tier": "team"}
    assert house.one("SELECT id FROM api_keys")["id"] == key_id_of(key)
    assert authenticate(house.app, key) is not None


def test_seeding_without_a_key_makes_one(house: House) -> None:
    key = seed_local_user(house.app, name="local", plan=PlanTier.FREE, key=None)

    assert authenticate(house.app, key) is not None


def test_a_damaged_key_is_not_seeded(house: House) -> None:
    with pytest.raises(UnusableKey) as refusal:
        seed_local_user(house.app, name="local", plan=PlanTier.FREE, key=new_key()[:-1])

    assert "overnight_live" not in str(refusal.value)
    assert house.rows("SELECT * FROM users") == []


def test_a_revoked_or_foreign_key_is_not_seeded(house: House) -> None:
    revoked = seed_local_user(house.app, name="local", plan=PlanTier.FREE, key=None)
    revoke(house.app, key_id_of(revoked))
    foreign = issue(house.app, house.user(), name="theirs")

    for key in (revoked, foreign):
        with pytest.raises(UnusableKey):
            seed_local_user(house.app, name="local", plan=PlanTier.FREE, key=key)
