"""Logs of tasks over HTTP, the client and the command line: read, follow and resume."""

import threading
from collections.abc import Iterator

import pytest
from redis import Redis

from overnight import Client, errors
from overnight.models.account import LogChunk
from overnight_server.domain.claims import Run
from overnight_server.domain.ids import show_task
from overnight_server.domain.results import Interrupted, Returned
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.outcome.run_logs import LogWrite, NewLogChunk, write_logs
from overnight_server.wakeups.log_feed import LogFeed
from overnight_server.wakeups.wake import Waker
from tests.support.command import run as run_command
from tests.support.deployment import Deployment
from tests.support.live_api import LiveApi, serve
from tests.support.wait import wait_until

PREFIX = "logs-test:"


@pytest.fixture
def served(deployment: Deployment, database_url: str, redis: EmbeddedRedis) -> Iterator[LiveApi]:
    with serve(
        deployment,
        database_url,
        OVERNIGHT_MAX_STREAMS_PER_USER="2",
        OVERNIGHT_REDIS_URL=redis.url,
        OVERNIGHT_REDIS_KEY_PREFIX=PREFIX,
    ) as api:
        deployment.agent()
        yield api


@pytest.fixture
def client(served: LiveApi) -> Iterator[Client]:
    with Client(served.url, served.key, retries=0) as opened:
        yield opened


@pytest.fixture
def run(served: LiveApi) -> Run:
    return served.deployment.running(served.user)


def write(served: LiveApi, run: Run, *texts: str, first: int = 1) -> None:
    """Write one chunk for each text."""
    chunks = [
        NewLogChunk(seq, "stdout", text.count("\n"), len(text), text)
        for seq, text in enumerate(texts, start=first)
    ]
    assert write_logs(served.deployment.dispatcher, [LogWrite(run.claim, chunks)])


def task_of(run: Run) -> str:
    return show_task(run.claim.task_id)


class Follower(threading.Thread):
    """A thread that follows a log and keeps what it read."""

    def __init__(self, stream: Iterator[LogChunk]) -> None:
        super().__init__(daemon=True)
        self.texts: list[str] = []
        self._stream = stream
        self.start()

    def run(self) -> None:
        for chunk in self._stream:
            self.texts.append(chunk.text)

    def ended(self) -> list[str]:
        self.join(20)
        assert not self.is_alive(), self.texts
        return self.texts


def feed(served: LiveApi) -> LogFeed:
    log_feed: LogFeed = served.server._api.state.dependencies.log_feed
    return log_feed


def test_a_log_is_read_in_order_and_continued(served: LiveApi, client: Client, run: Run) -> None:
    write(served, run, "one\n", "two\n", "three\n")

    first = client.tasks.logs(task_of(run), limit=2)
    rest = client.tasks.logs(task_of(run), after=first[-1].id)

    assert [(chunk.id, chunk.text) for chunk in [*first, *rest]] == [
        ("1.1", "one\n"),
        ("1.2", "two\n"),
        ("1.3", "three\n"),
    ]
    assert client.tasks.logs(task_of(run), after="1.3") == []


def test_the_log_of_one_run_can_be_read_alone(served: LiveApi, client: Client, run: Run) -> None:
    write(served, run, "first run\n")
    served.deployment.settle(run, Interrupted("shutdown", ran_seconds=0.0))
    [claimed] = served.deployment.claim().claims
    again = served.deployment.start(claimed)
    assert again is not None
    write(served, again, "second run\n")
    task_id = task_of(run)

    assert [chunk.text for chunk in client.tasks.logs(task_id)] == ["first run\n", "second run\n"]
    assert [chunk.text for chunk in client.tasks.logs(task_id, attempt=2)] == ["second run\n"]
    assert [chunk.text for chunk in client.tasks.logs(task_id, attempt=1)] == ["first run\n"]
    # It ends with its run, although the task has not ended.
    assert [chunk.text for chunk in client.tasks.follow_logs(task_id, attempt=1)] == ["first run\n"]


@pytest.mark.parametrize("after", ["1", "1.", ".1", "a.b", "-1.0", "1.9999999999"])
def test_a_position_that_is_none_is_refused_by_name(
    served: LiveApi, client: Client, run: Run, after: str
) -> None:
    with pytest.raises(errors.InvalidRequest, match="after"):
        client.tasks.logs(task_of(run), after=after)


