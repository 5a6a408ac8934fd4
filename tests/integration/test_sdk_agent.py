"""The SDK's agent: the same handlers as a worker's, over the real API."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import overnight
from overnight.agent import calls
from overnight.agent.agent import Agent
from overnight.agent.run import ClaimedRun
from overnight.handlers import registry
from overnight.mcp.server import CurrentTask
from overnight_server.control.budgets import set_night_budget
from overnight_server.control.keys import key_id_of, revoke
from overnight_server.control.pauses import EVERYTHING, PauseSubject, pause, resume
from overnight_server.domain.pauses import PauseScope
from tests.support.api_user import ApiUser, serve_api
from tests.support.deployment import Deployment
from tests.support.live_api import serve
from tests.support.wait import wait_until


@pytest.fixture
def api_user(
    deployment: Deployment, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ApiUser]:
    monkeypatch.setattr(registry, "_handlers", {})
    with serve_api(deployment, database_url) as api_user:
        yield api_user


def shown(api_user: ApiUser, task: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = api_user.request("GET", f"/api/v1/tasks/{task['id']}").json()
    return answer


def agent(api_user: ApiUser, **options: Any) -> Agent:
    return Agent("laptop", client=api_user.client(), **options)


def test_an_agent_runs_a_handler_to_its_end(api_user: ApiUser) -> None:
    @overnight.handler("add", capabilities=["sums"])
    def add(ctx: overnight.Context) -> dict[str, object]:
        ctx.cost(0.5, input_tokens=3)
        ctx.artifact("note", "kept")
        return {"sum": sum(ctx.payload["numbers"]), "summary": "added"}

    task = api_user.created(type="add", payload={"numbers": [1, 2]}, required_capabilities=["sums"])
    api_user.created(type="other")
    runner = agent(api_user)

    assert runner.run_one() is True
    assert runner.run_one() is False, "it takes the types it has handlers for"

    done = shown(api_user, task)
    assert (done["status"], done["output"]["sum"], done["cost_usd"]) == ("completed", 3, 0.5)
    assert done["result_summary"] == "added"
    assert len(api_user.deployment.rows("SELECT * FROM artifacts")) == 1


def test_an_agents_cost_is_checked_when_it_is_reported(api_user: ApiUser) -> None:
    @overnight.handler("dear")
    def dear(ctx: overnight.Context) -> None:
        for _ in range(10):
            ctx.check()
            ctx.cost(0.3)

    set_night_budget(api_user.deployment.app, api_user.user, 0.5, actor="human:ops")
    task = api_user.created(type="dear")

    assert agent(api_user).run_one() is True

    row = shown(api_user, task)
    assert (row["wait_reason"], row["cost_usd"]) == ("approval", 0.6)


@pytest.mark.parametrize(
    ("error", "state", "attempts"),
    [
        (ValueError("boom"), "retrying", 1),
        (overnight.Fail("never"), "dead_lettered", 1),
        (overnight.Retry("again", after=5), "retrying", 1),
        (overnight.RateLimited(60), "retrying", 0),
        (overnight.Snooze(60), "retrying", 0),
        (overnight.Cancel("enough"), "cancelled", 1),
        (SystemExit(3), "retrying", 1),
        # What the service would refuse is cut before it is sent.
        (overnight.RateLimited(1.8e12), "retrying", 0),
        (overnight.Retry("a\x00b" * 9000, after=1e13, error_class="\ud800" * 200), "retrying", 1),
    ],
)
def test_an_agent_maps_exceptions_like_a_worker(
    api_user: ApiUser, error: BaseException, state: str, attempts: int
) -> None:
    @overnight.handler("echo")
    def echo(_: overnight.Context) -> None:
        raise error

    task = api_user.created(type="echo", max_attempts=3)

    agent(api_user).run_one()

    row = api_user.deployment.row(api_user.row_id(task["id"]))
    assert (row["state"], row["attempts"]) == (state, attempts)


def test_a_handler_reads_bytes_as_bytes(api_user: ApiUser) -> None:
    @overnight.handler("make")
    def make(ctx: overnight.Context) -> str:
        return ctx.artifact("raw", b"\x89\xff")

    @overnight.handler("read")
    def read(ctx: overnight.Context) -> list[int]:
        [content] = ctx.inputs.values()
        return list(content)

    made = api_user.created(type="make")
    runner = agent(api_user)
    runner.run_one()
    kept = shown(api_user, made)["output"]
    reader = api_user.created(type="read", context_refs=[f"artifact:{kept}"])
    runner.run_one()

    assert shown(api_user, reader)["output"] == [0x89, 0xFF]


def test_an_output_that_cannot_be_stored_is_invalid(api_user: ApiUser) -> None:
    @overnight.handler("echo")
    def echo(_: overnight.Context) -> object:
        return {1, 2}

    task = api_user.created(type="echo")

    agent(api_user).run_one()

    assert (
        api_user.deployment.row(api_user.row_id(task["id"]))["failure_reason"] == "invalid_output"
    )


def test_a_handler_spawns_waits_and_is_called_again(api_user: ApiUser) -> None:
    @overnight.handler("parent")
    def parent(ctx: overnight.Context) -> object:
        part = ctx.spawn("part", "part", key="part")
        [child] = ctx.wait_for(part)
        return {"child": child.output, "input": ctx.inputs["part"]}

    @overnight.handler("part")
    def part(_: overnight.Context) -> object:
        return "made"

    task = api_user.created(type="parent")
    runner = agent(api_user)

    assert [runner.run_one() for _ in range(4)] == [True, True, True, False]

    assert shown(api_user, task)["output"] == {"child": "made", "input": "made"}


def test_a_stopped_agent_releases_its_task(api_user: ApiUser) -> None:
    begun = threading.Event()

    @overnight.handler("long")
    def long(ctx: overnight.Context) -> None:
        begun.set()
        while True:
            ctx.check()
            threading.Event().wait(0.01)

    task = api_user.created(type="long")
    runner = agent(api_user)
    running = threading.Thread(target=runner.run)
    running.start()
    assert begun.wait(20)

    runner.stop()
    running.join(20)

    row = api_user.deployment.row(api_user.row_id(task["id"]))
    assert (row["state"], row["attempts"]) == ("ready", 0)
    assert api_user.deployment.one("SELECT status FROM agents")["status"] == "offline"


def test_a_new_task_wakes_a_waiting_agent(
    deployment: Deployment, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_handlers", {})

    @overnight.handler("echo")
    def echo(ctx: overnight.Context) -> object:
        return ctx.payload

    with (
        serve(deployment, database_url) as served,
        overnight.Client(served.url, served.key) as client,
    ):
        agents = [Agent(f"agent-{number}", client=client) for number in range(3)]
        running = [threading.Thread(target=one.run) for one in agents]
        for thread in running:
            thread.start()
        long_poll = served.server._api.state.dependencies.agent_long_poll
        wait_until(lambda: long_poll.waiting_count == len(agents), what="the agents to wait")
        in_use = served.server._api.state.dependencies.gate_db.engine.pool.checkedout()

        task = client.tasks.create("echo", type="echo", payload={"a": 1})
        done = client.tasks.wait(task.id, timeout=20)

        assert done.output == {"a": 1}
        assert in_use == 0, "who waits holds no connection"
        for one in agents:
            one.stop()
        for thread in running:
            thread.join(20)
            assert not thread.is_alive()
    assert len(deployment.rows("SELECT * FROM attempts")) == 1


@pytest.mark.parametrize("scope", PauseScope)
def test_the_end_of_a_pause_wakes_an_agent_that_asked_for_work_during_it(
    deployment: Deployment, database_url: str, scope: PauseScope
) -> None:
    with (
        serve(deployment, database_url) as served,
        overnight.Client(served.url, served.key) as client,
        ThreadPoolExecutor(1) as waiting,
    ):
        registered = client.call(calls.register({"name": "laptop"}))
        task = client.tasks.create("echo", type="echo")
        subject = {
            PauseScope.USER: PauseSubject(user_id=served.user),
            PauseScope.POOL: PauseSubject(pool=f"pull:{served.user}/laptop"),
            PauseScope.ALL: EVERYTHING,
        }[scope]
        pause(deployment.dispatcher, subject, actor="human:olga")
        assert client.call(calls.claim(registered.id, wait=0)) is None
        claim = waiting.submit(client.call, calls.claim(registered.id, wait=60))
        long_poll = served.server._api.state.dependencies.agent_long_poll
        wait_until(lambda: long_poll.waiting_count == 1, what="the agent to wait")

        resume(deployment.dispatcher, subject, actor="human:olga")

        assert claim.result(20).task_id == task.id


def test_nothing_is_claimed_for_a_key_that_was_revoked_during_the_wait(
    deployment: Deployment, database_url: str
) -> None:
    with (
        serve(deployment, database_url) as served,
        overnight.Client(served.url, served.key, retries=0) as client,
        ThreadPoolExecutor(1) as waiting,
    ):
        registered = client.call(calls.register({"name": "laptop"}))
        claim = waiting.submit(client.call, calls.claim(registered.id, wait=30))
        long_poll = served.server._api.state.dependencies.agent_long_poll
        wait_until(lambda: long_poll.waiting_count == 1, what="the agent to wait")

        revoke(deployment.app, key_id_of(served.key))
        deployment.task(served.user)

        with pytest.raises(overnight.errors.Unauthenticated):
            claim.result(20)
    assert deployment.rows("SELECT * FROM attempts") == []


def test_progress_of_an_agent_is_shown_before_its_next_heartbeat(api_user: ApiUser) -> None:
    shown_during_run: list[Any] = []

    @overnight.handler("fetch")
    def fetch(ctx: overnight.Context) -> None:
        ctx.progress(0.5, "page 4")
        wait_until(lambda: shown(api_user, task)["progress"], what="the progress")
        shown_during_run.append(shown(api_user, task)["progress"])

    task = api_user.created(type="fetch")
    # The lease is an hour, so that no heartbeat is due while the handler waits.
    runner = agent(api_user, lease_seconds=3600)

    assert runner.run_one() is True
    assert shown_during_run == [{"fraction": 0.5, "message": "page 4"}]


def test_a_claimed_run_spawns_and_reports_progress(
    deployment: Deployment, database_url: str
) -> None:
    with (
        serve(deployment, database_url) as served,
        overnight.Client(served.url, served.key) as client,
    ):
        registered = client.call(calls.register({"name": "laptop"}))
        parent = client.tasks.create("parent", type="echo")
        work = client.call(calls.claim(registered.id, wait=0))
        assert work is not None
        client.call(calls.start(work.task_id, work.token))

        async def speak() -> overnight.Task:
            async with overnight.AsyncClient(served.url, served.key) as other:
                run: CurrentTask = ClaimedRun(other, work.task_id, work.token)
                await run.progress(0.5, "half")
                return await run.spawn("child", {"type": "echo"})

        child = asyncio.run(speak())

        assert child.parent_id == parent.id
        assert client.tasks.get(parent.id).progress == {"fraction": 0.5, "message": "half"}
