"""API keys in the database: only hashes, and seeding."""

from datetime import timedelta

import pytest

from overnight.models.enums import PlanTier
from overnight_server.control.keys import (
    UnusableKey,
    authenticate,
    issue,
    key_id_of,
    new_key,
    revoke,
    seed_local_user,
)
from tests.support.deployment import Deployment


def test_an_issued_key_authenticates_its_user(deployment: Deployment) -> None:
    user = deployment.user()

    key = issue(deployment.app, user, name="laptop", scopes=("tasks:read", "tasks:write"))

    caller = authenticate(deployment.app, key)
    assert caller is not None
    assert caller.user_id == user
    assert caller.key_id == key_id_of(key)
    assert caller.scopes == ("tasks:read", "tasks:write")
    assert not caller.is_admin


def test_the_database_stores_no_key_in_plain_text(deployment: Deployment) -> None:
    key = issue(deployment.app, deployment.user(), name="laptop")

    row = deployment.one("SELECT * FROM api_keys")
    secret = key.split("_")[3]
    assert secret not in repr(row)
    assert row["last4"] == secret[-4:]
    assert len(row["hash"]) == 64


def test_a_known_id_with_a_wrong_secret_is_refused(deployment: Deployment) -> None:
    key = issue(deployment.app, deployment.user(), name="laptop")
    deployment.run("UPDATE api_keys SET hash = :hash", hash="0" * 64)

    assert authenticate(deployment.app, key) is None


def test_the_last_use_is_written_at_most_once_a_minute(deployment: Deployment) -> None:
    key = issue(deployment.app, deployment.user(), name="laptop")

    def used_at() -> object:
        authenticate(deployment.app, key)
        return deployment.one("SELECT last_used_at FROM api_keys")["last_used_at"]

    first = used_at()
    assert first is not None
    assert used_at() == first
    deployment.move_clock(timedelta(seconds=61))
    assert used_at() != first


def test_a_user_may_have_several_keys(deployment: Deployment) -> None:
    user = deployment.user()
    old, new = (issue(deployment.app, user, name=name) for name in ("old", "new"))

    revoke(deployment.app, key_id_of(old))

    assert authenticate(deployment.app, old) is None
    assert authenticate(deployment.app, new) is not None


def test_the_key_of_an_admin_authenticates_an_admin(deployment: Deployment) -> None:
    key = issue(deployment.app, deployment.user(is_admin=True), name="root")

    caller = authenticate(deployment.app, key)
    assert caller is not None
    assert caller.is_admin


def test_seeding_twice_changes_nothing(deployment: Deployment) -> None:
    key = new_key()

    for _ in range(2):
        assert seed_local_user(deployment.app, name="local", plan=PlanTier.TEAM, key=key) == key

    assert deployment.one("SELECT name, plan_tier FROM users") == {
        "name": "local",
        "plan_tier": "team",
    }
    assert deployment.one("SELECT id FROM api_keys")["id"] == key_id_of(key)
    assert authenticate(deployment.app, key) is not None


def test_seeding_without_a_key_makes_one(deployment: Deployment) -> None:
    key = seed_local_user(deployment.app, name="local", plan=PlanTier.FREE, key=None)

    assert authenticate(deployment.app, key) is not None


def test_a_damaged_key_is_not_seeded(deployment: Deployment) -> None:
    with pytest.raises(UnusableKey) as refusal:
        seed_local_user(deployment.app, name="local", plan=PlanTier.FREE, key=new_key()[:-1])

    assert "overnight_live" not in str(refusal.value)
    assert deployment.rows("SELECT * FROM users") == []


def test_a_revoked_or_foreign_key_is_not_seeded(deployment: Deployment) -> None:
    revoked = seed_local_user(deployment.app, name="local", plan=PlanTier.FREE, key=None)
    revoke(deployment.app, key_id_of(revoked))
    foreign = issue(deployment.app, deployment.user(), name="theirs")

    for key in (revoked, foreign):
        with pytest.raises(UnusableKey):
            seed_local_user(deployment.app, name="local", plan=PlanTier.FREE, key=key)
