"""API keys over HTTP and by command: create, list, rotate and revoke."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial

import pytest

from overnight.errors import InvalidRequest, KeyNotFound
from overnight.models.scopes import SCOPES
from overnight_server.cli.terminal.failures import Code
from overnight_server.control import keys
from overnight_server.control.keys import authenticate, issue, key_id_of, rotate
from overnight_server.domain.scopes import checked
from overnight_server.insight.users import list_keys
from overnight_server.store.db import ADMIN, Db
from tests.support.api_user import TASKS, ApiUser, serve_api
from tests.support.command import run
from tests.support.deployment import Deployment
from tests.support.rivals import Rival, held_lane, queue_up

KEYS = "/api/v1/keys"


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        yield api_user


def as_key(api_user: ApiUser, key: str) -> ApiUser:
    return ApiUser(api_user.http, api_user.deployment, api_user.user, key)


def test_a_created_key_has_exactly_its_scopes(api_user: ApiUser) -> None:
    made = api_user.request(
        "POST",
        KEYS,
        json={"name": "ci", "scopes": ["tasks:read"], "expires_in_seconds": 3600},
    )

    assert made.status_code == 201, made.text
    new = as_key(api_user, made.json()["key"])
    assert new.request("GET", TASKS).status_code == 200
    assert new.create().status_code == 403
    assert new.request("GET", KEYS).status_code == 403
    api_user.deployment.move_clock(timedelta(hours=1))
    assert new.request("GET", TASKS).status_code == 401


def test_the_list_of_keys_contains_no_secret(api_user: ApiUser) -> None:
    api_user.request("GET", TASKS)

    [listed] = api_user.request("GET", KEYS).json()

    row = api_user.deployment.one("SELECT * FROM api_keys")
    assert listed["id"] == key_id_of(api_user.key)
    assert listed["last_used_at"] is not None
    assert set(listed) == {*row} - {"hash", "user_id", "lifetime"}
    assert row["hash"] not in json.dumps(listed)
    assert api_user.key.split("_")[3] not in json.dumps(listed)


def test_keys_of_other_users_are_not_listed(api_user: ApiUser) -> None:
    other_user = api_user.new_user()

    mine, theirs = (
        {key["id"] for key in caller.request("GET", KEYS).json()}
        for caller in (api_user, other_user)
    )

    assert mine == {key_id_of(api_user.key)}
    assert theirs == {key_id_of(other_user.key)}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": ""},
        {"name": "x" * 101},
        {"name": "a\0b"},
        {"name": "a", "scopes": []},
        {"name": "a", "scopes": ["tasks:read", "everything"]},
        {"name": "a", "scopes": "tasks:read"},
        {"name": "a", "expires_in_seconds": 59},
        {"name": "a", "expires_in_seconds": 10**12},
        {"name": "a", "user_id": "6d0c1b1e-0000-4000-8000-000000000000"},
        {"name": "a", "is_admin": True},
        {"name": "a", "hash": "0"},
    ],
)
def test_an_invalid_key_request_is_refused_by_field(
    api_user: ApiUser, body: dict[str, object]
) -> None:
    answer = api_user.request("POST", KEYS, json=body)

    assert answer.status_code in {400, 422}, answer.text
    [wrong] = answer.json()["errors"]
    assert wrong["field"]
    assert wrong["legal"]
    assert len(api_user.request("GET", KEYS).json()) == 1


def test_the_error_for_an_unknown_scope_lists_all_scopes(api_user: ApiUser) -> None:
    answer = api_user.request("POST", KEYS, json={"name": "a", "scopes": ["task:read"]})

    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
    assert answer.json()["errors"][0]["legal"] == ", ".join(SCOPES)
    with pytest.raises(InvalidRequest, match="is no scope"):
        issue(api_user.deployment.app, api_user.user, name="a", scopes=("task:read",))
    with pytest.raises(InvalidRequest, match="none is named"):
        checked(())


def test_a_key_cannot_create_one_with_more_scopes(api_user: ApiUser) -> None:
    weak = as_key(
        api_user,
        issue(
            api_user.deployment.app, api_user.user, name="weak", scopes=("keys:write", "tasks:read")
        ),
    )

    refused = [
        weak.request("POST", KEYS, json={"name": "strong"}),
        weak.request("POST", KEYS, json={"name": "strong", "scopes": ["tasks:write"]}),
        weak.request("POST", KEYS, json={"name": "strong", "scopes": ["admin"]}),
        weak.request("POST", f"{KEYS}/{key_id_of(api_user.key)}/rotate"),
    ]

    assert [answer.status_code for answer in refused] == [400, 400, 400, 404]
    assert weak.request("POST", KEYS, json={"name": "like", "scopes": ["tasks:read"]}).is_success


def test_a_rotated_key_and_its_replacement_are_both_valid_for_the_grace(api_user: ApiUser) -> None:
    old = api_user.key

    made = api_user.request("POST", f"{KEYS}/{key_id_of(old)}/rotate", json={"grace_seconds": 600})

    assert made.status_code == 201, made.text
    new = as_key(api_user, made.json()["key"])
    assert [caller.request("GET", TASKS).status_code for caller in (api_user, new)] == [200, 200]
    listed = {key["id"]: key for key in new.request("GET", KEYS).json()}
    assert listed[key_id_of(old)]["replaced_by"] == made.json()["id"]
    assert listed[made.json()["id"]]["expires_at"] is None
    api_user.deployment.move_clock(timedelta(seconds=601))
    assert [caller.request("GET", TASKS).status_code for caller in (api_user, new)] == [401, 200]


def test_a_key_is_rotated_once_and_only_by_its_owner(api_user: ApiUser) -> None:
    other_user = api_user.new_user()
    path = f"{KEYS}/{key_id_of(api_user.key)}/rotate"

    foreign, first, again = (
        caller.request("POST", path) for caller in (other_user, api_user, api_user)
    )

    assert [each.status_code for each in (foreign, first, again)] == [404, 201, 404]
    assert foreign.content == again.content
    assert api_user.request("POST", f"{KEYS}/{first.json()['id']}/rotate").status_code == 201


def test_a_replacement_expires_when_the_old_key_would_have(deployment: Deployment) -> None:
    user = deployment.user()
    old = issue(deployment.app, user, name="monthly", expires_in=timedelta(days=30))
    deployment.move_clock(timedelta(days=29))

    new = rotate(deployment.app, key_id_of(old), grace=timedelta(days=7))

    # The old key expires as before: a grace does not extend it.
    deployment.move_clock(timedelta(days=2))
    assert authenticate(deployment.app, old) is None
    assert authenticate(deployment.app, new) is not None
    deployment.move_clock(timedelta(days=28))
    assert authenticate(deployment.app, new) is None


def test_a_grace_out_of_range_is_refused(deployment: Deployment) -> None:
    key = issue(deployment.app, deployment.user(), name="a")

    for grace in (timedelta(seconds=-1), timedelta(days=31)):
        with pytest.raises(InvalidRequest, match="grace"):
            rotate(deployment.app, key_id_of(key), grace=grace)
    with pytest.raises(KeyNotFound):
        rotate(deployment.app, "000000000000")


def test_a_key_can_revoke_itself(api_user: ApiUser) -> None:
    path = f"{KEYS}/{key_id_of(api_user.key)}"

    revoked = api_user.request("DELETE", path)

    assert revoked.json() == {"id": key_id_of(api_user.key), "revoked": True}
    assert api_user.request("GET", TASKS).status_code == 401


def test_the_number_of_keys_per_user_is_limited(
    api_user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "MAX_KEYS", 2)
    assert api_user.request("POST", KEYS, json={"name": "second"}).status_code == 201

    refused = api_user.request("POST", KEYS, json={"name": "third"})

    assert refused.status_code == 400
    assert "revoke one" in refused.json()["errors"][0]["legal"]


def test_rotation_respects_the_limit_of_keys(
    api_user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "MAX_KEYS", 2)
    second = api_user.request("POST", f"{KEYS}/{key_id_of(api_user.key)}/rotate").json()["id"]

    third = api_user.request("POST", f"{KEYS}/{second}/rotate")
    in_its_place = api_user.request("POST", f"{KEYS}/{second}/rotate", json={"grace_seconds": 0})

    assert (third.status_code, in_its_place.status_code) == (400, 201)
    assert "rotate without grace" in third.json()["errors"][0]["legal"]


def test_concurrent_creates_respect_the_limit_of_keys(
    deployment: Deployment, connect: Callable[..., Db], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "MAX_KEYS", 2)
    user = deployment.user()
    first = issue(deployment.app, user, name="first")
    as_admin = partial(connect, role=ADMIN)
    rivals = [
        Rival(as_admin, "maker", partial(issue, name="second"), user),
        Rival(as_admin, "another maker", partial(issue, name="third"), user),
        Rival(as_admin, "rotator", rotate, key_id_of(first)),
    ]

    with held_lane(connect, user):
        queue_up(connect, rivals)

    assert rivals[0].answer()
    for late in rivals[1:]:
        with pytest.raises(InvalidRequest, match="no more keys"):
            late.answer()
    assert len(list_keys(deployment.app, user)) == 2


@pytest.mark.parametrize("way", ["made", "made shorter", "rotates itself", "rotates another"])
def test_a_key_cannot_create_one_that_expires_later(api_user: ApiUser, way: str) -> None:
    key = issue(api_user.deployment.app, api_user.user, name="short", expires_in=timedelta(hours=1))
    short = as_key(api_user, key)
    api_user.deployment.move_clock(timedelta(minutes=30))

    if way.startswith("made"):
        seconds = 600 if way == "made shorter" else None
        made = short.request("POST", KEYS, json={"name": "ever", "expires_in_seconds": seconds})
    else:
        old = key if way == "rotates itself" else api_user.key
        made = short.request("POST", f"{KEYS}/{key_id_of(old)}/rotate", json={"grace_seconds": 60})

    assert made.status_code == 201, made.text
    new = as_key(api_user, made.json()["key"])
    steps = [timedelta(minutes=9), timedelta(minutes=20), timedelta(minutes=2)]
    told = []
    for step in steps:
        api_user.deployment.move_clock(step)
        told.append(new.request("GET", TASKS).status_code)
    assert told == ([200, 401, 401] if way == "made shorter" else [200, 200, 401])


def test_an_admin_manages_keys_of_all_users(api_user: ApiUser) -> None:
    root = api_user.new_user(is_admin=True)
    name = api_user.deployment.one("SELECT name FROM users WHERE id = :id", id=api_user.user)[
        "name"
    ]
    base = "/api/v1/admin"

    made = root.request("POST", f"{base}/users/{name}/keys", json={"name": "given"}).json()
    listed = root.request("GET", f"{base}/users/{api_user.user}/keys").json()
    rotated = root.request("POST", f"{base}/keys/{made['id']}/rotate")
    ended = root.request("DELETE", f"{base}/keys/{key_id_of(api_user.key)}")

    assert as_key(api_user, made["key"]).request("GET", TASKS).status_code == 200
    assert {key["id"] for key in listed} == {made["id"], key_id_of(api_user.key)}
    assert rotated.status_code == 201
    assert ended.status_code == 200
    assert api_user.request("GET", TASKS).status_code == 401
    assert root.request("GET", f"{base}/users/nobody/keys").json()["code"] == "USER_NOT_FOUND"
    assert root.request("DELETE", f"{base}/keys/000000000000").json()["code"] == "KEY_NOT_FOUND"


@pytest.mark.usefixtures("admin_cli")
def test_keys_are_rotated_at_the_terminal(deployment: Deployment) -> None:
    user = deployment.user(name="ada")
    old = issue(deployment.app, user, name="laptop", scopes=("tasks:read",))

    made = run("keys", "rotate", key_id_of(old), "--grace", "1h", "--json")
    again = run("key", "rotate", key_id_of(old))
    listed = run("keys", "list", "ada")

    new = json.loads(made.stdout)
    assert new["replaces"] == key_id_of(old)
    caller = authenticate(deployment.app, new["key"])
    assert caller is not None
    assert caller.scopes == ("tasks:read",)
    assert again.exit_code == Code.FAILED
    assert f"then {new['id']}" in listed.stdout


@pytest.mark.usefixtures("admin_cli")
def test_the_terminal_refuses_an_unknown_scope_with_those_there_are(deployment: Deployment) -> None:
    deployment.user(name="ada")

    refused = run("key", "issue", "ada", "--scope", "task:read")

    assert refused.exit_code == Code.USAGE
    assert all(scope in refused.stderr for scope in SCOPES)
