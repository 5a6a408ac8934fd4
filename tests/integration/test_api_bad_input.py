"""Invalid bodies are refused with the name of the field, and nothing is changed."""

import json
from typing import Any

from overnight.models.json_values import MAX_BYTES
from tests.support.api_user import TASKS, serve_api
from tests.support.deployment import Deployment

JSON = "application/json"


def nested(levels: int) -> str:
    return '{"title": "a", "payload": ' + '{"a":' * levels + "1" + "}" * levels + "}"


def titled(**fields: Any) -> str:
    return json.dumps({"title": "a task", **fields})


# (request body, status of the response, field in the error)
UNREADABLE: list[tuple[str | bytes, int, str]] = [
    ("", 422, "body"),
    ("{", 400, "body"),
    ("{'title': 'a'}", 400, "body"),
    ('{"title": "a",}', 400, "body"),
    ("[]", 422, "body"),
    ("null", 422, "body"),
    ("7", 422, "body"),
    ('"title"', 422, "body"),
    (b'{"title": "\xff"}', 400, "body"),
    (b"\x00\x01\x02", 400, "body"),
    ('{"title": "a", "payload": {"a": ' + "9" * 5000 + "}}", 400, "body"),
    ("[" * 100_000, 400, "body"),
    (nested(500), 400, "body"),
    ("[" + "0," * 450_000 + "0]", 400, "body"),
]
BAD_FIELDS: list[tuple[str, str]] = [
    ("{}", "title"),
    ('{"title": null}', "title"),
    ('{"title": ""}', "title"),
    ('{"title": 7}', "title"),
    ('{"title": ["a"]}', "title"),
    (json.dumps({"title": "x" * 501}), "title"),
    ('{"title": "a\\u0000b"}', "title"),
    ('{"title": "\\ud800"}', "title"),
    (titled(description="\x00"), "description"),
    (titled(description=7), "description"),
    (titled(project_id="\x00"), "project_id"),
    (titled(project_id=""), "project_id"),
    (titled(priority=0), "priority"),
    (titled(priority=5), "priority"),
    (titled(priority="high"), "priority"),
    (titled(priority="3"), "priority"),
    (titled(priority=True), "priority"),
    (titled(priority=2.5), "priority"),
    (titled(priority=None), "priority"),
    (titled(priority=10**400), "priority"),
    (titled(priority_score=-1), "priority_score"),
    (titled(priority_score=101), "priority_score"),
    (titled(priority_score=2**63), "priority_score"),
    (titled(priority_boost_per_minute=-1), "priority_boost_per_minute"),
    ('{"title": "a", "priority_boost_per_minute": NaN}', "priority_boost_per_minute"),
    ('{"title": "a", "priority_boost_per_minute": 1e999}', "priority_boost_per_minute"),
    (titled(type=""), "type"),
    (titled(type="x" * 101), "type"),
    (titled(type="e\x00cho"), "type"),
    (titled(payload=[]), "payload"),
    (titled(payload="text"), "payload"),
    (titled(payload={"a": {"b": "\x00"}}), "payload"),
    (titled(payload={"\x00": 1}), "payload"),
    ('{"title": "a", "payload": {"a": "\\udc00"}}', "payload"),
    ('{"title": "a", "payload": {"\\udc00": 1}}', "payload"),
    ('{"title": "a", "payload": {"a": NaN}}', "payload"),
    ('{"title": "a", "payload": {"a": -Infinity}}', "payload"),
    ('{"title": "a", "payload": {"a": 1e999}}', "payload"),
    (titled(payload={"a": 2**64}), "payload"),
    (titled(payload={"a": -(10**100)}), "payload"),
    (titled(payload={"a": "x" * MAX_BYTES}), "payload"),
    (nested(33), "payload"),
    (nested(90), "payload"),
    (titled(spec={"env": "\x00"}), "spec"),
    (titled(prompt="\x00"), "prompt"),
    (titled(prompt="a", spec={"prompt": "b"}), "body"),
    (titled(timeout_seconds=0), "timeout_seconds"),
    (titled(timeout_seconds=-5), "timeout_seconds"),
    (titled(timeout_seconds=2**31), "timeout_seconds"),
    (titled(timeout_seconds="30m"), "timeout_seconds"),
    (titled(max_duration_sec=0), "max_duration_sec"),
    (titled(max_attempts=0), "max_attempts"),
    (titled(max_attempts=1000), "max_attempts"),
    (titled(retry="exponential"), "retry"),
    (titled(retry={"strategy": "hopeful"}), "retry.strategy"),
    (titled(retry={"max_delay_sec": -1}), "retry.max_delay_sec"),
    (titled(retry={"retry_on": ["\x00"]}), "retry.retry_on.0"),
    (titled(retry={"stategy": "fixed"}), "retry.stategy"),
    (titled(required_capabilities="code"), "required_capabilities"),
    (titled(required_capabilities=["a"] * 21), "required_capabilities"),
    (titled(required_capabilities=["a", 7]), "required_capabilities.1"),
    (titled(locks=["\x00"]), "locks.0"),
    (titled(idempotency_key=""), "idempotency_key"),
    (titled(idempotency_key="x" * 256), "idempotency_key"),
    (titled(idempotency_key="a\x00"), "idempotency_key"),
    (titled(deadline_at="tomorrow"), "deadline_at"),
    (titled(deadline_at="2030-01-01T00:00:00"), "deadline_at"),
    (titled(deadline_at="9999-12-31T23:59:59-14:00"), "deadline_at"),
    (titled(deadline_at=10**30), "deadline_at"),
    (titled(tags=["\x00"]), "tags.0"),
    (titled(tags=[["a"]]), "tags.0"),
    (titled(max_cost_usd=10**9), "max_cost_usd"),
    (titled(max_cost_usd="1"), "max_cost_usd"),
    (titled(created_by="root"), "created_by"),
    (titled(source="a b"), "source"),
    (titled(user_id="x"), "user_id"),
    (titled(plan_tier="enterprise"), "plan_tier"),
    (titled(state="completed"), "state"),
    ('{"title": "a", "\\ud800": 1}', "body"),
]