def test_the_log_of_another_user_does_not_exist(served: LiveApi, run: Run) -> None:
    write(served, run, "mine\n")
    key = served.another_key(served.deployment.user())
    with Client(served.url, key, retries=0) as other:
        with pytest.raises(errors.TaskNotFound):
            other.tasks.logs(task_of(run))
        with pytest.raises(errors.TaskNotFound):
            list(other.tasks.follow_logs(task_of(run)))


def test_a_follower_gets_history_then_new_text_and_the_end(
    served: LiveApi, client: Client, run: Run
) -> None:
    write(served, run, "before\u2028the stream\r\n")
    follower = Follower(client.tasks.follow_logs(task_of(run)))
    wait_until(lambda: len(follower.texts) == 1, what="the history")

    write(served, run, "while it is open\n", first=2)
    wait_until(lambda: len(follower.texts) == 2, what="new text")
    served.deployment.settle(run, Returned(None))

    assert follower.ended() == ["before\u2028the stream\r\n", "while it is open\n"]


def test_a_follower_resumes_after_the_last_part(served: LiveApi, client: Client, run: Run) -> None:
    write(served, run, "one\n", "two\n", "three\n")
    served.deployment.settle(run, Returned(None))

    assert [chunk.text for chunk in client.tasks.follow_logs(task_of(run), after="1.2")] == [
        "three\n"
    ]


def test_a_wake_up_without_content_wakes_the_followers_of_its_task_only(
    served: LiveApi,
    client: Client,
    run: Run,
    redis: EmbeddedRedis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("overnight_server.api.routes.logs.POLL_SECONDS", 60.0)
    other = served.deployment.running(served.user)
    followers = [
        Follower(client.tasks.follow_logs(task_of(each), attempt=1)) for each in (run, other)
    ]
    channels = {f"{PREFIX}wake:log:{each.claim.task_id}".encode(): 1 for each in (run, other)}
    with Redis.from_url(redis.url) as connection:
        wait_until(
            lambda: dict(connection.pubsub_numsub(*channels)) == channels, what="subscriptions"
        )
    wait_until(
        lambda: all(not each._woken.is_set() for each in feed(served)._followers),
        what="the wake-ups of the subscriptions to be over",
    )
    waker = Waker(redis.url, PREFIX)
    for each in (run, other):
        write(served, each, "new\n")

    waker.log_grew([run.claim.task_id])
    wait_until(lambda: followers[0].texts == ["new\n"], what="the text")

    assert followers[1].texts == []
    for each in (run, other):
        served.deployment.settle(each, Returned(None))
    waker.log_grew([run.claim.task_id, other.claim.task_id])
    for follower in followers:
        assert follower.ended() == ["new\n"]
    waker.close()


def test_a_user_may_follow_few_logs_at_once(served: LiveApi, client: Client, run: Run) -> None:
    open_streams = [Follower(client.tasks.follow_logs(task_of(run))) for _ in range(2)]
    wait_until(lambda: len(feed(served)._followers) == 2, what="two streams")

    with pytest.raises(errors.TooManyStreams):
        next(client.tasks.follow_logs(task_of(run)))

    served.deployment.settle(run, Returned(None))
    for follower in open_streams:
        follower.ended()


def test_the_command_prints_the_text_of_all_runs(
    served: LiveApi,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OVERNIGHT_URL", served.url)
    monkeypatch.setenv("OVERNIGHT_API_KEY", served.key)
    write(served, run, "\x1b[31mred\x1b[0m \x07bell\n", "no end")
    served.deployment.settle(run, Returned(None))

    for options in ([], ["--follow"], ["-f", "--attempt", "1"]):
        result = run_command("logs", task_of(run), *options)
        assert result.stdout == "red \\x07bell\nno end\n"
        assert "run 1:" in result.stderr
    result = run_command("logs", task_of(run), "--json")
    assert result.stdout.count('"seq"') == 2
    assert "\\u001b[31mred" in result.stdout
    missing = run_command("logs", task_of(run), "--attempt", "7")
    assert (missing.stdout, "run 7 does not exist" in missing.stderr) == ("", True)
