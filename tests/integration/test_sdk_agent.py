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
from overnight.mcp.server import Run
from overnight_server.control.keys import key_id_of, revoke
from tests.support.door import Door, open_door
from tests.support.house import House
from tests.support.serving import serve
from tests.support.waiting import wait_until


@pytest.fixture
def door(house: House, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    monkeypatch.setattr(registry, "_handlers", {})
    with open_door(house, database_url) as door:
        yield door


def shown(door: Door, task: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = door.ask("GET", f"/api/v1/tasks/{task['id']}").json()
    return answer


def agent(door: Door, **options: Any) -> Agent:
    return Agent("laptop", client=door.client(), **options)


def test_an_agent_runs_a_handler_to_its_end(door: Door) -> None:
    @overnight.handler("add", capabilities=["sums"])
    def add(ctx: overnight.Context) -> dict[str, object]:
        ctx.cost(0.5, input_tokens=3)
        ctx.artifact("note", "kept")
        return {"sum": sum(ctx.payload["numbers"]), "summary": "added"}

    task = door.created(type="add", payload={"numbers": [1, 2]}, required_capabilities=["sums"])
    door.created(type="other")
    one = agent(door)

    assert one.run_one() is True
    assert one.run_one() is False, "it takes the types it has handlers for"

    done = shown(door, task)
    assert (done["status"], done["output"]["sum"], done["cost_usd"]) == ("completed", 3, 0.5)
    assert done["result_summary"] == "added"
    assert len(door.house.rows("SELECT * FROM artifacts")) == 1


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
    ],
)
def test_what_a_handler_raises_means_what_it_means_in_a_worker(
    door: Door, error: BaseException, state: str, attempts: int
) -> None:
    @overnight.handler("echo")
    def echo(_: overnight.Context) -> None:
        raise error

    task = door.created(type="echo", max_attempts=3)

    agent(door).run_one()

    row = door.house.row(door.row_id(task["id"]))
    assert (row["state"], row["attempts"]) == (state, attempts)


def test_a_handler_reads_bytes_as_bytes(door: Door) -> None:
    @overnight.handler("make")
    def make(ctx: overnight.Context) -> str:
        return ctx.artifact("raw", b"\x89\xff")

    @overnight.handler("read")
    def read(ctx: overnight.Context) -> list[int]:
        [content] = ctx.inputs.values()
        return list(content)

    made = door.created(type="make")
    one = agent(door)
    one.run_one()
    kept = shown(door, made)["output"]
    reader = door.created(type="read", context_refs=[f"artifact:{kept}"])
    one.run_one()

    assert shown(door, reader)["output"] == [0x89, 0xFF]


def test_an_output_that_cannot_be_kept_is_invalid(door: Door) -> None:
    @overnight.handler("echo")
    def echo(_: overnight.Context) -> object:
        return {1, 2}

    task = door.created(type="echo")

    agent(door).run_one()

    assert door.house.row(door.row_id(task["id"]))["failure_reason"] == "invalid_output"


def test_a_handler_spawns_waits_and_is_called_again(door: Door) -> None:
    @overnight.handler("parent")
    def parent(ctx: overnight.Context) -> object:
        part = ctx.spawn("part", "part", key="part")
        [child] = ctx.wait_for(part)
        return {"child": child.output, "input": ctx.inputs["part"]}

    @overnight.handler("part")
    def part(_: overnight.Context) -> object:
        return "made"

    task = door.created(type="parent")
    one = agent(door)

    assert [one.run_one() for _ in range(4)] == [True, True, True, False]

    assert shown(door, task)["output"] == {"child": "made", "input": "made"}


def test_a_stopped_agent_hands_back_what_it_runs(door: Door) -> None:
    begun = threading.Event()

    @overnight.handler("long")
    def long(ctx: overnight.Context) -> None:
        begun.set()
        while True:
            ctx.check()
            threading.Event().wait(0.01)

    task = door.created(type="long")
    one = agent(door)
    running = threading.Thread(target=one.run)
    running.start()
    assert begun.wait(20)

    one.stop()
    running.join(20)

    row = door.house.row(door.row_id(task["id"]))
    assert (row["state"], row["attempts"]) == ("ready", 0)
    assert door.house.one("SELECT status FROM agents")["status"] == "offline"


def test_a_waiting_agent_is_woken_by_work(
    house: House, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_handlers", {})

    @overnight.handler("echo")
    def echo(ctx: overnight.Context) -> object:
        return ctx.payload

    with serve(house, database_url) as served, overnight.Client(served.url, served.key) as client:
        agents = [Agent(f"agent-{number}", client=client) for number in range(3)]
        running = [threading.Thread(target=one.run) for one in agents]
        for thread in running:
            thread.start()
        bell = served.server._api.state.parts.bell
        wait_until(lambda: bell.waiting_now == len(agents), what="the agents to wait")
        in_use = served.server._api.state.parts.gate_db.engine.pool.checkedout()

        task = client.tasks.create("echo", type="echo", payload={"a": 1})
        done = client.tasks.wait(task.id, timeout=20)

        assert done.output == {"a": 1}
        assert in_use == 0, "who waits holds no connection"
        for one in agents:
            one.stop()
        for thread in running:
            thread.join(20)
            assert not thread.is_alive()
    assert len(house.rows("SELECT * FROM attempts")) == 1


def test_nothing_is_claimed_for_a_key_that_was_revoked_during_the_wait(
    house: House, database_url: str
) -> None:
    with (
        serve(house, database_url) as served,
        overnight.Client(served.url, served.key, retries=0) as client,
        ThreadPoolExecutor(1) as waiting,
    ):
        card = client.call(calls.register({"name": "laptop"}))
        claim = waiting.submit(client.call, calls.claim(card.id, wait=30))
        bell = served.server._api.state.parts.bell
        wait_until(lambda: bell.waiting_now == 1, what="the agent to wait")

        revoke(house.app, key_id_of(served.key))
        house.task(served.user)

        with pytest.raises(overnight.errors.Unauthenticated):
            claim.result(20)
    assert house.rows("SELECT * FROM attempts") == []


def test_a_run_has_hands_for_the_mcp_server(house: House, database_url: str) -> None:
    with serve(house, database_url) as served, overnight.Client(served.url, served.key) as client:
        card = client.call(calls.register({"name": "laptop"}))
        parent = client.tasks.create("parent", type="echo")
        work = client.call(calls.claim(card.id, wait=0))
        assert work is not None
        client.call(calls.start(work.task_id, work.token))

        async def speak() -> overnight.Task:
            async with overnight.AsyncClient(served.url, served.key) as other:
                run: Run = ClaimedRun(other, work.task_id, work.token)
                await run.progress(0.5, "half")
                return await run.spawn("child", {"type": "echo"})

        child = asyncio.run(speak())

        assert child.parent_id == parent.id
        assert client.tasks.get(parent.id).progress == {"fraction": 0.5, "message": "half"}