def test_every_bad_body_is_refused_with_the_name_of_its_field(
    deployment: Deployment, database_url: str
) -> None:
    wrong: list[object] = []
    cases = UNREADABLE + [(body, 422, field) for body, field in BAD_FIELDS]
    with serve_api(deployment, database_url) as api_user:
        for body, status, field in cases:
            answer = api_user.request("POST", TASKS, content=body, headers={"Content-Type": JSON})
            problem = answer.json()
            fields = [error["field"] for error in problem["errors"]]
            if (
                (answer.status_code, fields) != (status, [field])
                or problem["code"] != "INVALID_REQUEST"
                or problem["status"] != status
                or answer.headers["content-type"] != "application/problem+json"
            ):
                wrong.append((body[:80], answer.status_code, answer.text[:300]))

    assert wrong == []
    assert deployment.one("SELECT count(*) AS n FROM tasks")["n"] == 0
    assert deployment.one("SELECT count(*) AS n FROM dags")["n"] == 0


def test_the_error_for_an_unknown_field_suggests_the_nearest_name(
    deployment: Deployment, database_url: str
) -> None:
    with serve_api(deployment, database_url) as api_user:
        answer = api_user.create(prioritty=1)

    [error] = answer.json()["errors"]
    assert error["field"] == "prioritty"
    assert "did you mean priority?" in error["message"]


def test_the_error_for_a_wrong_field_lists_legal_values(
    deployment: Deployment, database_url: str
) -> None:
    with serve_api(deployment, database_url) as api_user:
        answer = api_user.create(priority=9, retry={"strategy": "hopeful"}, tags=[""])

    legal = {error["field"]: error["legal"] for error in answer.json()["errors"]}
    assert legal["priority"] == "a whole number from 1 to 4"
    assert legal["retry.strategy"] == "one of exponential, quadratic, fixed, immediate"
    assert legal["tags.0"] == "text from 1 to 100 characters"


def test_a_body_that_is_not_declared_as_json_is_refused(
    deployment: Deployment, database_url: str
) -> None:
    with serve_api(deployment, database_url) as api_user:
        answers = [
            api_user.request("POST", TASKS, content=titled(), headers={"Content-Type": kind})
            for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data")
        ]

    assert [answer.status_code for answer in answers] == [422, 422, 422]
    assert "application/json" in answers[0].json()["errors"][0]["legal"]


def test_a_body_above_a_megabyte_is_refused_declared_or_not(
    deployment: Deployment, database_url: str
) -> None:
    body = titled(description="x" * 1024 * 1024).encode()

    with serve_api(deployment, database_url) as api_user:
        declared = api_user.request("POST", TASKS, content=body, headers={"Content-Type": JSON})
        streamed = api_user.request(
            "POST",
            TASKS,
            content=iter([body[:600_000], body[600_000:]]),
            headers={"Content-Type": JSON},
        )

    assert [declared.status_code, streamed.status_code] == [413, 413]
    assert declared.json()["code"] == "BODY_TOO_LARGE"
    assert declared.headers["content-type"] == "application/problem+json"


def test_values_at_the_limits_are_returned_unchanged(
    deployment: Deployment, database_url: str
) -> None:
    payload = {
        "deep": json.loads("[" * 30 + "]" * 30),
        "large": 2**64 - 1,
        "small": -(2**63),
        "tiny": 5e-324,
        "text": "naïve 日本 🌙 \x1f \x7f ' \" \\ %s :x {}",
        "": "empty key",
    }
    with serve_api(deployment, database_url) as api_user:
        task = api_user.created(title="' OR 1=1; --", payload=payload)
        again = api_user.request("GET", f"{TASKS}/{task['id']}").json()

    assert again["payload"] == payload
    assert again["title"] == "' OR 1=1; --"
