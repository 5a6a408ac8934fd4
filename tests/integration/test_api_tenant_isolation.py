"""Every operation in the OpenAPI document: who may call it, and on whose objects."""

import json
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from httpx2 import Response

from overnight_server.control.keys import issue, key_id_of, revoke
from overnight_server.domain.ids import (
    ArtifactId,
    new_agent_id,
    new_bulk_id,
    new_dag_id,
    new_hook_id,
    new_rule_id,
    new_schedule_id,
    new_task_id,
    new_trigger_id,
    parse_hook,
    parse_task,
    show_artifact,
    show_bulk,
    show_dag,
    show_hook,
    show_rule,
    show_schedule,
    show_task,
    show_trigger,
)
from overnight_server.intake.new_graph import NewTask
from overnight_server.intake.submit import submit_graph
from overnight_server.local.redis import EmbeddedRedis
from tests.support.api_user import ApiUser, serve_api
from tests.support.deployment import LOOSE, Deployment
from tests.support.notifications import add_channel
from tests.support.operations import Operation, operations
from tests.support.pull_agent import register_agent


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        yield api_user


# What a key that may list keys can call.
NEED_NO_OTHER_SCOPE = {"GET /api/v1/keys", "GET /api/v1/openapi.json"}


def _dag(api_user: ApiUser) -> str:
    tasks = [NewTask(title="a", type="echo"), NewTask(title="b", type="echo")]
    [first, _] = submit_graph(api_user.deployment.app, api_user.user, tasks, LOOSE, title="a graph")
    return show_dag(first.dag_id)


def _trigger(api_user: ApiUser) -> str:
    graph = {"title": "next", "tasks": [{"name": "a", "title": "a"}]}
    path = f"/api/v1/dags/{_dag(api_user)}/triggers"
    made: str = api_user.request("POST", path, json={"graph": graph}).json()["id"]
    return made


def _artifact(api_user: ApiUser) -> str:
    task = parse_task(api_user.created()["id"])
    new = uuid4()
    api_user.deployment.run(
        "INSERT INTO artifacts (id, task_id, user_id, epoch, name, kind, size, content)"
        " VALUES (:id, :t, :u, 1, 'a', 'text', 1, 'a')",
        id=new,
        t=task,
        u=api_user.user,
    )
    return show_artifact(ArtifactId(new))


def _schedule(api_user: ApiUser) -> str:
    body = {"name": f"s-{uuid4().hex}", "when": "every hour", "task": {"title": "a"}}
    made: str = api_user.request("POST", "/api/v1/schedules", json=body).json()["id"]
    return made


def _bulk(api_user: ApiUser) -> str:
    wanted = {"action": "cancel", "filter": {"tag": "none"}}
    made: str = api_user.request("POST", "/api/v1/tasks/bulk", json=wanted).json()["id"]
    return made


def _hook(api_user: ApiUser) -> str:
    wanted = {"name": f"hook-{uuid4().hex}", "preset": "generic"}
    made: str = api_user.request("POST", "/api/v1/hooks", json=wanted).json()["id"]
    return made


def _rule(api_user: ApiUser) -> str:
    wanted = {"name": f"rule-{uuid4().hex}", "figure": "retries", "above": 1}
    made: str = api_user.request("POST", "/api/v1/rules", json=wanted).json()["id"]
    return made


def _delivery(api_user: ApiUser) -> str:
    row = api_user.deployment.one(
        "INSERT INTO received_hooks (source_id, user_id, headers, body, outcome)"
        " VALUES (:h, :u, '{}', '{}', 'ignored') RETURNING id",
        h=parse_hook(_hook(api_user)),
        u=api_user.user,
    )
    return str(row["id"])


def _channel(api_user: ApiUser) -> str:
    name = f"channel-{uuid4().hex}"
    add_channel(api_user.deployment, api_user.user, name=name)
    return name


def _notification(api_user: ApiUser) -> str:
    path = f"/api/v1/notifications/channels/{_channel(api_user)}/test"
    return str(api_user.request("POST", path).json()["id"])


