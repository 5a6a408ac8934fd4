"""Event streams and waits: no event is lost or repeated, and they end in time."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from sqlalchemy import text

from overnight import AsyncClient, Client, errors
from overnight.models.tasks import Event
from overnight_server.api.routes import event_stream as api_listening
from overnight_server.control.cancel import cancel
from overnight_server.control.keys import key_id_of, revoke
from overnight_server.control.retry import retry
from overnight_server.control.users import disable_user
from overnight_server.domain.ids import TaskId, parse_task, show_dag, show_task
from overnight_server.domain.results import Raised, Returned
from overnight_server.event_log.feed import RETRY_SECONDS, Feed
from overnight_server.event_log.reader import Horizon, Topic, read_events
from overnight_server.intake.new_graph import Edge, NewTask
from overnight_server.intake.submit import submit_graph
from overnight_server.store.db import Db
from overnight_server.telemetry import LogEvent
from tests.chaos.proxy import FaultProxy
from tests.support.deployment import LOOSE, Deployment
from tests.support.failing_database import refusing
from tests.support.graphs import dag_of, end, graph
from tests.support.live_api import LiveApi, serve
from tests.support.wait import wait_until


class StreamClients:
    """Clients that stop retrying at the end of the test, and threads that read their streams."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._clients: list[Client] = []
        self._readers: list[EventReader] = []

    def client(self, url: str, key: str, retries: int = 0) -> Client:
        opened = Client(url, key, retries=retries, sleep=self._sleep)
        self._clients.append(opened)
        return opened

    def listen(self, stream: Iterator[Event]) -> "EventReader":
        self._readers.append(EventReader(stream))
        return self._readers[-1]

    def close(self) -> None:
        self._over.set()
        for reader in self._readers:
            reader.join(20)
            assert not reader.is_alive()
        for client in self._clients:
            client.close()

    def _sleep(self, seconds: float) -> None:
        if self._over.wait(seconds):
            raise InterruptedError("the test is over")


@pytest.fixture
def stream_clients() -> Iterator[StreamClients]:
    opened = StreamClients()
    yield opened
    opened.close()


# Requested after `stream_clients`, so that the server stops before the readers are joined.
@pytest.fixture
def served(
    stream_clients: StreamClients, deployment: Deployment, database_url: str
) -> Iterator[LiveApi]:
    with serve(deployment, database_url, OVERNIGHT_MAX_STREAMS_PER_USER="3") as api:
        yield api


@pytest.fixture
def client(served: LiveApi, stream_clients: StreamClients) -> Client:
    return stream_clients.client(served.url, served.key)


class EventReader(threading.Thread):
    """A thread that reads a stream and stores its events."""

    def __init__(self, stream: Iterator[Event]) -> None:
        super().__init__(daemon=True)
        self.events: list[Event] = []
        self.error: Exception | None = None
        self._stream = stream
        self.start()

    def run(self) -> None:
        try:
            for event in self._stream:
                self.events.append(event)
        except Exception as error:  # noqa: BLE001 - the test checks it
            self.error = error

    def wait_for(self, count: int) -> list[Event]:
        wait_until(lambda: len(self.events) >= count, what=f"{count} events")
        return self.events

    def ended(self) -> list[Event]:
        self.join(20)
        assert not self.is_alive(), f"the stream is still open after {self.events}"
        assert self.error is None, self.error
        return self.events


def feed(served: LiveApi) -> Feed:
    """Return the feed of the server."""
    server_feed: Feed = served.server._api.state.dependencies.feed
    return server_feed


def open_streams(served: LiveApi) -> int:
    """Return how many streams are open."""
    return len(feed(served)._subscriptions)


def finished(served: LiveApi, **fields: Any) -> TaskId:
    """Run a task to its end and return its id."""
    served.deployment.agent()
    run = served.deployment.running(served.user, **fields)
    served.deployment.settle(run, Returned({"hello": "world"}))
    return run.claim.task_id


