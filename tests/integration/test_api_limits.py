"""Rate limits, limits on sizes, and the setting no_auth."""

import gzip
import json
from collections.abc import Iterator
from uuid import uuid4

import pytest
from fastapi.testclient import TestClient

from overnight_server.api.main import create_app
from overnight_server.control.keys import issue
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.settings import load
from tests.support import logins
from tests.support.api_user import DEAD_REDIS, NO_FILE, TASKS, ApiUser, serve_api
from tests.support.deployment import Deployment
from tests.support.operations import operations
from tests.support.pull_agent import register_agent


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        yield api_user


def _prefix() -> str:
    return f"test-{uuid4().hex[:8]}:"


def test_a_caller_above_the_rate_limit_gets_retry_after(
    deployment: Deployment, database_url: str, redis: EmbeddedRedis
) -> None:
    slow = {
        "OVERNIGHT_REDIS_URL": redis.url,
        "OVERNIGHT_REDIS_KEY_PREFIX": _prefix(),
        "OVERNIGHT_RATE_LIMIT_PER_SECOND": "0.01",
        "OVERNIGHT_RATE_LIMIT_BURST": "3",
    }
    with serve_api(deployment, database_url, **slow) as api_user:
        answers = [api_user.request("GET", TASKS) for _ in range(4)]
        other = api_user.new_user().request("GET", TASKS)

    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    refused = answers[-1]
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["code"] == "TOO_MANY_REQUESTS"
    assert 1 <= int(refused.headers["retry-after"]) <= 100
    # Every user has a bucket of their own.
    assert other.status_code == 200


def test_all_keys_of_a_user_share_one_rate_limit(
    deployment: Deployment, database_url: str, redis: EmbeddedRedis
) -> None:
    slow = {
        "OVERNIGHT_REDIS_URL": redis.url,
        "OVERNIGHT_REDIS_KEY_PREFIX": _prefix(),
        "OVERNIGHT_RATE_LIMIT_PER_SECOND": "0.01",
        "OVERNIGHT_RATE_LIMIT_BURST": "3",
    }
    with serve_api(deployment, database_url, **slow) as api_user:
        keys = [issue(deployment.app, api_user.user, name=f"key {n}") for n in range(4)]
        statuses = [
            api_user.http.get(TASKS, headers={"X-API-Key": key}).status_code for key in keys
        ]

    assert statuses == [200, 200, 200, 429]


def test_an_invalid_key_is_not_counted(
    deployment: Deployment, database_url: str, redis: EmbeddedRedis
) -> None:
    slow = {
        "OVERNIGHT_REDIS_URL": redis.url,
        "OVERNIGHT_REDIS_KEY_PREFIX": _prefix(),
        "OVERNIGHT_RATE_LIMIT_PER_SECOND": "0.01",
        "OVERNIGHT_RATE_LIMIT_BURST": "1",
    }
    with serve_api(deployment, database_url, **slow) as api_user:
        damaged = {"Authorization": f"Bearer {api_user.key[:-1]}"}
        for _ in range(5):
            assert api_user.http.get(TASKS, headers=damaged).status_code == 401

        assert api_user.request("GET", TASKS).status_code == 200


def test_an_invalid_claim_token_does_not_count_against_the_run(
    deployment: Deployment, database_url: str, redis: EmbeddedRedis
) -> None:
    slow = {
        "OVERNIGHT_REDIS_URL": redis.url,
        "OVERNIGHT_REDIS_KEY_PREFIX": _prefix(),
        "OVERNIGHT_RATE_LIMIT_PER_SECOND": "0.01",
        "OVERNIGHT_RATE_LIMIT_BURST": "7",
    }
    with serve_api(deployment, database_url, **slow) as api_user:
        api_user.created()
        laptop = register_agent(api_user)
        ended = laptop.begin()
        laptop.report(ended, "release")
        work = laptop.begin()
        *_, epoch, digest = work["token"].split("_")
        invented = work["token"].replace(digest, "0" * len(digest))
        of_nobody = f"overnight_claim_{'0' * 32}_{epoch}_{digest}"
        shown = [{**work, "token": token} for token in (invented, of_nobody, ended["token"])]
        statuses = [
            [laptop.report(item, "heartbeat").status_code for _ in range(8)] for item in shown
        ]

        beats = [laptop.report(work, "heartbeat").status_code for _ in range(7)]

    assert work["task_id"] == ended["task_id"]
    assert statuses[:2] == [[401] * 8, [404] * 8]
    # The previous claim has its own bucket, which its start and its release used.
    assert statuses[2] == [409] * 5 + [429] * 3
    # The start came out of the same bucket.
    assert beats == [200] * 6 + [429]


def test_every_response_reports_the_requests_left(
    deployment: Deployment, database_url: str, redis: EmbeddedRedis
) -> None:
    tight = {
        "OVERNIGHT_REDIS_URL": redis.url,
        "OVERNIGHT_REDIS_KEY_PREFIX": _prefix(),
        "OVERNIGHT_RATE_LIMIT_PER_SECOND": "0.01",
        "OVERNIGHT_RATE_LIMIT_BURST": "3",
    }
    with serve_api(deployment, database_url, **tight) as api_user:
        paths = (TASKS, f"{TASKS}/nothing", "/api/v1/events?task_id=nothing", TASKS)
        answers = [api_user.request("GET", path) for path in paths]
        anonymous = api_user.http.get(TASKS)

    assert [answer.status_code for answer in answers] == [200, 404, 404, 429]
    assert {answer.headers["ratelimit-policy"] for answer in answers} == {'"requests";q=3;w=300'}
    headers = [answer.headers["ratelimit"] for answer in answers]
    assert headers[:3] == [f'"requests";r={left};t={100 * (3 - left)}' for left in (2, 1, 0)]
    assert headers[3] == f'"requests";r=0;t={answers[3].headers["retry-after"]}'
    assert "ratelimit" not in anonymous.headers