# For each kind of object in a path: how it is created, and an unknown id.
MAKERS: dict[str, tuple[Callable[[ApiUser], str], Callable[[], str]]] = {
    "task_id": (lambda api_user: api_user.created()["id"], lambda: show_task(new_task_id())),
    "dag_id": (_dag, lambda: show_dag(new_dag_id())),
    "trigger_id": (_trigger, lambda: show_trigger(new_trigger_id())),
    "artifact_id": (_artifact, lambda: show_artifact(ArtifactId(uuid4()))),
    "schedule_id": (_schedule, lambda: show_schedule(new_schedule_id())),
    "bulk_id": (_bulk, lambda: show_bulk(new_bulk_id())),
    "hook_id": (_hook, lambda: show_hook(new_hook_id())),
    "channel": (_channel, lambda: "no-channel"),
    "notification_id": (_notification, lambda: "999999"),
    "rule_id": (_rule, lambda: show_rule(new_rule_id())),
    "delivery_id": (_delivery, lambda: "999999"),
    # Each user has nights of their own; of a night that has not begun nobody has one.
    "day": (lambda _api_user: "9998-01-01", lambda: "9998-01-01"),
    "worker_id": (lambda _api_user: "a-worker", lambda: "no-worker"),
    # Profiles are of no user: the same unknown one for both.
    "profile": (lambda _api_user: "no-profile", lambda: "no-profile"),
    "key_id": (lambda api_user: key_id_of(api_user.key), lambda: "000000000000"),
    "row_id": (lambda _api_user: "1", lambda: "999999"),
    "finding_id": (lambda _api_user: "1", lambda: "999999"),
    "agent_id": (lambda api_user: register_agent(api_user).id, new_agent_id),
    "user_id": (
        lambda api_user: str(api_user.user),
        lambda: "6d0c1b1e-0000-4000-8000-000000000000",
    ),
}


def _traces(api_user: ApiUser) -> list[object]:
    """Return all rows of a user, without columns that change by themselves."""
    tables = ("tasks", "dags", "task_edges", "dead_letters", "pauses", "audit_log", "events")
    tables += ("bulk_operations", "schedules", "schedule_fires")
    keys = "SELECT id, name, scopes, expires_at, revoked_at, replaced_by FROM api_keys ORDER BY 1"
    return [
        *(api_user.deployment.rows(f"SELECT * FROM {table} ORDER BY 1, 2") for table in tables),
        api_user.deployment.rows(keys),
    ]


def _plain(answer: Response) -> tuple[int, bytes, dict[str, str]]:
    headers = {name: value for name, value in answer.headers.items() if name != "date"}
    return answer.status_code, answer.content, headers


def test_other_users_objects_are_not_found(api_user: ApiUser) -> None:
    other_user = api_user.new_user(max_pending=1000)
    operations_with_ids = [operation for operation in operations(api_user) if operation.ids]
    unknown = {name for item in operations_with_ids for name in item.ids} - MAKERS.keys()
    assert not unknown, f"say in MAKERS how a foreign one is made: {sorted(unknown)}"
    assert operations_with_ids

    for operation in operations_with_ids:
        foreign = {name: MAKERS[name][0](other_user) for name in operation.ids}
        nothing = {name: MAKERS[name][1]() for name in operation.ids}
        before = _traces(other_user)

        theirs, none = (operation.call(api_user, ids) for ids in (foreign, nothing))

        expected = 401 if operation.needs_claim_token else 404
        assert none.status_code == expected, f"{operation} on nothing: {none.text}"
        assert _plain(theirs) == _plain(none), str(operation)
        assert _traces(other_user) == before, f"{operation} left a trace on another user's things"


def test_the_same_operations_find_own_objects(api_user: ApiUser) -> None:
    """Else the test above would prove nothing."""
    mute = []
    for operation in operations(api_user):
        if operation.ids and not operation.is_for_admins:
            own = {name: MAKERS[name][0](api_user) for name in operation.ids}
            if "key_id" in own:
                spare = issue(api_user.deployment.app, api_user.user, name="spare")
                own["key_id"] = key_id_of(spare)
            if "day" in own:
                own["day"] = "latest"
            # Long polls are called with a wait of zero.
            answer = operation.call(api_user, own, params={"timeout": 0})
            if answer.status_code == 404:
                mute.append(str(operation))

    assert not mute


def test_every_operation_refuses_a_request_without_a_key(api_user: ApiUser) -> None:
    for operation in operations(api_user):
        path = operation.path.format(**dict.fromkeys(operation.ids, "nothing"))
        answer = api_user.http.request(operation.method, path, json=operation.body)

        expected = {200, 503} if operation.is_public else {401}
        assert answer.status_code in expected, str(operation)


