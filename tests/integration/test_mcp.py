"""The queue as tools: a real client session over stdio, against the real API."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import pytest
from mcp import Client as McpClient
from mcp import StdioServerParameters
from mcp.types import TextContent

from overnight import AsyncClient
from overnight.mcp.server import build
from overnight.models.tasks import Task
from overnight.version import VERSION
from overnight_server.domain.ids import parse_task, show_task
from overnight_server.domain.results import Returned
from overnight_worker.run_context import RunContext
from tests.rules.sources import ROOT
from tests.support.deployment import Deployment
from tests.support.live_api import LiveApi, serve
from tests.support.stub_service import task

TOOLS = {
    "enqueue_task",
    "get_task",
    "list_tasks",
    "wait_task",
    "cancel_task",
    "explain_task",
    "read_log",
    "get_limits",
}


@pytest.fixture
def served(deployment: Deployment, database_url: str) -> Iterator[LiveApi]:
    with serve(deployment, database_url) as api:
        yield api


def session(
    served: LiveApi,
    work: Callable[[McpClient], Awaitable[None]],
    key: str = "",
    environ: Mapping[str, str] | None = None,
) -> None:
    """Start `overnight mcp` as an agent's host would, and speak to it."""
    inherited = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME"}}
    program = StdioServerParameters(
        command=sys.executable,
        args=["-m", "overnight_server.cli.main", "mcp"],
        env={
            **inherited,
            "PYTHONPATH": str(ROOT),
            "OVERNIGHT_URL": served.url,
            "OVERNIGHT_API_KEY": key or served.key,
            **(environ or {}),
        },
        cwd=ROOT,
    )

    async def speak() -> None:
        async with McpClient(program, read_timeout_seconds=30) as client:
            await work(client)

    asyncio.run(speak())


async def call(client: McpClient, name: str, **arguments: Any) -> dict[str, Any]:
    answer = await client.call_tool(name, arguments)
    assert not answer.is_error, answer.content
    assert answer.structured_content is not None
    return dict(answer.structured_content)


async def refused(client: McpClient, name: str, **arguments: Any) -> str:
    answer = await client.call_tool(name, arguments)
    assert answer.is_error
    [content] = answer.content
    assert isinstance(content, TextContent)
    return content.text


def test_the_tools_submit_read_wait_and_cancel(served: LiveApi) -> None:
    async def work(client: McpClient) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools.keys() == TOOLS
        assert all(tool.description for tool in tools.values())
        hints = tools["cancel_task"].annotations
        assert hints is not None
        assert hints.destructive_hint

        queued = await call(
            client, "enqueue_task", title="read the logs", type="echo", payload={"n": 1}
        )
        assert queued["source"] == "mcp"
        assert served.deployment.row(parse_task(queued["id"]))["payload"] == {"n": 1}
        shown = await call(client, "get_task", task_id=queued["id"])
        assert shown["state"] == "ready"
        explanation = await call(client, "explain_task", task_id=queued["id"])
        assert explanation["id"] == queued["id"]
        waited = await call(client, "wait_task", task_id=queued["id"], timeout_seconds=1)
        assert waited["state"] == "ready"
        listed = await call(client, "list_tasks", status="pending")
        assert [one["id"] for one in listed["tasks"]] == [queued["id"]]
        limits = await call(client, "get_limits")
        assert (limits["plan"]["plan"], limits["queue"]["pending"]) == ("team", 1)
        document = await client.read_resource(f"task://{queued['id']}")
        assert queued["id"] in str(document.contents)
        ended = await call(client, "cancel_task", task_id=queued["id"])
        assert ended["state"] == "cancelled"

    session(served, work)


def test_wait_task_returns_the_output(served: LiveApi) -> None:
    served.deployment.agent()
    run = served.deployment.running(served.user)

    async def work(client: McpClient) -> None:
        waiting = asyncio.create_task(
            call(client, "wait_task", task_id=show_task(run.claim.task_id), timeout_seconds=30)
        )
        await asyncio.to_thread(served.deployment.settle, run, Returned({"answer": 42}))
        assert (await waiting)["output"] == {"answer": 42}

    session(served, work)


def test_a_key_reads_only_tasks_of_its_user(served: LiveApi) -> None:
    theirs = show_task(served.deployment.task(served.deployment.user()))

    async def work(client: McpClient) -> None:
        for tool in ("get_task", "cancel_task", "explain_task", "wait_task"):
            assert await refused(client, tool, task_id=theirs) == "TASK_NOT_FOUND: no such task"

    session(served, work)


def test_a_wrong_argument_is_refused_with_legal_values(served: LiveApi) -> None:
    async def work(client: McpClient) -> None:
        assert client.server_info.version == VERSION
        assert await refused(client, "enqueue_task", title="x", priority=9) == (
            "INVALID_REQUEST: priority: is too large; legal: a whole number from 1 to 4"
        )
        assert await refused(client, "enqueue_task") == (
            "INVALID_REQUEST: title: is missing; legal: text"
        )
        assert await refused(client, "list_tasks", limit=500) == (
            "INVALID_REQUEST: limit: is too large; legal: a whole number from 1 to 100"
        )
        assert await refused(client, "no_such_tool") == "Unknown tool: no_such_tool"

    session(served, work)


def test_an_invalid_key_is_a_tool_error(served: LiveApi) -> None:
    async def work(client: McpClient) -> None:
        assert (await refused(client, "get_limits")).startswith("UNAUTHENTICATED: ")

    session(served, work, key="wrong")


def test_an_agent_inside_a_run_gets_its_claim_from_the_environment(served: LiveApi) -> None:
    served.deployment.agent()
    run = served.deployment.running(served.user)
    context = RunContext(run, deadline=0.0)

    async def work(client: McpClient) -> None:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        assert tools == TOOLS | {"spawn_subtask", "report_progress"}
        child = await call(client, "spawn_subtask", title="a part", type="echo")
        assert child["parent_id"] == context.task_id
        assert (await call(client, "report_progress", fraction=0.5))["reported"]

    session(served, work, environ=context.environ)

    assert served.deployment.row(run.claim.task_id)["progress"]["fraction"] == 0.5


class Running:
    """A run that records the calls of its tools."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    async def spawn(self, title: str, fields: dict[str, Any]) -> Task:
        self.calls.append((title, fields))
        return Task.model_validate(task(title=title))

    async def progress(self, fraction: float | None, message: str | None) -> None:
        self.calls.append((fraction, message))


def test_a_running_task_spawns_and_reports_progress(served: LiveApi) -> None:
    running = Running()

    async def work() -> None:
        async with (
            AsyncClient(served.url, served.key) as own,
            McpClient(build(own, running)) as client,
        ):
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert names == TOOLS | {"spawn_subtask", "report_progress"}
            await call(client, "spawn_subtask", title="a part", payload={"n": 1})
            await call(client, "report_progress", fraction=0.5, message="half")

    asyncio.run(work())

    assert running.calls == [("a part", {"payload": {"n": 1}}), (0.5, "half")]
