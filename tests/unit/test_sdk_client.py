"""The client with a transport that returns prepared responses."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

import overnight
from overnight import errors
from overnight.client.client import Client
from overnight.client.retry import MAX_WAIT_SECONDS, wait_before_next
from tests.support.command import run
from tests.support.published_home import published_home

URL = "http://overnight.test"
TASK = {
    "id": "task_01",
    "queue_id": "task_01",
    "dag_id": "dag_01",
    "title": "a",
    "type": "echo",
    "status": "pending",
    "state": "ready",
    "priority": 3,
    "priority_score": 50,
    "created_at": "2030-01-01T00:00:00Z",
    "max_attempts": 3,
}
Prepared = httpx2.Response | Exception


class Service:
    """Returns the prepared responses in turn, then the last one again; records the requests."""

    def __init__(self, *responses: Prepared) -> None:
        self.responses = list(responses)
        self.requests: list[httpx2.Request] = []
        self.waits: list[float] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        response = self.responses.pop(0) if len(self.responses) > 1 else self.responses[0]
        if isinstance(response, Exception):
            raise response
        return response

    def client(self, **options: object) -> Client:
        return Client(
            URL,
            "a-key",
            transport=httpx2.MockTransport(self),
            sleep=self.waits.append,
            **options,  # type: ignore[arg-type]
        )

    def bodies(self) -> list[dict[str, object]]:
        return [json.loads(request.content) for request in self.requests]


def ok(body: object = None, **headers: str) -> httpx2.Response:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx2.Response(200, json=TASK if body is None else body, headers=fields)


def no(status: int, code: str, **headers: str) -> httpx2.Response:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx2.Response(status, json={"code": code, "detail": f"it is {code}"}, headers=fields)


def test_all_lists_every_public_name() -> None:
    assert sorted(overnight.__all__) == overnight.__all__
    assert all(hasattr(overnight, name) for name in overnight.__all__)
    assert len(overnight.__all__) <= 16


def test_create_sends_the_key_and_only_the_given_fields() -> None:
    service = Service(ok())

    task = service.client().tasks.create("a", payload={"x": 1}, project_id=None)

    assert task.id == "task_01"
    [request], [body] = service.requests, service.bodies()
    assert request.headers["authorization"] == "Bearer a-key"
    assert (request.method, str(request.url)) == ("POST", f"{URL}/api/v1/tasks")
    assert set(body) == {"title", "payload", "idempotency_key"}


def test_a_repeated_create_has_the_same_idempotency_key() -> None:
    service = Service(httpx2.ReadTimeout("late"), no(503, "DATABASE_UNAVAILABLE"), ok())

    service.client().tasks.create("a")

    keys = {body["idempotency_key"] for body in service.bodies()}
    assert len(service.requests) == 3
    assert len(keys) == 1


def test_two_creates_have_different_idempotency_keys() -> None:
    service = Service(ok())
    client = service.client()

    client.tasks.create("a")
    client.tasks.create("a")

    assert len({body["idempotency_key"] for body in service.bodies()}) == 2


def test_a_given_idempotency_key_is_sent() -> None:
    service = Service(ok())

    service.client().tasks.create("a", idempotency_key="naïve 日本")

    assert service.bodies()[0]["idempotency_key"] == "naïve 日本"


def test_an_unknown_field_is_refused_with_the_nearest_name() -> None:
    client = Service().client()

    with pytest.raises(errors.InvalidRequest) as refusal:
        client.plan([{"titel": "a"}])

    faults = {wrong.field: (wrong.message, wrong.legal) for wrong in refusal.value.fields}
    assert faults["tasks.0.title"] == ("is missing", "text from 1 to 500 characters")
    message, legal = faults["tasks.0.titel"]
    assert message == "is not a known field; did you mean title?"
    assert legal.startswith("one of title, ")


def test_a_wrong_field_is_refused_before_anything_is_sent() -> None:
    service = Service(ok())

    with pytest.raises(errors.InvalidRequest, match="priority") as refusal:
        service.client().tasks.create("a", priority=9)

    assert [wrong.field for wrong in refusal.value.fields] == ["priority"]
    assert service.requests == []


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "TOO_MANY_PENDING", errors.TooManyPending),
        (400, "TASK_ALREADY_COMPLETED", errors.TaskAlreadyCompleted),
        (400, "INVALID_REQUEST", errors.InvalidRequest),
        (401, "UNAUTHENTICATED", errors.Unauthenticated),
        (403, "FORBIDDEN", errors.Forbidden),
        (403, "MONTHLY_LIMIT_REACHED", errors.MonthlyLimitReached),
        (404, "TASK_NOT_FOUND", errors.TaskNotFound),
        (409, "STALE_ATTEMPT", errors.StaleAttempt),
        (503, "QUEUE_FULL", errors.QueueFull),
        (503, "DATABASE_UNAVAILABLE", errors.Unavailable),
        (418, "TEAPOT", errors.Refused),
    ],
)
def test_a_problem_body_becomes_the_error_of_its_code(
    status: int, code: str, kind: type[errors.Refused]
) -> None:
    with pytest.raises(kind, match=f"it is {code}") as refusal:
        Service(no(status, code)).client().tasks.get("task_01")

    assert (refusal.value.status, refusal.value.code) == (status, code)
    assert isinstance(refusal.value, errors.OvernightError)


def test_an_error_response_without_json_is_an_overnight_error() -> None:
    with pytest.raises(errors.Refused, match="502"):
        Service(httpx2.Response(502, text="<html>")).client().tasks.get("task_01")


@pytest.mark.parametrize("text", ["<html>welcome</html>", "[]", '{"id": 7}', ""])
def test_a_response_of_another_service_is_not_understood(text: str) -> None:
    with pytest.raises(errors.NotUnderstood, match=r"overnight\.test"):
        Service(httpx2.Response(200, text=text)).client().tasks.get("task_01")


def test_an_invalid_request_lists_the_wrong_fields() -> None:
    body = {"code": "INVALID_REQUEST", "errors": [{"field": "x", "message": "bad", "legal": "1"}]}

    with pytest.raises(errors.InvalidRequest) as refusal:
        Service(httpx2.Response(422, json=body)).client().tasks.get("task_01")

    assert refusal.value.fields == (errors.FieldError("x", "bad", "1"),)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"priority": 9}, "priority: is too large; legal: a whole number from 1 to 4"),
        ({"timeout_seconds": "soon"}, "timeout_seconds: is not a whole number; legal: a whole"),
    ],
)
def test_a_field_refused_by_the_client_lists_legal_values(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(errors.InvalidRequest) as refusal:
        Service().client().tasks.create("x", **fields)

    assert str(refusal.value).startswith(message)
    assert str(refusal.value).count("legal:") == 1


def test_the_client_waits_for_retry_after() -> None:
    service = Service(no(429, "SLOW_DOWN", Retry_After="7"), ok())

    service.client().tasks.get("task_01")

    [wait] = service.waits
    assert 7 <= wait < 8


def test_a_very_long_retry_after_is_raised_at_once() -> None:
    service = Service(no(503, "QUEUE_FULL", Retry_After="3600"))

    with pytest.raises(errors.QueueFull) as refusal:
        service.client().tasks.get("task_01")

    assert refusal.value.retry_after == 3600
    assert service.waits == []


def test_a_service_without_response_is_unreachable_after_the_retries() -> None:
    service = Service(httpx2.ConnectError("refused"))

    with pytest.raises(errors.Unreachable, match=r"overnight\.test"):
        service.client(retries=2).tasks.get("task_01")

    assert len(service.requests) == 3


def test_a_permanent_refusal_is_not_retried() -> None:
    service = Service(no(400, "TOO_MANY_PENDING"))

    with pytest.raises(errors.TooManyPending):
        service.client().tasks.create("a")

    assert len(service.requests) == 1


@pytest.mark.parametrize("chance", [0.0, 0.999])
def test_waits_grow_and_stay_bounded(chance: float) -> None:
    fault = httpx2.ConnectError("refused")

    waits = [wait_before_next(sent, fault, chance) or 0 for sent in range(1, 60)]

    assert waits == sorted(waits)
    assert 0 < waits[0] <= 0.25
    assert waits[-1] <= MAX_WAIT_SECONDS


def test_a_list_follows_its_pages() -> None:
    service = Service(ok([TASK, TASK], X_Next_Cursor="task_01"), ok([TASK]))

    tasks = list(service.client().tasks.list(status="failed"))

    assert len(tasks) == 3
    assert service.requests[1].url.params["before"] == "task_01"
    assert service.requests[1].url.params["status"] == "failed"


def test_a_list_stops_at_its_limit() -> None:
    service = Service(ok([TASK, TASK], X_Next_Cursor="task_01"))

    tasks = list(service.client().tasks.list(limit=2))

    assert len(tasks) == 2
    assert [request.url.params["limit"] for request in service.requests] == ["2"]


def test_cancel_returns_the_state() -> None:
    service = Service(ok({"cancelled": True, "state": "running"}))

    answer = service.client().tasks.cancel("task_01")

    assert answer.state == "running"
    assert service.requests[0].method == "DELETE"


def test_an_id_is_quoted_in_the_path() -> None:
    service = Service(ok())

    service.client().tasks.get("../users/me/limits?x=")

    assert service.requests[0].url.raw_path == b"/api/v1/tasks/..%2Fusers%2Fme%2Flimits%3Fx%3D"


def test_wait_returns_when_the_task_ends() -> None:
    done = {**TASK, "status": "completed", "state": "completed", "output": {"hello": "world"}}
    service = Service(ok(), ok(), ok(done))

    task = service.client().tasks.wait("task_01", poll=0.5)

    assert task.output == {"hello": "world"}
    assert service.waits == [0.5, 0.5]


@pytest.mark.parametrize("state", ["dead_lettered", "cancelled"])
def test_wait_raises_when_the_task_fails(state: str) -> None:
    status = "cancelled" if state == "cancelled" else "failed"
    ended = {**TASK, "status": status, "state": state, "error": "it broke"}

    with pytest.raises(errors.TaskFailed, match="it broke") as failure:
        Service(ok(ended)).client().tasks.wait("task_01")

    assert failure.value.task.state == state
    assert Service(ok(ended)).client().tasks.wait("task_01", check=False).state == state


def test_wait_raises_after_its_timeout() -> None:
    with pytest.raises(errors.WaitTimedOut, match="still ready") as late:
        Service(ok()).client().tasks.wait("task_01", timeout=0)

    assert late.value.task.id == "task_01"


def test_queue_status_and_limits_are_typed() -> None:
    status = {
        "running": 1,
        "pending": 2,
        "max_concurrent": 3,
        "can_start_more": True,
        "monthly_hours_used": 1.5,
        "monthly_hours_limit": None,
    }
    limits = {
        "plan": "pro",
        "max_concurrent_agents": 3,
        "max_task_duration_minutes": 120,
        "monthly_agent_hours_used": 0,
    }

    assert Service(ok(status)).client().queue_status().pending == 2
    assert Service(ok(limits)).client().limits().plan == "pro"


def test_address_and_key_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERNIGHT_URL", URL)
    monkeypatch.setenv("OVERNIGHT_API_KEY", "from-the-environment")
    service = Service(ok())

    with Client(transport=httpx2.MockTransport(service)) as client:
        client.tasks.get("task_01")

    assert service.requests[0].headers["authorization"] == "Bearer from-the-environment"


@pytest.fixture
def unconfigured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory without any configuration of a server."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("OVERNIGHT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def test_a_client_finds_the_local_stack_from_a_subdirectory(
    unconfigured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (unconfigured / "deep").mkdir()
    monkeypatch.chdir(unconfigured / "deep")

    with published_home(unconfigured / ".overnight", api_key="local-key", api_url=URL):
        service = Service(ok())
        Client(transport=httpx2.MockTransport(service)).tasks.get("task_01")
        with pytest.raises(errors.NotConfigured, match="no API key for http://elsewhere"):
            Client("http://elsewhere")

    assert service.requests[0].headers["authorization"] == "Bearer local-key"
    # The connection.json of a killed stack is left behind and must not be used.
    with pytest.raises(errors.NotConfigured, match="no Overnight server was found"):
        Client()


def test_a_client_uses_the_profiles_of_the_command_line(
    unconfigured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = unconfigured / "work.key"
    key.write_text("work-key\n", encoding="utf-8")
    assert run("profile", "add", "work", "--url", URL, "--api-key-file", str(key)).exit_code == 0
    monkeypatch.setenv("OVERNIGHT_PROFILE", "work")
    service = Service(ok())

    with Client(transport=httpx2.MockTransport(service)) as client:
        client.tasks.get("task_01")

    assert service.requests[0].headers["authorization"] == "Bearer work-key"
    monkeypatch.setenv("OVERNIGHT_PROFILE", "play")
    with pytest.raises(errors.NotConfigured, match=r"no profile 'play'.*known are work"):
        Client()


@pytest.mark.parametrize(
    "make", [lambda: Client(api_key="k"), lambda: Client(URL)], ids=["no url", "no key"]
)
def test_a_client_without_address_or_key_says_what_to_set(
    make: Callable[[], Client], unconfigured: Path
) -> None:
    assert not list(unconfigured.iterdir())

    with pytest.raises(errors.NotConfigured, match="OVERNIGHT_"):
        make()


def test_the_docstring_names_every_error() -> None:
    kinds = [
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.OvernightError)
    ]

    assert [name for name in kinds if name not in (errors.__doc__ or "")] == []
