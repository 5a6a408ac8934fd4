"""The OpenAPI document describes what the API does."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import jsonschema  # type: ignore[import-untyped]
import pytest

from overnight_server.api.http.openapi import EXAMPLES
from overnight_server.domain.ids import parse_task
from tests.support.api_user import ApiUser, serve_api
from tests.support.deployment import Deployment
from tests.support.live_api import serve
from tests.support.seeded_data import seed

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        yield api_user


@pytest.fixture
def described(api_user: ApiUser) -> dict[str, Any]:
    document: dict[str, Any] = api_user.openapi()
    return document


def _resolved(schema: dict[str, Any], described: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "components": described["components"]}


def test_every_operation_documents_authentication_and_errors(described: dict[str, Any]) -> None:
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            name = f"{method} {path}"
            assert {"4XX", "5XX"} <= set(operation["responses"]), name
            assert "422" not in operation["responses"], name
            assert bool(operation["security"]) == (path not in {"/health", "/ready"}), name


def test_error_responses_match_the_openapi_document(
    api_user: ApiUser, described: dict[str, Any]
) -> None:
    problem = _resolved(described["components"]["schemas"]["Problem"], described)
    answers = [
        api_user.http.get("/api/v1/tasks"),
        api_user.request("GET", "/nowhere"),
        api_user.request("PUT", "/api/v1/tasks"),
        api_user.request("POST", "/api/v1/tasks", json={}),
        api_user.request("POST", "/api/v1/tasks", content=b"{", headers=JSON),
        api_user.request("GET", "/api/v1/tasks/task_00000000000000000000000000"),
        api_user.request("GET", "/api/v1/tasks", params={"limit": 101}),
    ]

    for answer in answers:
        assert answer.headers["content-type"] == "application/problem+json"
        jsonschema.validate(answer.json(), problem)
    assert [answer.status_code for answer in answers] == [401, 404, 405, 422, 400, 404, 400]


def test_405_lists_all_methods_of_a_path(api_user: ApiUser, described: dict[str, Any]) -> None:
    admin = api_user.new_user(is_admin=True)
    for path, methods in described["paths"].items():
        answer = admin.request("OPTIONS", path)
        allowed = set(answer.headers["allow"].lower().split(", "))

        assert answer.status_code == 405, path
        assert allowed == set(methods), path


def test_everything_in_the_openapi_document_has_a_description(described: dict[str, Any]) -> None:
    bare = []
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            told = [(operation, "")] + [
                (parameter, f" {parameter['name']}")
                for parameter in operation.get("parameters", ())
            ]
            told += [
                (response, f" {status}") for status, response in operation["responses"].items()
            ]
            bare += [f"{method} {path}{name}" for item, name in told if not item.get("description")]
    for name, schema in described["components"]["schemas"].items():
        if not _says(schema, described):
            bare.append(name)
        bare += [
            f"{name}.{field}"
            for field, item in schema.get("properties", {}).items()
            if not _says(item, described)
        ]

    assert not bare, bare


def _says(schema: dict[str, Any], described: dict[str, Any]) -> bool:
    """Whether a schema, or the schema it refers to, has a description."""
    if "anyOf" in schema and "description" not in schema:
        return any(_says(one, described) for one in schema["anyOf"])
    name = schema.get("$ref", "").rpartition("/")[2]
    whole = described["components"]["schemas"].get(name, {})
    return bool(schema.get("description") or whole.get("description"))


def _bodies(described: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield everything that operations take and everything that they answer if all is well."""
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            bodies = {"body": operation.get("requestBody", {})} | {
                status: response
                for status, response in operation["responses"].items()
                if status.startswith("2")
            }
            for name, body in bodies.items():
                for kind, content in body.get("content", {}).items():
                    yield f"{method} {path} {name} {kind}", content


def test_every_body_has_an_example_that_fits_it(described: dict[str, Any]) -> None:
    bodies = dict(_bodies(described))

    assert len(bodies) > 100
    assert not [name for name, content in bodies.items() if "example" not in content]
    for content in bodies.values():
        jsonschema.validate(content["example"], _resolved(content["schema"], described))


