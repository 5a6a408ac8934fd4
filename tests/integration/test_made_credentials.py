"""A credential made with another ends no later, has no more rights, and is marked with its maker.

The table below has every kind of credential that can make one, and every kind that can be made.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import jwt
import pytest
from sqlalchemy import text

from overnight.errors import Unauthenticated
from overnight_server.control.keys import authenticate, issue, key_id_of
from overnight_server.store.db import ADMIN, Db
from tests.support.api_user import TASKS, ApiUser, serve_api
from tests.support.deployment import Deployment
from tests.support.pull_agent import AGENTS, PullAgent, register_agent
from tests.support.rivals import Rival, wait_until_blocked

KEYS, ADMIN_KEYS = "/api/v1/keys", "/api/v1/admin/keys"
SECRET = "a secret of more than thirty-two bytes, made for tests"
TOKEN_SECONDS = 300
SCOPES = ("admin", "agents:run", "keys:read", "keys:write", "tasks:read", "tasks:write")


@dataclass(frozen=True)
class Maker:
    """A credential, how keys made with it are marked, and how it ends."""

    user: ApiUser
    mark: str
    end: Callable[[], None]


@pytest.fixture
def admin(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    settings = {"ALGORITHMS": "HS256", "SECRET": SECRET, "ISSUER": "issuer", "AUDIENCE": "us"}
    environ = {f"OVERNIGHT_JWT_{name}": value for name, value in settings.items()}
    with serve_api(deployment, database_url, **environ) as api_user:
        yield api_user.new_user(SCOPES, name="ada", is_admin=True)


def with_secret(admin: ApiUser, secret: str) -> ApiUser:
    return ApiUser(admin.http, admin.deployment, admin.user, secret)


def revoke_in_database(admin: ApiUser, key_id: str) -> None:
    admin.deployment.run("UPDATE api_keys SET revoked_at = clock() WHERE id = :id", id=key_id)


def endless_key(admin: ApiUser) -> Maker:
    key_id = key_id_of(admin.key)
    return Maker(admin, f"key:{key_id}", partial(revoke_in_database, admin, key_id))


def short_key(admin: ApiUser) -> Maker:
    lifetime = timedelta(hours=1)
    key = issue(admin.deployment.app, admin.user, name="s", scopes=SCOPES, expires_in=lifetime)
    end = partial(admin.deployment.move_clock, lifetime)
    return Maker(with_secret(admin, key), f"key:{key_id_of(key)}", end)


def rotated_key(admin: ApiUser) -> Maker:
    key_id = key_id_of(admin.key)
    rotated = admin.request("POST", f"{KEYS}/{key_id}/rotate", json={"grace_seconds": 600})
    assert rotated.status_code == 201, rotated.text
    end = partial(admin.deployment.move_clock, timedelta(seconds=601))
    return Maker(admin, f"key:{key_id}", end)


def token(admin: ApiUser) -> Maker:
    now = int(time.time())
    body = {"iss": "issuer", "aud": "us", "sub": "ada", "nbf": now - 1, "exp": now + TOKEN_SECONDS}
    signed = jwt.encode({**body, "scope": " ".join(SCOPES)}, SECRET, algorithm="HS256")
    end = partial(admin.deployment.move_clock, timedelta(seconds=TOKEN_SECONDS + 1))
    return Maker(with_secret(admin, signed), "token:ada", end)


def key_of_token(admin: ApiUser) -> Maker:
    by_token = token(admin)
    key = own_key(by_token)
    return Maker(with_secret(admin, key), f"key:{key_id_of(key)}", by_token.end)


def key_of_key(admin: ApiUser) -> Maker:
    """A key made with a key; the first of the two ends."""
    first = endless_key(admin)
    key = own_key(first)
    return Maker(with_secret(admin, key), f"key:{key_id_of(key)}", first.end)


MAKERS = (endless_key, short_key, rotated_key, token, key_of_token, key_of_key)


def made(maker: Maker, path: str, **body: object) -> str:
    answer = maker.user.request("POST", path, json=body)
    assert answer.status_code == 201, answer.text
    key: str = answer.json()["key"]
    return key


def own_key(maker: Maker) -> str:
    return made(maker, KEYS, name="made", scopes=list(SCOPES))


def key_for_another_user(maker: Maker) -> str:
    other = maker.user.deployment.user()
    return made(maker, f"/api/v1/admin/users/{other}/keys", name="made", scopes=["tasks:read"])


def rotated_own_key(maker: Maker) -> str:
    admin = maker.user
    old = issue(admin.deployment.app, admin.user, name="old", scopes=("tasks:read",))
    return made(maker, f"{KEYS}/{key_id_of(old)}/rotate")


def rotated_key_of_another_user(maker: Maker) -> str:
    app = maker.user.deployment.app
    old = issue(app, maker.user.deployment.user(), name="old", scopes=("tasks:read",))
    return made(maker, f"{ADMIN_KEYS}/{key_id_of(old)}/rotate")


MADE_KEYS = (own_key, key_for_another_user, rotated_own_key, rotated_key_of_another_user)


def end_of(maker: Maker) -> datetime | None:
    """Return when the maker expires by itself."""
    if maker.mark.startswith("token:"):
        claims = jwt.decode(maker.user.key, options={"verify_signature": False})
        return datetime.fromtimestamp(claims["exp"], UTC)
    row = row_of(maker.user.deployment, maker.user.key)
    expires_at: datetime | None = row["expires_at"]
    return expires_at


def row_of(deployment: Deployment, key: str) -> Any:
    return deployment.one("SELECT * FROM api_keys WHERE id = :id", id=key_id_of(key))


@pytest.mark.parametrize("make", MADE_KEYS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("maker_of", MAKERS, ids=lambda maker_of: maker_of.__name__)
def test_a_made_key_ends_with_its_maker_and_is_marked(
    admin: ApiUser, maker_of: Callable[[ApiUser], Maker], make: Callable[[Maker], str]
) -> None:
    maker = maker_of(admin)
    key = make(maker)

    row = row_of(admin.deployment, key)
    end = end_of(maker)
    assert row["made_by"] == maker.mark
    assert set(row["scopes"]) <= set(SCOPES)
    assert end is None or row["expires_at"] <= end
    assert with_secret(admin, key).request("GET", TASKS).status_code == 200
    maker.end()
    assert with_secret(admin, key).request("GET", TASKS).status_code == 401


@pytest.mark.parametrize("maker_of", MAKERS, ids=lambda maker_of: maker_of.__name__)
def test_a_claim_token_ends_with_the_credential_of_its_agent(
    admin: ApiUser, maker_of: Callable[[ApiUser], Maker]
) -> None:
    maker = maker_of(admin)
    admin.created(type="echo")
    agent = register_agent(maker.user, lease_seconds=3600, claim_ttl_seconds=300)
    work = agent.begin()

    row = admin.deployment.one("SELECT authorized_by FROM agents")
    assert row["authorized_by"] == maker.mark
    assert agent.report(work, "extend", seconds=3600).status_code == 200
    maker.end()
    assert agent.report(work, "heartbeat").status_code == 401
    assert agent.report(work, "complete").status_code == 401


def test_an_agent_that_comes_with_a_newer_credential_keeps_its_claims(admin: ApiUser) -> None:
    maker = token(admin)
    admin.created(type="echo")
    agent = register_agent(maker.user, lease_seconds=3600)
    work = agent.begin()
    renewed = PullAgent(with_secret(admin, admin.key), agent.id)

    beat = renewed.api_user.request("POST", f"{AGENTS}/{agent.id}/heartbeat")
    maker.end()

    assert beat.status_code == 200
    assert agent.report(work, "complete").status_code == 200


@pytest.mark.parametrize("path", [KEYS, "/api/v1/admin/users/ada/keys"])
@pytest.mark.parametrize("maker_of", MAKERS, ids=lambda maker_of: maker_of.__name__)
def test_a_made_key_has_no_more_scopes(
    admin: ApiUser, maker_of: Callable[[ApiUser], Maker], path: str
) -> None:
    maker = maker_of(admin)

    for scopes in (["*"], ["tasks:read", "agents:all-users"]):
        refused = maker.user.request("POST", path, json={"name": "more", "scopes": scopes})

        assert refused.status_code == 400, refused.text
        assert refused.json()["errors"][0]["field"] == "scopes"


@pytest.mark.parametrize("path", [KEYS, ADMIN_KEYS])
def test_a_key_with_more_scopes_cannot_be_rotated(admin: ApiUser, path: str) -> None:
    greater = issue(admin.deployment.app, admin.user, name="greater")

    refused = admin.request("POST", f"{path}/{key_id_of(greater)}/rotate", json={})

    assert refused.json()["code"] == "KEY_NOT_FOUND"
    assert row_of(admin.deployment, greater)["replaced_by"] is None


def test_keys_made_with_a_rotated_key_belong_to_its_successor(admin: ApiUser) -> None:
    key = own_key(endless_key(admin))
    rotated = admin.request(
        "POST", f"{KEYS}/{key_id_of(admin.key)}/rotate", json={"grace_seconds": 60}
    ).json()

    admin.deployment.move_clock(timedelta(seconds=61))

    assert admin.request("GET", TASKS).status_code == 401
    assert with_secret(admin, key).request("GET", TASKS).status_code == 200
    revoke_in_database(admin, rotated["id"])
    assert with_secret(admin, key).request("GET", TASKS).status_code == 401


def test_a_key_is_not_made_while_its_maker_is_revoked(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    user = deployment.user()
    key = issue(deployment.app, user, name="maker")
    caller = authenticate(deployment.app, key)
    make = partial(issue, name="made", maker=caller)
    late = Rival(partial(connect, role=ADMIN), "late maker", make, user)

    watcher = connect("watcher", role=None, pool_size=1)
    with deployment.owner.engine.begin() as tx:
        revoke = text("UPDATE api_keys SET revoked_at = clock() WHERE id = :id")
        tx.execute(revoke, {"id": key_id_of(key)})
        late.start()
        wait_until_blocked(watcher, late.name)

    with pytest.raises(Unauthenticated):
        late.answer()
    assert deployment.one("SELECT count(*) AS n FROM api_keys")["n"] == 1