def test_the_end_of_a_graph_is_the_last_event_of_its_stream(
    served: LiveApi, client: Client
) -> None:
    deployment = served.deployment
    deployment.agent()
    parent, child = graph(deployment, served.user, 2, [(0, 1)])
    dag_id = show_dag(dag_of(deployment, parent))
    end(deployment, parent, Returned(None))
    end(deployment, child, Returned(None))

    events = list(client.stream(dag_id=dag_id, after=0))

    assert [event.kind for event in events][-2:] == ["task.completed", "dag.completed"]
    last = events[-1]
    assert (last.task_id, last.dag_id, last.state) == (None, dag_id, "completed")
    assert [event.id for event in events] == sorted({event.id for event in events})


def test_the_stream_of_a_user_has_ready_tasks_and_ended_graphs(
    served: LiveApi, client: Client, stream_clients: StreamClients
) -> None:
    deployment = served.deployment
    deployment.agent()
    reader = stream_clients.listen(client.stream(after=0))
    parent, child = graph(deployment, served.user, 2, [(0, 1)])
    end(deployment, parent, Returned(None))
    cancel(deployment.app, served.user, child, actor="human:test")

    events = reader.wait_for(8)

    ready = [event.task_id for event in events if event.kind == "task.ready"]
    assert ready == [show_task(parent), show_task(child)]
    assert [event.kind for event in events][-2:] == ["task.cancelled", "dag.cancelled"]


def test_a_retried_graph_ends_twice(served: LiveApi, client: Client) -> None:
    deployment = served.deployment
    deployment.agent()
    first, second = graph(deployment, served.user, 2, [])
    end(deployment, first, Returned(None))
    end(deployment, second, Raised("error", "no", retryable=False))
    retry(deployment.app, served.user, second, actor="human:test")
    end(deployment, second, Returned(None))

    events = list(client.stream(dag_id=show_dag(dag_of(deployment, first)), after=0))

    ends = [event.kind for event in events if event.task_id is None]
    assert ends == ["dag.failed", "dag.completed"]


def test_the_stream_of_a_task_has_all_its_events_and_ends(served: LiveApi, client: Client) -> None:
    task_id = finished(served)

    events = list(client.tasks.stream(show_task(task_id)))

    assert [event.state for event in events] == ["ready", "claimed", "running", "completed"]
    assert [event.id for event in events] == sorted({event.id for event in events})
    assert events[-1].status.is_final
    assert {event.task_id for event in events} == {show_task(task_id)}


def test_a_stream_sends_events_as_they_happen(
    served: LiveApi, client: Client, stream_clients: StreamClients
) -> None:
    served.deployment.task(served.user)
    reader = stream_clients.listen(client.stream())
    wait_until(lambda: feed(served).horizon is not None, what="the first look, where it begins")

    other = served.deployment.task(served.deployment.user())
    task_id = served.deployment.task(served.user)
    cancel(served.deployment.app, served.user, task_id, actor="test")

    events = reader.wait_for(2)
    assert [(event.task_id, event.state) for event in events] == [
        (show_task(task_id), "ready"),
        (show_task(task_id), "cancelled"),
    ]
    assert show_task(other) not in {event.task_id for event in events}


def test_a_graphs_stream_ends_with_the_graph(
    served: LiveApi, client: Client, stream_clients: StreamClients
) -> None:
    tasks = [NewTask("a", "echo"), NewTask("b", "echo")]
    [first, second] = submit_graph(
        served.deployment.app, served.user, tasks, LOOSE, edges=[Edge(0, 1)], title="both"
    )
    reader = stream_clients.listen(client.stream(dag_id=show_dag(first.dag_id), after=0))
    reader.wait_for(2)

    finished(served)
    for submitted in (second, first):
        cancel(served.deployment.app, served.user, submitted.task_id, actor="test")

    events = reader.ended()
    assert {event.dag_id for event in events} == {show_dag(first.dag_id)}
    assert [event.state for event in events[-2:]] == ["cancelled", "cancelled"]