def test_every_example_fits_its_schema(described: dict[str, Any]) -> None:
    schemas = described["components"]["schemas"]
    shown = {name: schema["examples"] for name, schema in schemas.items() if "examples" in schema}

    assert len(shown) > 70
    for name, examples in shown.items():
        for example in examples:
            jsonschema.validate(example, _resolved(schemas[name], described))


def test_response_examples_have_every_field(described: dict[str, Any]) -> None:
    """A field that was added later shows in the example too."""
    schemas = described["components"]["schemas"]
    answered = {
        name
        for place, content in _bodies(described)
        if " body " not in place
        for name in _names(content["schema"])
    }

    assert len(answered) > 50
    for name in answered:
        properties = schemas[name]["properties"].keys()
        assert schemas[name]["examples"][0].keys() >= properties, name


def _names(schema: dict[str, Any]) -> list[str]:
    """Return the schema name of a body, or of the items of a list."""
    name = schema.get("items", schema).get("$ref", "").rpartition("/")[2]
    return [name] if name else []


def test_every_example_belongs_to_a_schema(described: dict[str, Any]) -> None:
    assert json.loads(EXAMPLES.read_text()).keys() <= described["components"]["schemas"].keys()


def test_operations_accept_their_examples(
    deployment: Deployment, database_url: str, described: dict[str, Any]
) -> None:
    sent = []
    with serve(deployment, database_url) as served, httpx2.Client(base_url=served.url) as http:
        seeded_data = seed(served, is_admin=True)
        names = {
            **{name: values[0] for name, values in seeded_data.own.items()},
            "user_id": seeded_data.foreign["user_id"][0],
        }
        for path, methods in described["paths"].items():
            for method, operation in methods.items():
                if "requestBody" not in operation:
                    continue
                example = operation["requestBody"]["content"]["application/json"]["example"]
                ids, key = dict(names), served.key
                if "runs" in operation["tags"]:
                    ids["task_id"], key = seeded_data.runs[path.rpartition("/")[2]]
                elif "/approvals/" in path:
                    ids["task_id"] = seeded_data.awaiting[int("/admin/" in path)]
                elif "/dead-letters/" in path:
                    # A dead letter can be resolved once; the user and the admin resolve one each.
                    ids["task_id"] = seeded_data.dead_lettered[int("/admin/" in path)]
                elif path.endswith("/tasks/{task_id}/retry"):
                    ids["task_id"] = seeded_data.dead_lettered[2]
                elif path.endswith("/overrule"):
                    ids["task_id"] = seeded_data.dead_lettered[3]
                    deployment.run(
                        "UPDATE attempts SET rejected = CAST(:kept AS jsonb) WHERE task_id = :id",
                        kept='{"output": 1}',
                        id=parse_task(seeded_data.dead_lettered[3]),
                    )
                if path.endswith("/suspend"):
                    example = {**example, "tasks": [_spawned(http, *seeded_data.runs["suspend"])]}
                if "/admin/keys/" in path:
                    ids["key_id"] = seeded_data.foreign["key_id"][0]
                headers = {"Authorization": f"Bearer {key}", "If-Match": "*"}
                url = path.format(**ids)
                answer = http.request(method, url, headers=headers, json=example, timeout=30)
                documented = operation["responses"]

                assert answer.is_success, f"{method} {path}: {answer.text}"
                assert str(answer.status_code) in documented, f"{method} {path}"
                sent.append(path)

    assert len(sent) > 28


def _spawned(http: httpx2.Client, task: str, token: str) -> str:
    """Have a run spawn a child that it can wait for."""
    headers = {"Authorization": f"Bearer {token}"}
    body = {"task": {"title": "a child"}}
    answer = http.post(f"/api/v1/tasks/{task}/spawn", headers=headers, json=body)
    assert answer.is_success, answer.text
    child: str = answer.json()["id"]
    return child
