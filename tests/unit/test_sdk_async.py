"""AsyncClient does what Client does, and type checkers distinguish the two."""

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest
from mypy import api as mypy

from overnight import AsyncClient, Client, errors
from overnight.client.client import Operations
from overnight.client.event_stream import Parser
from overnight.client.operations import iteration, operation
from overnight.client.tasks import Tasks
from overnight.models.tasks import Event, Task
from tests.rules.sources import ROOT
from tests.unit.test_sdk_client import TASK, URL, Service, no, ok

DONE = {**TASK, "status": "completed", "state": "completed", "output": 7}


def asynchronous(service: Service, **options: object) -> AsyncClient:
    async def sleep(seconds: float) -> None:
        service.waits.append(seconds)

    return AsyncClient(
        URL,
        "a-key",
        transport=httpx2.MockTransport(service),
        sleep=sleep,
        **options,  # type: ignore[arg-type]
    )


def event(number: int, state: str = "ready") -> str:
    fields = {
        "id": number,
        "kind": f"task.{state}",
        "task_id": "task_01",
        "dag_id": "dag_01",
        "state": state,
        "status": "pending",
        "epoch": 0,
        "at": "2030-01-01T00:00:00Z",
    }
    return f"id: {number}\ndata: {json.dumps(fields)}\n\n"