def test_a_cut_connection_loses_nothing_and_repeats_nothing(
    served: LiveApi, stream_clients: StreamClients
) -> None:
    with FaultProxy() as proxy:
        link = proxy.link(served.port)
        client = stream_clients.client(f"http://127.0.0.1:{link.port}", served.key, retries=3)
        reader = stream_clients.listen(client.stream(after=0))
        expected = []
        for number in range(12):
            expected.append(show_task(served.deployment.task(served.user, title=str(number))))
            if number % 4 == 1:
                reader.wait_for(number)
            if number % 4 == 2:
                link.cut()

        events = reader.wait_for(12)

    assert [event.task_id for event in events] == expected


def test_a_stopping_server_ends_its_streams_at_once(
    deployment: Deployment, database_url: str, stream_clients: StreamClients
) -> None:
    """`serve` fails if the server still waits for its streams some time after it was stopped."""
    with serve(deployment, database_url) as served:
        client = stream_clients.client(served.url, served.key)
        reader = stream_clients.listen(client.stream(after=0))
        served.deployment.task(served.user)
        reader.wait_for(1)


def test_an_event_that_commits_late_is_sent_in_its_order(
    deployment: Deployment,
    served: LiveApi,
    client: Client,
    stream_clients: StreamClients,
    connect: Callable[..., Db],
) -> None:
    reader = stream_clients.listen(client.stream(after=0))
    wait_until(lambda: open_streams(served) == 1, what="the stream to open")
    slow = connect("slow", role="overnight_owner").engine.connect()
    late = served.deployment.task(served.user)
    reader.wait_for(1)
    transaction = slow.begin()
    slow.execute(
        text("UPDATE tasks SET state = 'cancelled', finished_at = clock() WHERE id = :id"),
        {"id": late},
    )

    other = served.deployment.user()
    other_client = stream_clients.client(served.url, served.another_key(other))
    theirs = stream_clients.listen(other_client.stream(after=0))
    quick = served.deployment.task(other)
    newest = deployment.one("SELECT max(id) AS id FROM events")["id"]
    wait_until(
        lambda: any(noted >= newest for noted, _ in feed(served)._horizon._marks),
        what="a look at the log while the slow one writes",
    )
    told_before = list(theirs.events)
    transaction.commit()
    slow.close()

    [cancelled] = reader.wait_for(2)[1:]
    [quicker] = theirs.wait_for(1)
    assert told_before == [], "an event was told that a smaller one could still follow"
    assert (cancelled.task_id, quicker.task_id) == (show_task(late), show_task(quick))
    assert cancelled.id < quicker.id


def test_an_unused_event_id_does_not_delay_the_stream(deployment: Deployment, app_db: Db) -> None:
    user = deployment.user()
    with deployment.owner.engine.connect() as lost:
        lost.execute(text("SELECT nextval('events_id_seq')"))
        lost.rollback()
    task_id = deployment.task(user)
    horizon = Horizon()

    until = app_db.atomically(horizon.advance)

    assert until is not None
    [event] = read_events(app_db, Topic(user), after=0, until=until)
    assert parse_task(event.task_id) == task_id