def test_a_submit_goes_through_while_redis_is_down(
    deployment: Deployment, database_url: str
) -> None:
    tight = {"OVERNIGHT_RATE_LIMIT_PER_SECOND": "0.01", "OVERNIGHT_RATE_LIMIT_BURST": "1"}
    with serve_api(deployment, database_url, **tight) as api_user:
        assert [api_user.create().status_code for _ in range(3)] == [201] * 3


@pytest.mark.parametrize(("limit", "status"), [(0, 400), (1, 200), (100, 200), (101, 400)])
def test_a_page_has_at_most_a_hundred(api_user: ApiUser, limit: int, status: int) -> None:
    for path in (TASKS, f"{TASKS}/forecast"):
        assert api_user.request("GET", f"{path}?limit={limit}").status_code == status


def test_every_list_has_a_limit(api_user: ApiUser) -> None:
    """Every `limit` that the API describes has a largest value, those of later routes too."""
    described = api_user.openapi()
    loose = [
        f"{method} {path}"
        for path, methods in described["paths"].items()
        for method, detail in methods.items()
        for parameter in detail.get("parameters", ())
        if parameter["name"] == "limit" and parameter["schema"].get("maximum", 10**9) > 1000
    ]

    assert operations(api_user)
    assert not loose


@pytest.mark.parametrize(("depth", "status"), [(31, 201), (33, 422)])
def test_a_payload_nested_too_deeply_is_refused(api_user: ApiUser, depth: int, status: int) -> None:
    payload: dict[str, object] = {}
    for _ in range(depth - 1):
        payload = {"a": payload}

    assert api_user.create(payload=payload).status_code == status


def test_a_compressed_body_is_not_decompressed(api_user: ApiUser) -> None:
    """A small body that expands to gigabytes would use up the memory."""
    compressed = gzip.compress(json.dumps({"title": "a task"}).encode())
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}

    answer = api_user.request("POST", TASKS, content=compressed, headers=headers)

    assert answer.status_code == 400


def test_every_response_has_the_security_headers(api_user: ApiUser) -> None:
    for answer in (
        api_user.request("GET", TASKS),
        api_user.http.get(TASKS),
        api_user.request("GET", "/nowhere"),
    ):
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert "access-control-allow-origin" not in answer.headers
        assert "server" not in answer.headers


@pytest.fixture
def api_without_keys(deployment: Deployment, database_url: str) -> Iterator[TestClient]:
    """An API on this machine that serves one user without keys."""
    deployment.user(name="ada")
    settings = load(
        {
            "OVERNIGHT_DATABASE_URL": logins.for_api(database_url),
            "OVERNIGHT_REDIS_URL": DEAD_REDIS,
            "OVERNIGHT_NO_AUTH": "ada",
        },
        dotenv=NO_FILE,
    )
    with TestClient(create_app(settings), base_url="http://127.0.0.1:8000") as http:
        yield http


def test_no_auth_authenticates_the_configured_user(
    api_without_keys: TestClient, deployment: Deployment
) -> None:
    made = api_without_keys.post(TASKS, json={"title": "mine"})

    assert made.status_code == 201
    owner = "SELECT u.name FROM tasks t JOIN users u ON u.id = t.user_id"
    assert deployment.one(owner) == {"name": "ada"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:8000"}, 200),
        ({"Host": "[::1]:8000"}, 200),
        ({"Origin": "http://127.0.0.1:8000"}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        # A page of another program on this machine.
        ({"Origin": "http://127.0.0.1:3000"}, 401),
        ({"Origin": "http://localhost:8000"}, 401),
        ({"Origin": "https://127.0.0.1:8000"}, 401),
        ({"Sec-Fetch-Site": "same-site"}, 401),
        ({"Sec-Fetch-Site": "cross-site"}, 401),
        # A page elsewhere that had its own name answered with this machine's address.
        ({"Host": "evil.example"}, 401),
        ({"Host": "127.0.0.1.evil.example"}, 401),
        ({"Host": ""}, 401),
        # A page elsewhere that calls this machine by its address.
        ({"Origin": "https://evil.example"}, 401),
        ({"Origin": "null"}, 401),
        # A key that is sent must be valid.
        ({"Authorization": "Bearer nonsense"}, 401),
        ({"X-API-Key": "nonsense"}, 401),
    ],
)
def test_no_auth_accepts_requests_from_this_machine_only(
    api_without_keys: TestClient, headers: dict[str, str], status: int
) -> None:
    assert api_without_keys.get(TASKS, headers=headers).status_code == status


def test_no_auth_with_an_unknown_user_refuses_requests(
    api_without_keys: TestClient, deployment: Deployment
) -> None:
    deployment.run("UPDATE users SET name = 'bob'")

    assert api_without_keys.get(TASKS).status_code == 401