def test_every_operation_refuses_a_known_key_once_it_is_revoked(api_user: ApiUser) -> None:
    """The API remembers the caller of a key; the first transaction of a request checks the key."""
    called = [operation for operation in operations(api_user) if not operation.is_public]
    own = {name: maker(api_user) for name, (maker, _) in MAKERS.items()}
    assert api_user.request("GET", "/api/v1/tasks").status_code == 200
    assert revoke(api_user.deployment.app, key_id_of(api_user.key))
    before = _traces(api_user)

    answers = {str(operation): operation.call(api_user, own) for operation in called}

    # The samples of five bodies are malformed; they are refused before any transaction.
    refusals = {401, 400, 422}
    assert {name for name, answer in answers.items() if answer.status_code not in refusals} == set()
    assert [answer.status_code for answer in answers.values()].count(401) >= len(called) - 5
    assert _traces(api_user) == before


def test_a_key_without_the_scope_is_refused_everywhere(api_user: ApiUser) -> None:
    """A key that may only list keys; admin routes respond 404 to it."""
    lister = api_user.new_user(scopes=("keys:read",))

    for operation in operations(api_user):
        if operation.is_public or str(operation) in NEED_NO_OTHER_SCOPE:
            continue
        answer = operation.call(lister)

        expected = (404, "NOT_FOUND") if operation.is_for_admins else (403, "FORBIDDEN")
        if operation.needs_claim_token:
            expected = (401, "UNAUTHENTICATED")
        assert (answer.status_code, answer.json()["code"]) == expected, str(operation)


def test_admin_operations_respond_404_to_others(api_user: ApiUser) -> None:
    nowhere = api_user.request("GET", "/api/v1/nowhere")
    for_admins = [operation for operation in operations(api_user) if operation.is_for_admins]
    limited = api_user.new_user(is_admin=True, scopes=("tasks:read", "tasks:write", "keys:write"))

    assert for_admins
    for operation in for_admins:
        for caller in (api_user, limited):
            assert _plain(operation.call(caller)) == _plain(nowhere), str(operation)


def test_no_method_or_query_tells_that_an_admin_route_exists(
    deployment: Deployment, database_url: str, redis: EmbeddedRedis
) -> None:
    counted = {"OVERNIGHT_REDIS_URL": redis.url, "OVERNIGHT_REDIS_KEY_PREFIX": f"{uuid4().hex}:"}
    with serve_api(deployment, database_url, **counted) as api_user:
        paths = {
            operation.path.format(**dict.fromkeys(operation.ids, "1")) + query
            for operation in operations(api_user)
            if operation.is_for_admins
            for query in ("", "?unknown=1")
        }
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
            for caller in (api_user, None):
                nowhere = _without_counts(_call(api_user, caller, method, "/api/v1/nowhere"))
                telling = [
                    path
                    for path in sorted(paths)
                    if _without_counts(_call(api_user, caller, method, path)) != nowhere
                ]
                assert telling == [], f"{method}: {nowhere}"
                assert nowhere[0] == (401 if caller is None else 404)


def _call(api_user: ApiUser, caller: ApiUser | None, method: str, path: str) -> Response:
    """Send a request with the key of a caller, or without one."""
    if caller is None:
        return api_user.http.request(method, path)
    return caller.request(method, path)


def _without_counts(answer: Response) -> tuple[int, bytes, dict[str, str]]:
    """Return a response without the number of requests left, which each request changes."""
    status, content, headers = _plain(answer)
    return status, content, headers | ({"ratelimit": ""} if "ratelimit" in headers else {})


def test_only_admins_see_admin_routes_in_the_description(api_user: ApiUser) -> None:
    admin = api_user.new_user(is_admin=True)
    path = "/api/v1/openapi.json"
    whole, seen = (caller.request("GET", path).json() for caller in (admin, api_user))

    assert api_user.http.get(path).status_code == 401
    assert whole == json.loads(json.dumps(api_user.openapi()))
    assert seen["paths"] == {
        name: methods for name, methods in whole["paths"].items() if "/admin/" not in name
    }
    assert "Worker" not in seen["components"]["schemas"]
    assert set(seen["components"]["schemas"]) < set(whole["components"]["schemas"])


def test_every_changing_operation_needs_a_write_scope(api_user: ApiUser) -> None:
    reader = api_user.new_user(scopes=("tasks:read", "keys:read"))
    # A plan or a preview stores nothing, and a sign-in link gives no right that the key lacks.
    only_asks = {
        "POST /api/v1/plan",
        "POST /api/v1/dags/plan",
        "POST /api/v1/schedules/preview",
        "POST /api/v1/users/me/sign-in-links",
    }
    changing: list[Operation] = [
        operation
        for operation in operations(api_user)
        if operation.method != "GET"
        and str(operation) not in only_asks
        and not operation.is_for_admins | operation.needs_claim_token
    ]

    assert changing
    for operation in changing:
        assert operation.call(reader).status_code == 403, str(operation)