def _answer_to(wait: Callable[..., Any], *args: object, **options: object) -> Any:
    """Return the answer of a wait; fail if it comes only when the timeout of the wait is over."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(wait, *args, **options).result(timeout=30)


def test_a_wait_ends_with_the_task(served: LiveApi, client: Client) -> None:
    served.deployment.agent()
    run = served.deployment.running(served.user)
    waiting = threading.Timer(0.6, served.deployment.settle, (run, Returned(7)))
    waiting.start()
    task = _answer_to(client.tasks.wait, show_task(run.claim.task_id), timeout=60)

    assert task.output == 7
    waiting.join()


def test_a_wait_for_a_graph_ends_with_the_graph(served: LiveApi, client: Client) -> None:
    served.deployment.agent()
    run = served.deployment.running(served.user)
    dag_id = show_dag(served.deployment.row(run.claim.task_id)["dag_id"])
    with pytest.raises(errors.DagWaitTimedOut):
        client.dags.wait(dag_id, timeout=0)
    ending = threading.Timer(0.6, served.deployment.settle, (run, Returned(7)))
    ending.start()
    dag = _answer_to(client.dags.wait, dag_id, timeout=60, poll=60)

    assert (dag.status, [task.state for task in dag.tasks]) == ("completed", ["completed"])
    ending.join()


def test_a_wait_that_times_out_returns_the_task(served: LiveApi, client: Client) -> None:
    task_id = show_task(served.deployment.task(served.user))

    with pytest.raises(errors.WaitTimedOut) as late:
        client.tasks.wait(task_id, timeout=1)

    assert late.value.task.state == "ready"
    assert open_streams(served) == 0


def test_streams_of_other_users_tasks_and_graphs_are_not_found(
    served: LiveApi, client: Client
) -> None:
    theirs = served.deployment.task(served.deployment.user())

    with pytest.raises(errors.TaskNotFound):
        list(client.tasks.stream(show_task(theirs)))
    with pytest.raises(errors.Refused, match="no such graph"):
        list(client.stream(dag_id=show_dag(theirs)))
    with pytest.raises(errors.TaskNotFound):
        client.tasks.wait(show_task(theirs))
    with pytest.raises(errors.Refused, match="no such graph"):
        client.dags.wait(show_dag(theirs))


def test_the_number_of_streams_per_user_is_limited(
    served: LiveApi, client: Client, stream_clients: StreamClients
) -> None:
    streams = [stream_clients.listen(client.stream()) for _ in range(3)]
    wait_until(lambda: open_streams(served) == 3, what="three streams")

    with pytest.raises(errors.TooManyStreams):
        next(client.stream())

    assert all(stream.is_alive() for stream in streams)
    task_id = show_task(served.deployment.task(served.user))
    # A wait that cannot be held is answered by asking now and then.
    cancel(served.deployment.app, served.user, parse_task(task_id), actor="test")
    assert client.tasks.wait(task_id, check=False).state == "cancelled"


def test_a_burst_of_streams_stays_within_the_limit(served: LiveApi) -> None:
    headers = {"Authorization": f"Bearer {served.key}"}
    at_once = threading.Barrier(12)
    over = threading.Event()
    answers: list[int] = []

    def listen() -> None:
        at_once.wait(20)
        url = f"{served.url}/api/v1/events"
        with httpx2.stream("GET", url, headers=headers, timeout=20) as answer:
            answers.append(answer.status_code)
            over.wait(20)

    threads = [threading.Thread(target=listen) for _ in range(12)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(answers) == len(threads), what="every answer to begin")
    over.set()
    for thread in threads:
        thread.join(20)

    assert sorted(answers) == [200] * 3 + [429] * 9


@pytest.mark.parametrize("by", ["revoking the key", "disabling the user"])
def test_a_stream_ends_when_access_is_revoked(
    served: LiveApi, client: Client, stream_clients: StreamClients, by: str
) -> None:
    served.deployment.agent()
    run = served.deployment.running(served.user)
    reader = stream_clients.listen(client.stream(after=0))
    before = list(reader.wait_for(served.deployment.one("SELECT count(*) AS n FROM events")["n"]))
    waiting = ThreadPoolExecutor(1)
    wait = waiting.submit(client.tasks.wait, show_task(run.claim.task_id), timeout=30, poll=30)
    wait_until(lambda: open_streams(served) == 2, what="the wait to be held")

    if by == "revoking the key":
        revoke(served.deployment.app, key_id_of(served.key))
    else:
        disable_user(served.deployment.app, served.user)
    served.deployment.settle(run, Returned(7))

    wait_until(lambda: open_streams(served) == 0, what="both to be sent home")
    reader.join(20)
    assert isinstance(reader.error, errors.Unauthenticated)
    assert reader.events == before
    with pytest.raises(errors.Unauthenticated):
        wait.result(20)
    waiting.shutdown()


def test_an_idle_stream_ends_with_its_key(
    served: LiveApi, client: Client, stream_clients: StreamClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_listening, "HEARTBEAT_SECONDS", 0.2)
    reader = stream_clients.listen(client.stream())
    wait_until(lambda: open_streams(served) == 1, what="the stream to open")

    revoke(served.deployment.app, key_id_of(served.key))

    reader.join(20)
    assert isinstance(reader.error, errors.Unauthenticated)


def test_an_outage_that_closes_the_last_stream_ends_in_the_log_of_a_later_one(
    deployment: Deployment, app_db: Db, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="overnight")
    topic = Topic(deployment.user())

    async def open_a_stream_until(feed: Feed, event: LogEvent) -> None:
        with feed.subscribe(topic):
            async with asyncio.timeout(20):
                while f"queue={event.log_name} " not in caplog.text:
                    # The log is read only when ids were given out.
                    deployment.run("SELECT nextval('events_id_seq')")
                    await asyncio.sleep(0.01)

    async def lose_the_database() -> None:
        feed = Feed(app_db, per_user=1, poll_seconds=0.01)
        with refusing(deployment, "57P01"):
            await open_a_stream_until(feed, LogEvent.DATABASE_UNREACHABLE)
            await asyncio.sleep(RETRY_SECONDS)
        await open_a_stream_until(feed, LogEvent.DATABASE_BACK)

    asyncio.run(lose_the_database())


def test_a_disconnected_client_is_unsubscribed(served: LiveApi, client: Client) -> None:
    served.deployment.task(served.user)
    stream = client.stream(after=0)
    next(stream)
    assert open_streams(served) == 1

    stream.close()  # type: ignore[attr-defined]
    served.deployment.task(served.user)

    wait_until(lambda: open_streams(served) == 0, what="the stream to be let go")


def test_many_streams_share_a_few_connections(
    deployment: Deployment, database_url: str, owner_db: Db
) -> None:
    with serve(deployment, database_url, OVERNIGHT_MAX_STREAMS_PER_USER="100") as served:

        async def follow(client: AsyncClient) -> Event:
            async for event in client.stream(after=0):
                return event
            raise AssertionError("the stream ended")

        async def all_of_them() -> list[Event]:
            async with AsyncClient(served.url, served.key) as client:
                listeners = [asyncio.create_task(follow(client)) for _ in range(60)]
                await asyncio.to_thread(
                    wait_until, lambda: open_streams(served) == 60, what="sixty listeners"
                )
                open_now.append(_connections(owner_db))
                await asyncio.to_thread(deployment.task, served.user)
                return await asyncio.gather(*listeners)

        open_now: list[int] = []
        events = asyncio.run(all_of_them())

    assert len({event.id for event in events}) == 1
    assert open_now[0] <= 10


def _connections(db: Db) -> int:
    with db.engine.begin() as tx:
        sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'overnight-api'"
        return int(tx.execute(text(sql)).scalar_one())


@pytest.mark.parametrize("header", ["x", "-1", "1.5", "9" * 25, "٣"])
def test_an_invalid_last_event_id_is_refused(served: LiveApi, header: str) -> None:
    answer = httpx2.get(
        f"{served.url}/api/v1/events",
        headers={"X-API-Key": served.key, "Last-Event-ID": header.encode()},
        trust_env=False,
    )

    assert answer.status_code == 400
    assert answer.json()["code"] == "INVALID_REQUEST"


def test_a_stream_needs_a_key(served: LiveApi, stream_clients: StreamClients) -> None:
    with pytest.raises(errors.Unauthenticated):
        next(stream_clients.client(served.url, "wrong").stream())
