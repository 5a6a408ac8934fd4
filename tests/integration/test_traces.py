"""One trace follows a task: from the producer's request over its attempts into what they start."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from uuid import UUID

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import get_current_span

from overnight import Client
from overnight.handlers import registry
from overnight.handlers.context import Context
from overnight.trace_context import VARIABLE, current_traceparent
from overnight_server import traces
from overnight_server.domain.execution import Execution
from overnight_server.domain.ids import UserId, parse_task
from overnight_server.maintenance.promote import promote
from overnight_server.store.db import Db
from overnight_worker.execute import carry_out
from overnight_worker.prepare import environment
from overnight_worker.resources import WorkerResources
from tests.support.api_user import ApiUser, serve_api
from tests.support.deployment import Deployment
from tests.support.trace_receiver import TraceReceiver, attributes, trace_receiver
from tests.support.worker_in_process import NOWHERE, handler_of_test, worker_resources
from tests.support.workers import worker_settings

PRODUCER = TracerProvider().get_tracer("a producer")


@pytest.fixture
def receiver() -> Iterator[TraceReceiver]:
    with trace_receiver() as receiver:
        yield receiver
        traces._open.cache_clear()


@pytest.fixture
def api(deployment: Deployment, database_url: str, receiver: TraceReceiver) -> Iterator[ApiUser]:
    deployment.agent()
    with serve_api(deployment, database_url, OVERNIGHT_TRACE_ENDPOINT=receiver.url) as user:
        yield user


@pytest.fixture
def worker(database_url: str, db: Db, receiver: TraceReceiver) -> Iterator[WorkerResources]:
    settings = worker_settings(
        database_url, NOWHERE, heartbeat_interval=0.1, trace_endpoint=receiver.url
    )
    with worker_resources(settings, db) as worker:
        yield worker
        assert worker.traces is not None
        worker.traces.close()


@pytest.fixture
def handler() -> Iterator[Callable[[registry.HandlerFunction], None]]:
    with handler_of_test() as register:
        yield register


def work(deployment: Deployment, worker: WorkerResources) -> None:
    """Carry out what is ready, and send the spans."""
    carry_out(worker, [claimed.claim for claimed in deployment.claim().claims])
    assert worker.traces is not None
    worker.traces._provider.force_flush()


def submitted(client: Client, **fields: object) -> str:
    return str(client.tasks.create(title="a task", type="test", **fields).id)  # type: ignore[arg-type]


def test_one_trace_leads_from_the_producer_to_the_settle_of_each_attempt(
    deployment: Deployment,
    api: ApiUser,
    worker: WorkerResources,
    receiver: TraceReceiver,
    handler: Callable[[registry.HandlerFunction], None],
) -> None:
    seen: list[tuple[str | None, int]] = []

    def fail_first(ctx: Context) -> None:
        seen.append((ctx.traceparent, get_current_span().get_span_context().span_id))
        if ctx.attempt == 1:
            raise ValueError("no")

    handler(fail_first)
    with api.client() as client, PRODUCER.start_as_current_span("nightly") as producer:
        task = submitted(client)
    work(deployment, worker)
    deployment.move_clock(timedelta(hours=1))
    deployment.agent()
    promote(deployment.dispatcher)
    work(deployment, worker)
    api.http.app.state.closed_at_shutdown[-1]._provider.force_flush()

    trace_id = producer.get_span_context().trace_id.to_bytes(16)
    assert {span.trace_id for span in receiver.spans} == {trace_id}
    submit = receiver.only("POST /api/v1/tasks")
    assert submit.parent_span_id == producer.get_span_context().span_id.to_bytes(8)
    attempts = receiver.named("overnight.attempt")
    assert [span.parent_span_id for span in attempts] == [submit.span_id] * 2
    assert [attributes(span)["overnight.epoch"] for span in attempts] == [1, 2]
    assert [attributes(span)["overnight.outcome"] for span in attempts] == ["raised", "returned"]
    assert {attributes(span)["overnight.task_id"] for span in attempts} == {task}
    for name in ("overnight.claim", "overnight.run", "overnight.settle"):
        parents = [span.parent_span_id for span in receiver.named(name)]
        assert parents == [span.span_id for span in attempts], name
    waits = receiver.named("overnight.wait")
    assert [wait.parent_span_id for wait in waits] == [submit.span_id] * 2
    for wait, attempt in zip(waits, attempts, strict=True):
        assert wait.end_time_unix_nano == attempt.start_time_unix_nano
    runs = receiver.named("overnight.run")
    assert [current for _, current in seen] == [int.from_bytes(span.span_id) for span in runs]
    assert [text and text.split("-")[2] for text, _ in seen] == [
        span.span_id.hex() for span in runs
    ]


def test_the_children_that_a_run_spawns_are_below_the_run(
    deployment: Deployment,
    api: ApiUser,
    worker: WorkerResources,
    receiver: TraceReceiver,
    handler: Callable[[registry.HandlerFunction], None],
) -> None:
    handler(lambda ctx: ctx.spawn("a child", type="echo") and None)
    with api.client() as client:
        submitted(client)

    work(deployment, worker)

    child = deployment.one("SELECT traceparent FROM tasks WHERE parent_id IS NOT NULL")
    run = receiver.only("overnight.run")
    assert child["traceparent"].startswith(f"00-{run.trace_id.hex()}-{run.span_id.hex()}-")


def test_a_command_gets_the_context_of_its_run() -> None:
    execution = Execution(argv=("true",))
    user = UserId(UUID(int=1))
    assert VARIABLE not in environment(execution, user)

    with PRODUCER.start_as_current_span("a run"):
        assert environment(execution, user)[VARIABLE] == current_traceparent()


def test_a_task_without_a_context_has_a_trace_of_its_own(
    deployment: Deployment, worker: WorkerResources, receiver: TraceReceiver
) -> None:
    deployment.agent()
    task_id = deployment.task(deployment.user())

    work(deployment, worker)

    assert {span.trace_id for span in receiver.spans} == {task_id.bytes}


@pytest.mark.parametrize(
    "text", ["", "00-1-2-01", f"00-{'0' * 32}-{'1' * 16}-01", "x" * 10_000, "00-\u00e9"]
)
def test_a_context_that_is_none_is_not_stored(
    deployment: Deployment, database_url: str, text: str
) -> None:
    with serve_api(deployment, database_url) as user:
        headers = {"traceparent": text.encode()}
        response = user.http.post(
            "/api/v1/tasks", json={"title": "a"}, headers={**user.headers, **headers}
        )

    assert response.status_code == 201
    assert deployment.row(parse_task(response.json()["id"]))["traceparent"] is None


def test_the_context_of_a_request_is_stored_also_without_a_receiver(
    deployment: Deployment, database_url: str
) -> None:
    given = f"00-{'a' * 32}-{'b' * 16}-01"
    with serve_api(deployment, database_url) as user:
        task = user.request(
            "POST", "/api/v1/tasks", json={"title": "a"}, headers={"traceparent": given}
        )
        other = user.created()

    assert deployment.row(parse_task(task.json()["id"]))["traceparent"] == given
    assert deployment.row(parse_task(other["id"]))["traceparent"] is None


def test_a_receiver_that_is_gone_delays_no_run(
    deployment: Deployment, database_url: str, db: Db
) -> None:
    settings = worker_settings(database_url, NOWHERE, trace_endpoint="http://127.0.0.1:1")
    deployment.agent()
    task = deployment.task(deployment.user())

    with worker_resources(settings, db) as worker:
        carry_out(worker, [claimed.claim for claimed in deployment.claim().claims])
        assert worker.traces is not None
        worker.traces.close()

    assert deployment.state(task) == "completed"


def test_without_a_receiver_nothing_of_the_sender_is_imported() -> None:
    program = (
        "import sys, overnight, overnight_server.traces, overnight_worker.run_traces;"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry.exporter')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
