"""Requests to HTTP agents: refused addresses, redirects, limits, and unreadable answers."""

import asyncio
import resource
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from overnight_server.agent_driver.agent_client import AgentClient, AgentUnreachable
from overnight_server.agent_driver.answers import (
    Accepted,
    NoAnswer,
    NotSent,
    Rejected,
    Submission,
    TaskAbsent,
    TaskPresent,
    UnreadableAnswer,
)
from overnight_server.agent_driver.driver import agents_that_fit
from overnight_server.local.ports import free_port
from tests.support.scripted_agent import GARBAGE, HANG, LARGE, REDIRECT, SECRET, ScriptedAgent

KEY = "task_01J8K0000000000000000000AA:1"
BODY = b'{"payload": {"seconds": 0}, "spec": {}, "title": "work"}'


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[ScriptedAgent]:
    agent = ScriptedAgent(tmp_path / "agent").start()
    yield agent
    agent.kill()


def client(url: str, *, private_allowed: bool = True, secret: str = SECRET) -> AgentClient:
    return AgentClient(
        url,
        secret,
        private_allowed=private_allowed,
        submit_seconds=1.0,
        tls=ssl.create_default_context(),
    )


def submit(url: str, **options: object) -> Submission:
    async def work() -> Submission:
        one = client(url, **options)  # type: ignore[arg-type]
        try:
            return await one.submit(KEY, BODY, {})
        finally:
            await one.close()

    return asyncio.run(work())


def test_a_task_is_taken_asked_for_and_withdrawn(agent: ScriptedAgent) -> None:
    async def work() -> None:
        one = client(agent.url)
        assert (await one.health()).status == "idle"
        assert isinstance(await one.get_task_state(KEY), TaskAbsent)
        assert await one.submit(KEY, BODY, {}) == Accepted()
        assert isinstance(await one.get_task_state(KEY), TaskPresent)
        assert await one.withdraw(KEY)
        assert isinstance(await one.submit(KEY, BODY, {}), Rejected)
        await one.close()

    asyncio.run(work())
    assert agent.starts() == [KEY]


def test_one_connection_to_an_agent_is_kept_for_the_next_request(agent: ScriptedAgent) -> None:
    async def work() -> None:
        one = client(agent.url)
        await asyncio.gather(*(one.health() for _ in range(4)))
        assert len(_connections_to(agent.port)) == 1
        await one.health()
        assert len(_connections_to(agent.port)) == 1
        await one.close()

    asyncio.run(work())


def _connections_to(port: int) -> list[object]:
    mine = psutil.Process().net_connections("tcp4")
    return [one for one in mine if one.raddr and one.raddr.port == port and one.status != "NONE"]


def test_a_driver_may_open_a_connection_for_each_of_its_agents() -> None:
    """Many systems let a process open 1,024 files, and more only if it asks for them."""
    code = (
        "import resource; from overnight_server.agent_driver import driver;"
        "_, most = resource.getrlimit(resource.RLIMIT_NOFILE);"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, most));"
        "allowed = driver.allow_descriptors();"
        "assert resource.getrlimit(resource.RLIMIT_NOFILE) == (allowed, most);"
        "print(driver.agents_that_fit(allowed))"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert int(ended.stdout) == agents_that_fit(most)
    assert agents_that_fit(1024) == 412


def test_a_host_that_leads_to_a_private_address_is_not_called(agent: ScriptedAgent) -> None:
    for host in ("localhost", "127.0.0.1"):
        answer = submit(f"http://{host}:{agent.port}", private_allowed=False)

        assert isinstance(answer, NotSent)
        assert "only an operator" in answer.reason
    assert agent.journal("post") == []


def test_a_wrong_secret_is_refused(agent: ScriptedAgent) -> None:
    answer = submit(agent.url, secret="another secret of an agent")

    assert isinstance(answer, Rejected)
    assert answer.status == 401
    assert agent.starts() == []


def test_a_closed_port_and_an_unknown_host_cannot_have_got_the_task() -> None:
    assert isinstance(submit(f"http://127.0.0.1:{free_port()}"), NotSent)
    assert isinstance(submit("http://no-such-host.invalid"), NotSent)


def test_a_url_that_no_request_can_have_cannot_have_got_the_task() -> None:
    assert isinstance(submit(f"http://127.0.0.1:{free_port()}/\x7f"), NotSent)


@pytest.mark.parametrize(
    ("action", "answer"), [(REDIRECT, Rejected(307)), (HANG, NoAnswer("timeout"))]
)
def test_what_is_no_answer_of_the_agent_is_told_apart(
    agent: ScriptedAgent, action: str, answer: Submission
) -> None:
    agent.script(post=action)

    assert submit(agent.url) == answer


@pytest.mark.parametrize(("action", "is_too_large"), [(GARBAGE, False), (LARGE, True)])
def test_a_state_that_cannot_be_read_is_reported(
    agent: ScriptedAgent, action: str, *, is_too_large: bool
) -> None:
    agent.script(get=action, health=action)

    async def work() -> None:
        one = client(agent.url)
        answer = await one.get_task_state(KEY)
        assert isinstance(answer, UnreadableAnswer)
        assert answer.too_large is is_too_large
        with pytest.raises(AgentUnreachable):
            await one.health()
        await one.close()

    asyncio.run(work())


def test_an_error_of_the_agent_tells_nothing_about_a_task(agent: ScriptedAgent) -> None:
    agent.script(get=[500, 404])

    async def work() -> None:
        one = client(agent.url)
        assert isinstance(await one.get_task_state(KEY), NoAnswer)
        # A 404 without a boot id may be a proxy's.
        assert isinstance(await one.get_task_state(KEY), NoAnswer)
        await one.close()

    asyncio.run(work())