class Cut(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """A response in pieces that ends with an error unless it is whole."""

    def __init__(self, *pieces: str, whole: bool = False) -> None:
        self.pieces = pieces
        self.whole = whole

    def __iter__(self) -> Iterator[bytes]:
        yield from (piece.encode() for piece in self.pieces)
        if not self.whole:
            raise httpx2.ReadError("cut")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece


def streamed(*pieces: str, whole: bool = False) -> httpx2.Response:
    return httpx2.Response(200, stream=Cut(*pieces, whole=whole))


def test_a_repeated_async_create_has_the_same_idempotency_key() -> None:
    service = Service(httpx2.ReadTimeout("late"), no(503, "DATABASE_UNAVAILABLE"), ok())

    task = asyncio.run(asynchronous(service).tasks.create("a", payload={"x": 1}))

    assert task.id == "task_01"
    assert len({body["idempotency_key"] for body in service.bodies()}) == 1
    assert len(service.waits) == 2


def test_an_async_list_follows_its_pages() -> None:
    service = Service(ok([TASK, TASK], X_Next_Cursor="task_01"), ok([TASK]))

    async def listed() -> list[Task]:
        async with asynchronous(service) as client:
            return [task async for task in client.tasks.list(status="failed")]

    assert len(asyncio.run(listed())) == 3
    assert service.requests[1].url.params["before"] == "task_01"


def test_an_async_refusal_is_the_error_of_its_code() -> None:
    with pytest.raises(errors.TooManyPending):
        asyncio.run(asynchronous(Service(no(400, "TOO_MANY_PENDING"))).tasks.create("a"))


def test_many_coroutines_can_wait_at_once() -> None:
    service = Service(ok(DONE))

    async def all_of_them() -> list[Task]:
        client = asynchronous(service)
        return await asyncio.gather(*(client.tasks.wait("task_01") for _ in range(20)))

    assert [task.output for task in asyncio.run(all_of_them())] == [7] * 20


def test_wait_uses_a_long_poll() -> None:
    service = Service(ok(DONE))

    service.client().tasks.wait("task_01", timeout=12)

    [request] = service.requests
    assert request.url.path == "/api/v1/tasks/task_01/wait"
    assert request.url.params["timeout"] == "12"
    assert request.extensions["timeout"]["read"] == 42


@pytest.mark.parametrize(("status", "code"), [(404, "NOT_FOUND"), (429, "TOO_MANY_STREAMS")])
def test_wait_polls_a_service_without_long_poll(status: int, code: str) -> None:
    service = Service(no(status, code), ok(), ok(DONE))

    task = service.client(retries=0).tasks.wait("task_01", poll=0.5)

    paths = [request.url.path.rpartition("/")[2] for request in service.requests]
    assert task.output == 7
    assert paths == ["wait", "task_01", "task_01"]
    assert service.waits == [0.5]


def test_a_restart_of_the_service_does_not_end_a_wait() -> None:
    service = Service(ok(), httpx2.ConnectError("refused"), no(502, ""), ok(DONE))

    assert service.client(retries=0).tasks.wait("task_01").output == 7


def test_wait_raises_if_the_service_never_responded() -> None:
    with pytest.raises(errors.Unreachable):
        Service(httpx2.ConnectError("refused")).client(retries=0).tasks.wait("task_01")


def test_a_broken_stream_is_resumed() -> None:
    half = event(3)[:20]
    service = Service(
        streamed("id: 1\n\n", event(2), half),
        httpx2.ConnectError("refused"),
        streamed(": beat\n\n", event(3), event(4, "completed"), "event: end\ndata: {}\n\n"),
    )

    events = list(service.client(retries=0).tasks.stream("task_01"))

    assert [event.id for event in events] == [2, 3, 4]
    resumed_after = [request.headers.get("last-event-id") for request in service.requests]
    assert resumed_after == ["0", "2", "2"]


def test_a_broken_async_stream_is_resumed() -> None:
    service = Service(
        streamed("id: 7\n\n"),
        streamed(event(8), whole=True),
        streamed(event(9), "event: end\ndata: {}\n\n", whole=True),
    )

    async def events() -> list[Event]:
        return [event async for event in asynchronous(service).stream(dag_id="dag_01")]

    assert [event.id for event in asyncio.run(events())] == [8, 9]
    resumed_after = [request.headers.get("last-event-id") for request in service.requests]
    assert resumed_after == [None, "7", "8"]
    assert service.requests[0].url.params["dag_id"] == "dag_01"


def test_a_repeated_event_is_yielded_once() -> None:
    end = "event: end\ndata: {}\n\n"
    service = Service(streamed(event(2), event(2), event(3), end, whole=True))

    assert [event.id for event in service.client().stream()] == [2, 3]


def test_a_refused_stream_raises_the_error() -> None:
    with pytest.raises(errors.TaskNotFound):
        list(Service(no(404, "TASK_NOT_FOUND")).client().tasks.stream("task_01"))


def test_a_stream_that_never_opens_is_retried_like_a_call() -> None:
    service = Service(httpx2.ConnectError("refused"))

    with pytest.raises(errors.Unreachable):
        list(service.client(retries=2).stream())

    assert len(service.requests) == 3


def test_leaving_a_stream_closes_its_connection() -> None:
    answer = streamed(event(2), event(3))
    stream = Service(answer).client().stream()

    assert next(stream).id == 2
    stream.close()  # type: ignore[attr-defined]

    assert answer.is_closed


def test_an_id_counts_only_with_the_end_of_its_event() -> None:
    parser = Parser()

    events = [event for line in ("id: 5", "data: a") for event in parser.feed(line)]
    parser.discard()

    assert events == []
    assert parser.last_id is None


def test_other_options_share_the_connections() -> None:
    service = Service(no(503, "QUEUE_FULL"))
    client = service.client(retries=3)

    with pytest.raises(errors.QueueFull):
        client.with_options(retries=0).tasks.get("task_01")

    assert len(service.requests) == 1
    assert client.transport.options.retries == 3


def test_both_clients_have_the_same_operations() -> None:
    for kind in (Operations, Tasks):
        methods = {
            name: method
            for name, method in vars(kind).items()
            if isinstance(method, operation | iteration)
        }
        assert methods
        for method in methods.values():
            assert inspect.getdoc(method.body)
    for name in ("tasks", "limits", "plan", "stream"):
        client, other = Service(ok()).client(), asynchronous(Service(ok()))
        assert hasattr(client, name)
        assert hasattr(other, name)


TYPED = """
from collections.abc import AsyncIterator, Iterator
from typing import assert_type
from overnight import AsyncClient, Client, Task
from overnight.models.tasks import Event, UserLimits

def waits(client: Client) -> None:
    assert_type(client.tasks.create("a", priority=2), Task)
    assert_type(client.tasks.wait("a", timeout=3), Task)
    assert_type(client.tasks.list(), Iterator[Task])
    assert_type(client.stream(), Iterator[Event])
    assert_type(client.with_options(retries=1).limits(), UserLimits)

async def awaits(client: AsyncClient) -> None:
    assert_type(await client.tasks.create("a", priority=2), Task)
    assert_type(await client.tasks.wait("a", timeout=3), Task)
    assert_type(client.tasks.list(), AsyncIterator[Task])
    assert_type(client.stream(), AsyncIterator[Event])
    assert_type(await client.with_options(retries=1).limits(), UserLimits)

def wrong(client: Client) -> None:
    client.tasks.create("a", prioritie=2)
"""


def test_type_checkers_distinguish_the_two_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program.py"
    program.write_text(TYPED, encoding="utf-8")
    monkeypatch.chdir(ROOT)

    output, _, _ = mypy.run(["--strict", "--no-error-summary", str(program)])

    [line] = output.splitlines()
    assert 'Unexpected keyword argument "prioritie"' in line


def test_a_call_without_await_does_nothing() -> None:
    service = Service(ok(DONE))
    client: Client | AsyncClient = asynchronous(service)

    waiting = client.tasks.get("task_01")

    assert inspect.iscoroutine(waiting)
    waiting.close()
    assert service.requests == []
